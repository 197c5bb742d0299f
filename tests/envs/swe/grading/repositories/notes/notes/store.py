"""Where notes are kept: one JSON object per line."""

import json
import logging
import os
import time
from typing import NamedTuple

log = logging.getLogger("notes")


class CorruptStore(Exception):
    """A line of the file is no note."""


class Note(NamedTuple):
    """One note; `when` in seconds since the epoch."""

    title: str
    body: str
    tags: tuple
    when: float


class Store:
    """Notes by title. A file that is not there has no notes."""

    def __init__(self, path):
        self.path = path
        self.notes = {}
        if os.path.exists(path):
            self._load()

    def _load(self):
        with open(self.path, encoding="utf-8") as file:
            for number, line in enumerate(file, 1):
                if not line.strip():
                    continue
                try:
                    fields = json.loads(line)
                    note = Note(fields["title"], fields["body"], tuple(fields["tags"]), fields["when"])
                except (ValueError, KeyError) as error:
                    raise CorruptStore(f"{self.path}, line {number}: no note") from error
                self.notes[note.title] = note

    def add(self, title, body="", tags=()):
        """The note, which replaces one of the same title."""
        if title in self.notes:
            log.warning("%s is replaced", title)
        self.notes[title] = Note(title, body, tuple(sorted(set(tags))), time.time())
        return self.notes[title]

    def tagged(self, tag):
        """Notes with a tag, newest first."""
        found = [note for note in self.notes.values() if tag in note.tags]
        return sorted(found, key=lambda note: note.when, reverse=True)

    def tags(self):
        """How often each tag occurs."""
        counts = {}
        for note in self.notes.values():
            for tag in note.tags:
                counts[tag] = counts.get(tag, 0) + 1
        return counts

    def save(self):
        """Write all notes, in the order of their titles, and never half of them."""
        beside = f"{self.path}.new"
        with open(beside, "w", encoding="utf-8") as file:
            for title in sorted(self.notes):
                note = self.notes[title]._asdict()
                file.write(json.dumps(note, ensure_ascii=False, sort_keys=True) + "\n")
        os.replace(beside, self.path)
