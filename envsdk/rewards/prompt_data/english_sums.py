"""Arithmetic in English, for models that can read: three difficulties, which are the rows' tags.

    easy      What is 7 plus 12?
    medium    What is 47 minus 18 plus 36?
    hard      What is 36 times 7 minus 148?

No prompt is in both splits.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

from envsdk.rewards.prompt_data.generated_rows import generated_row, is_held_out

LEVELS = ("easy", "medium", "hard")
_HELD_OUT = 4
"""One prompt in so many belongs to the validation rows."""


def english_sum_rows(split: str, num_rows: int) -> Iterator[dict[str, Any]]:
    """`num_rows` rows of each difficulty, for `train` or `val`."""
    rng = random.Random(f"english sums {split}")
    for difficulty, level in enumerate(LEVELS, start=1):
        rows: dict[str, int] = {}
        while len(rows) < num_rows:
            text, value = _term(rng, difficulty)
            prompt = f"What is {text}?"
            if value >= 0 and is_held_out(prompt, _HELD_OUT) == (split == "val"):
                rows[prompt] = value
        for prompt, value in rows.items():
            yield generated_row(tag=level, prompt=prompt, difficulty=difficulty, ground_truth=str(value))


def _term(rng: random.Random, difficulty: int) -> tuple[str, int]:
    """A term in words, and its value."""
    if difficulty == 3:
        first, factor = rng.randint(11, 99), rng.randint(3, 9)
        text, value, numbers = f"{first} times {factor}", first * factor, [rng.randint(101, 499)]
    else:
        largest = 20 if difficulty == 1 else 99
        first, *numbers = (rng.randint(1, largest) for _ in range(1 + difficulty))
        text, value = str(first), first
    for number in numbers:
        word, sign = rng.choice((("plus", 1), ("minus", -1)))
        text, value = f"{text} {word} {number}", value + sign * number
    return text, value
