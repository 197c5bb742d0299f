"""Notes in a file, and a command for them."""

from notes.store import CorruptStore, Note, Store

__all__ = ["CorruptStore", "Note", "Store"]
