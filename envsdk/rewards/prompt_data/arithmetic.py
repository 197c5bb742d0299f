"""Arithmetic that the tiny policy can learn, as rows in ROLL's format, with two tags and three difficulties:

    sums          3+8+4=                     3+8=11 11+4=15 \\boxed{15}
    comparisons   Largest? A 37 B 52 C 12    \\boxed{B}

No prompt is in both splits.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

from envsdk.rewards.prompt_data.generated_rows import drawn_rows


def arithmetic_rows(split: str, num_rows: int) -> Iterator[dict[str, Any]]:
    """Rows of `train` or `val`."""
    return drawn_rows("arithmetic", _KINDS, split, num_rows)


def _sum(rng: random.Random, difficulty: int) -> dict[str, Any]:
    """Three to five numbers, added one after the other."""
    terms = [rng.randint(1, 9) for _ in range(difficulty + 2)]
    solution = _worked_sum(terms)
    slips = (_worked_sum(terms, slip_at=i, slip=by) for i in range(1, len(terms)) for by in (-2, -1, 1, 2))
    return {
        "prompt": "+".join(map(str, terms)) + "=",
        "ground_truth": str(sum(terms)),
        "solution": solution,
        "mistakes": [text for text in dict.fromkeys(slips) if text != solution],
    }


def _worked_sum(terms: list[int], *, slip_at: int = 0, slip: int = 0) -> str:
    total, steps = terms[0], []
    for index, term in enumerate(terms[1:], start=1):
        after = total + term + (slip if index == slip_at else 0)
        steps.append(f"{total}+{term}={after}")
        total = after
    return " ".join([*steps, _boxed(total)])


def _comparison(rng: random.Random, difficulty: int) -> dict[str, Any]:
    """The largest of two to four numbers of two digits."""
    numbers = rng.sample(range(10, 100), difficulty + 1)
    letters = "ABCD"[: len(numbers)]
    largest = letters[numbers.index(max(numbers))]
    choices = " ".join(f"{letter} {number}" for letter, number in zip(letters, numbers, strict=True))
    return {
        "prompt": f"Largest? {choices}",
        "ground_truth": largest,
        "solution": _boxed(largest),
        "mistakes": [_boxed(letter) for letter in letters if letter != largest],
    }


def _boxed(answer: object) -> str:
    return f"\\boxed{{{answer}}}"


_KINDS = {"sums": _sum, "comparisons": _comparison}
