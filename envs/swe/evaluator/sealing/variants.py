"""Other constants among which the one of a test is nothing special.

    kin(17) --> [..., 14, 16, 17, 18, 19, ...]     neighbors as round as it
    a block of these by chance, a window of the block by chance --> [16, 18, 19]

Each member of a window could have been the original with the same chance: blocks do not depend on it, and any
other is in as many windows of its block. So neither size, place, digits nor words tell it.
"""

from __future__ import annotations

import ast
import random
import re
from bisect import bisect_left
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import TypeVar

Constant = int | float | str | bool
_T = TypeVar("_T")

NUM_ALTERNATIVES = 3
_BLOCK = 8
_TAIL = 1000
"""The last three digits of a long number that are no zeros are varied."""
_MAX_DIGITS = 15
_MIN_POWER, _MAX_POWER = 5, 20
_POWERS = tuple(1 << power for power in range(_MIN_POWER, _MAX_POWER))
_DIGITS = re.compile(r"\d+")
_WORD = re.compile(r"(?<![^\W_])[^\W\d_]+(?![^\W_])")


def constants(node: ast.AST) -> list[ast.Constant]:
    """Numbers, texts and truths in `node`."""
    return [
        found
        for found in ast.walk(node)
        if isinstance(found, ast.Constant) and type(found.value) in (int, float, str, bool)
    ]


def alternatives(value: Constant, source: random.Random) -> list[Constant]:
    """Up to three other values of the kind of `value`, so that which of them is the original cannot be told.

    None where there is no such kind: nothing would hide an empty text or a rare word.
    """
    if isinstance(value, bool):
        return [not value]
    if isinstance(value, int):
        sign = -1 if value < 0 else 1
        return [sign * other for other in _numbers(abs(value), source, least=value < 0)]
    if isinstance(value, float):
        text = repr(value)
        return [] if "e" in text or "n" in text else [float(other) for other in _texts(text, source)]
    return list(_texts(value, source))


def _texts(text: str, source: random.Random) -> list[str]:
    """`text` with another number or word in one place."""
    runs = list(_DIGITS.finditer(text))
    words = list(_WORD.finditer(text))
    if len(words) > 1 or (words[0:1] and words[0][0].lower() not in _kinds()):
        words = []  # a phrase is known as such
    # A fraction of zeros would be the roundest of all.
    found = [run for run in runs if run[0].strip("0") or (run[0] == "0" and not _is_fraction(run))]
    found = found if runs else words
    if not found:
        return []
    place = source.choice(found)
    old, others = place[0], list[str]()
    if runs:
        is_padded = any(run[0] != "0" and run[0].startswith("0") for run in runs)
        width = len(old) if is_padded else None
        numbers = _numbers(int(old), source, least=_is_fraction(place), width=width)
        others = [f"{number:0{len(old)}d}" for number in numbers]
    else:
        word = old.lower()
        # Kinds begin with the most usual words; the next ones are about as usual.
        others = [_as(old, other) for other in _window(_kinds()[word], word, source, NUM_ALTERNATIVES + 1)]
    return [text[: place.start()] + other + text[place.end() :] for other in others]


def _is_fraction(run: re.Match[str]) -> bool:
    return run.string[: run.start()].endswith(".")


def _as(word: str, other: str) -> str:
    """`other` in the letters, small or capital, of `word`."""
    return other.upper() if word.isupper() else other.capitalize() if word[0].isupper() else other


def _numbers(value: int, source: random.Random, *, least: int = 0, width: int | None = None) -> list[int]:
    """Other whole numbers as long and as round as `value`, which is not negative.

    Args:
        width: Digits, with zeros before them.
    """
    num_digits = len(str(value))
    if num_digits > _MAX_DIGITS:
        return []
    if value >= 1 << _MIN_POWER and value & (value - 1) == 0:
        return _window(_POWERS, value, source)
    scale = 1
    while value and value % (scale * 10) == 0:
        scale *= 10
    head, tail = divmod(value // scale, _TAIL)
    kin = _kin(head * _TAIL, _roundness(tail), scale)
    if num_digits > 1 and not width:
        least = 10 ** (num_digits - 1)
    elif width and width > 1:
        least = 1
    return _window(
        kin[bisect_left(kin, least) : bisect_left(kin, 10 ** (width or num_digits))], value, source
    )


@lru_cache(maxsize=256)
def _kin(head: int, roundness: int, scale: int) -> tuple[int, ...]:
    tails = [tail for tail in range(scale > 1, _TAIL) if _roundness(tail) == roundness]
    return tuple((head + tail) * scale for tail in tails)


def _roundness(number: int) -> int:
    """1 for a number of one digit, else the largest of these that divides it."""
    return 1 if number < 10 else next(step for step in (10, 5, 1) if number % step == 0)


def _window(kin: Sequence[_T], value: _T, source: random.Random, block: int = _BLOCK) -> list[_T]:
    """The rest of a window with `value` in a ring that is a block of `kin`."""
    if value not in kin:
        return []
    size = NUM_ALTERNATIVES + 1
    starts = [0, *range(size + source.randrange(block), len(kin), block)]
    if len(starts) > 1 and len(kin) - starts[-1] < size:
        starts.pop()
    place = kin.index(value)
    start = max(start for start in starts if start <= place)
    ring = kin[start : min((start for start in starts if start > place), default=len(kin))]
    size = min(size, len(ring))
    first = place - start - source.randrange(size)
    window = [ring[(first + step) % len(ring)] for step in range(size)]
    return [other for other in window if other != value]


@lru_cache(maxsize=1)
def _kinds() -> dict[str, Sequence[str]]:
    """The words among which a word is one of many, by word; each word is of one kind."""
    found: dict[str, Sequence[str]] = {}
    for line in Path(__file__).with_name("words.txt").read_text(encoding="utf-8").splitlines():
        kind = [word for word in dict.fromkeys(line.split()) if word not in found]
        found |= dict.fromkeys(kind, kind)
    return found
