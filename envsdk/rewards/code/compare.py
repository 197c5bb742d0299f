"""What a program printed or returned against what is expected; pure."""

from __future__ import annotations

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
