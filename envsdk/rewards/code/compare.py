"""What a program printed or returned against what is expected; pure."""

from __future__ import annotations

import json
import math
import re
from typing import Any

_INTEGER = re.compile(r"[+-]?[0-9]+")
_EXACT_FLOATS = 1 << 53


def same_output(printed: str, expected: str, tolerance: float) -> bool:
    """Whether both have the same words; those that are numbers with a fraction may differ by `tolerance`,
    relative and absolute."""
    ours, theirs = printed.split(), expected.split()
    return len(ours) == len(theirs) and all(map(_same_word, ours, theirs, [tolerance] * len(ours)))


def _same_word(ours: str, theirs: str, tolerance: float) -> bool:
    if ours == theirs:
        return True
    try:
        number, wanted = float(ours), float(theirs)
    except ValueError:
        return False
    if not (math.isfinite(number) and math.isfinite(wanted)):
        return False
    if _INTEGER.fullmatch(theirs):
        # A float is right about an integer only where it can tell that integer from the next.
        return not _INTEGER.fullmatch(ours) and number == wanted and abs(wanted) < _EXACT_FLOATS
    return math.isclose(number, wanted, rel_tol=tolerance, abs_tol=tolerance)


def same_value(returned: Any, expected: Any, tolerance: float) -> bool:
    """Whether a returned value is the one that JSON has: tuples count as lists, keys as their texts.

    Some data sets put what is expected into a list of one.
    """
    if _same(returned, expected, tolerance):
        return True
    return isinstance(expected, list) and len(expected) == 1 and _same(returned, expected[0], tolerance)


def _same(ours: Any, theirs: Any, tolerance: float) -> bool:
    if isinstance(ours, list | tuple) and isinstance(theirs, list | tuple):
        return len(ours) == len(theirs) and all(map(_same, ours, theirs, [tolerance] * len(ours)))
    if isinstance(ours, dict) and isinstance(theirs, dict):
        by_text, wanted = ({str(key): value for key, value in each.items()} for each in (ours, theirs))
        return by_text.keys() == wanted.keys() and all(
            _same(by_text[key], value, tolerance) for key, value in wanted.items()
        )
    if isinstance(ours, bool) != isinstance(theirs, bool):
        return False
    if isinstance(ours, float) or isinstance(theirs, float):
        if not (isinstance(ours, int | float) and isinstance(theirs, int | float)):
            return False
        if isinstance(theirs, int) and abs(theirs) >= _EXACT_FLOATS:
            return False
        return ours == theirs or (
            isinstance(theirs, float) and math.isclose(ours, theirs, rel_tol=tolerance, abs_tol=tolerance)
        )
    return bool(ours == theirs)


MOST_BYTES = 16 << 20
"""Size of the text of one value."""
_MOST_DIGITS = 4000
"""Digits of an integer; Python itself does not print those with more than 4300."""


class Unreadable(ValueError):
    """The text is no value that can be compared; the message completes "returned"."""


def read_value(text: bytes) -> Any:
    """The value out of the JSON that a program's process wrote. Raises Unreadable.

    The program may have written the text itself. Reading it takes time and memory in proportion to its size,
    whatever it says.
    """
    if len(text) > MOST_BYTES:
        raise Unreadable(f"a value of more than {MOST_BYTES >> 20} MB")
    try:
        return json.loads(text, parse_int=_integer)
    except Unreadable:
        raise
    except RecursionError:
        raise Unreadable("a value of too many levels") from None
    except ValueError as error:
        raise Unreadable(f"what is no value: {type(error).__name__}") from error


def _integer(digits: str) -> int:
    if len(digits) > _MOST_DIGITS:
        raise Unreadable(f"an integer of more than {_MOST_DIGITS} digits")
    return int(digits)
