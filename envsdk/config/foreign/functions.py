"""Conditions and conversions that the tables of several dialects name.

Each is called with the value, its `Place`, and the arguments that the row gives.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from envsdk.base.settings.nearest import nearest
from envsdk.config.foreign.row import Place


def equals(value: Any, place: Place, *wanted: Any) -> bool:
    """Whether it is one of these."""
    return value in wanted


def is_null(value: Any, place: Place, *words: Any) -> bool:
    """Whether it is null, or one of the words that mean the same."""
    return value is None or value in words


def is_set(value: Any, place: Place) -> bool:
    return bool(value)


def is_integer(value: Any, place: Place) -> bool:
    return type(value) is int


def is_section(value: Any, place: Place) -> bool:
    return isinstance(value, Mapping)


def has_no(value: Any, place: Place, name: str) -> bool:
    """Whether the value is a section without this key, or a misspelling of it."""
    return isinstance(value, Mapping) and nearest(name, map(str, value)) is None


def starts_with(value: Any, place: Place, prefix: str) -> bool:
    return isinstance(value, str) and value.startswith(prefix)


def matches(value: Any, place: Place, pattern: str) -> bool:
    """Whether the value, as text, has a match of this regular expression."""
    return re.search(pattern, str(value)) is not None


def at(value: Any, place: Place, key: str, *words: Any) -> bool:
    """Whether the file has one of these values at a dotted key."""
    return place.get(*key.split(".")) in words


def at_or_absent(value: Any, place: Place, key: str, *words: Any) -> bool:
    """The same, or nothing there."""
    return place.get(*key.split(".")) in (None, *words)


def lacks(value: Any, place: Place, *path: str) -> bool:
    """Whether the file has nothing at `path`."""
    return not place.get(*path)


def same_as(value: Any, place: Place, *path: str) -> bool:
    return bool(value == place.get(*path))


def beside(value: Any, place: Place, name: str, usual: Any) -> bool:
    """Whether the key of this name in the same section has its usual value, or is absent."""
    return bool(place.beside(name, default=usual) == usual)


def put(value: Any, place: Place, key: str) -> Mapping[str, Any]:
    """The value under a key of ours."""
    return {key: value}


def put_constant(value: Any, place: Place, key: str, constant: Any = None) -> Mapping[str, Any]:
    """A value of ours, whatever theirs is; null unless it is given."""
    return {key: constant}


def put_if(value: Any, place: Place, key: str, on: Any, off: Any) -> Mapping[str, Any]:
    """A value of ours where theirs is on, and another where it is off."""
    return {key: on if value else off}


def put_word(value: Any, place: Place, key: str, words: Mapping[str, str]) -> Mapping[str, Any]:
    """The value in our words, where they are others."""
    return {key: words.get(value, value)}
