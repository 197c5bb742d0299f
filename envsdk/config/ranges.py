"""`list(range(0,4))`, read without being executed."""

from __future__ import annotations

import re
from typing import Any

_INTEGER = r"\s*([+-]?\d{1,9})\s*"
_RANGE = re.compile(
    rf"\s*list\s*\(\s*range\s*\({_INTEGER}(?:,{_INTEGER}(?:,{_INTEGER})?)?,?\s*\)\s*\)\s*", re.ASCII
)
_LISTED = re.compile(r"\s*list\s*\(\s*\[\s*(\d{1,9}(?:\s*,\s*\d{1,9})*)\s*\]\s*\)\s*", re.ASCII)

MAX_INDICES = 1 << 20
"""Longer lists are a slip of the keyboard, not a cluster."""


def parse_index_list(value: Any) -> Any:
    """A list for `list(range(stop))`, `list(range(start, stop))`, `list(range(start, stop, step))` and
    `list([0, 1, 6, 7])`.

    Any other string is an error; what is no string is returned as it is, for the type to judge.

    >>> parse_index_list("list(range(0, 8, 2))")
    [0, 2, 4, 6]
    """
    if not isinstance(value, str):
        return value
    listed = _LISTED.fullmatch(value)
    if listed is not None:
        return [int(each) for each in listed[1].split(",")]
    match = _RANGE.fullmatch(value)
    if match is None:
        raise ValueError("write [0, 1, 2, 3] or list(range(0,4)); nothing else is evaluated")
    arguments = [int(group) for group in match.groups() if group is not None]
    if len(arguments) == 3 and arguments[2] == 0:
        raise ValueError("the step of range() is 0")
    indices = range(*arguments)
    if not 0 < len(indices) <= MAX_INDICES:
        raise ValueError(f"range() holds {len(indices)} numbers; 1 to {MAX_INDICES} are fine")
    return list(indices)
