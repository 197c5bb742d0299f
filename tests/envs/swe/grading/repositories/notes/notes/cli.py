"""The command: `notes add TITLE [BODY] [-t TAG]`, `notes list [TAG]`, `notes tags`."""

import argparse
import os
import sys

from notes.store import CorruptStore, Store


def main(argv=None):
    """Returns the exit status; SystemExit(2) for arguments that cannot be read."""
    parser = argparse.ArgumentParser(prog="notes")
    commands = parser.add_subparsers(dest="command", required=True)
    add = commands.add_parser("add")
    add.add_argument("title")
    add.add_argument("body", nargs="?", default="")
    add.add_argument("-t", "--tag", action="append", default=[])
    commands.add_parser("list").add_argument("tag", nargs="?")
    commands.add_parser("tags")
    options = parser.parse_args(argv)
    try:
        store = Store(os.environ.get("NOTES_FILE", "notes.jsonl"))
    except CorruptStore as error:
        print(f"notes: {error}", file=sys.stderr)
        return 1
    if options.command == "add":
        store.add(options.title, options.body, options.tag)
        store.save()
    elif options.command == "list":
        found = store.tagged(options.tag) if options.tag else store.notes.values()
        for note in found:
            print(f"{note.title}: {note.body}" if note.body else note.title)
    else:
        for tag, count in sorted(store.tags().items()):
            print(f"{count:3} {tag}")
    return 0
