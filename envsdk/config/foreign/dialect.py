"""A project whose files are translated, and which of the projects a file is of."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from envsdk.base.plugins import load_plugin, plugin_names
from envsdk.base.settings.problems import KeyPath, Problem
from envsdk.config.foreign.row import Row, value_at
from envsdk.config.foreign.table import Table

DIALECTS = "envsdk.dialects"
"""Entry-point group of the projects."""
Data = Mapping[str, Any]
"""The keys of a file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialect:
    """The keys of another project's files."""

    name: str
    """As messages name the project."""
    is_theirs: Callable[[Data], bool]
    """Whether a file, before overrides, is the project's: it has keys that only theirs have."""
    table: Callable[[], Table]
    """What becomes of each key."""
    holds_in_ours: bool = False
    """Whether the table holds in files that are no project's too, but for rows that are marked otherwise."""
    renamed: Callable[[Data], Data] = lambda data: data
    """A file of theirs with the sections in the places that the table knows."""
    kind_problems: Callable[[Data], list[Problem]] = lambda data: []
    """Why a file as a whole cannot be used: one problem, at the key that shows it; none if it can."""
    pending: Callable[[Data], Mapping[KeyPath, str]] = lambda data: {}
    """Our keys that training needs and a file lacks, while it can be explained without: what to do."""
    fetch: Callable[[Data], Mapping[KeyPath, str]] = lambda data: {}
    """Downloads what a run of the file needs; our keys where that fails: what stands against it."""
    sections: frozenset[str] = frozenset()
    """Top-level sections of their files alone: what is unknown in them is named, and none of them stays."""

    @property
    def rows(self) -> tuple[Row, ...]:
        """The first row that matches a key and applies to its value decides."""
        return self.table().rows

    def is_without_effect(self, path: KeyPath) -> bool:
        """Whether nobody reads the key, or a section around it, in any file."""
        ends = range(1, len(path) + 1)
        return any(
            row.is_without_effect and row.applies is None and row.match(path[:end]) is not None
            for end in ends
            for row in self.rows
        )

    def is_section(self, path: KeyPath) -> bool:
        """Whether keys of theirs stand below this one, by its name, and it has no meaning of its own."""
        here = [row for row in self.rows if row.applies is None and row.match(path) is not None]
        below = (row.key.split(".") for row in self.rows if row.matches_section(path))
        return not here and any(parts[len(path) - 1] == path[-1] for parts in below)

    def names_beside(self, path: KeyPath) -> set[str]:
        """Their keys that can stand where `path` does."""
        return {
            row.key.split(".")[len(path) - 1]
            for row in self.rows
            if row.matches_section(path[:-1]) and row.key.count(".") >= len(path) - 1
        }


def has_mark(data: Data, marks: Sequence[str]) -> bool:
    """Whether a file has one of these dotted keys."""
    return any(value_at(data, tuple(mark.split(".")), _ABSENT) is not _ABSENT for mark in marks)


_ABSENT = object()
_OURS = Dialect(name="envsdk", is_theirs=lambda data: True, table=lambda: Table((), {}))


def dialect_of(data: Data) -> tuple[Dialect, bool]:
    """The dialect that a file's keys are read in, and whether the file is that project's."""
    known = [load_plugin(DIALECTS, name) for name in plugin_names(DIALECTS)]
    theirs = next((each for each in known if each.is_theirs(data)), None)
    if theirs is not None:
        return theirs, True
    return next((each for each in known if each.holds_in_ours), _OURS), False
