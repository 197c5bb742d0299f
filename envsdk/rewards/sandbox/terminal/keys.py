"""The bytes of keys, by names such as tmux's `send-keys` takes; pure."""

from __future__ import annotations

import re
from collections.abc import Iterable

_ARROWS = {"Up": "A", "Down": "B", "Right": "C", "Left": "D", "Home": "H", "End": "F"}
"""Keys of two forms, of which the program on the terminal chooses one."""
_NUMBERED = {"Insert": 2, "Delete": 3, "PageUp": 5, "PageDown": 6} | {
    f"F{number}": code for number, code in zip(range(5, 13), (15, 17, 18, 19, 20, 21, 23, 24), strict=True)
}
_PLAIN = {"Enter": "\r", "Tab": "\t", "Escape": "\x1b", "Space": " ", "BSpace": "\x7f", "S-Tab": "\x1b[Z"}
_FIXED = (
    _PLAIN
    | {name: f"\x1b[{code}~" for name, code in _NUMBERED.items()}
    | {f"F{number}": f"\x1bO{letter}" for number, letter in enumerate("PQRS", 1)}
)
_CONTROL = re.compile(r"C-([a-z@\[\\\]^_])", re.IGNORECASE)
_META = re.compile(r"M-([!-~])")
NAMES = (*_FIXED, *_ARROWS, "C-a ... C-z", "M-a ... M-z")
"""Names for people and prompts."""


def is_key(text: str) -> bool:
    """Whether `text` names a key; anything else is typed as it is."""
    return _named(text, application=False) is not None


def bytes_of(keys: Iterable[str], *, application: bool) -> bytes:
    """What a keyboard sends for keys and texts.

    Args:
        application: Whether the program has asked for the arrows' other form.
    """
    found = ((key, _named(key, application=application)) for key in keys)
    return "".join(key if named is None else named for key, named in found).encode("utf-8", "replace")


def _named(key: str, *, application: bool) -> str | None:
    if key in _ARROWS:
        return f"\x1b{'O' if application else '['}{_ARROWS[key]}"
    if control := _CONTROL.fullmatch(key):
        return chr(ord(control[1].upper()) & 0x1F)
    if meta := _META.fullmatch(key):
        return f"\x1b{meta[1]}"
    return _FIXED.get(key)
