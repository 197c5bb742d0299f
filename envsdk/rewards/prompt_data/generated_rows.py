"""What generated rows have in common: ROLL's format, and the split by the prompt."""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Callable, Iterator, Mapping
from typing import Any


def is_held_out(prompt: str, one_in: int) -> bool:
    """Whether the prompt belongs to the validation rows; one in so many does."""
    return hashlib.sha256(prompt.encode()).digest()[0] % one_in == 0


def generated_row(*, tag: str, prompt: str, **fields: Any) -> dict[str, Any]:
    """A row with the columns of ROLL's, those that are not given empty."""
    return {
        "id": f"{tag}-{prompt}",
        "source": "generated",
        "difficulty": 1,
        "prompt": prompt,
        "messages": json.dumps([{"role": "user", "content": prompt}]),
        "ground_truth": "",
        "case_type": "",
        "test_case_function": "",
        "test_cases": "",
        "tag": tag,
        **fields,
    }


def drawn_rows(
    name: str,
    kinds: Mapping[str, Callable[[random.Random, int], dict[str, Any]]],
    split: str,
    num_rows: int,
    *,
    held_out: int = 16,
) -> Iterator[dict[str, Any]]:
    """Rows of `train` or `val`: tags take turns, and so do difficulties, as long as there are prompts left.

    `kinds` has a function for each tag, which draws a row of a difficulty from 1 to 3. One prompt in
    `held_out` is of `val`.
    """
    rng = random.Random(f"{name} {split}")
    seen: set[str] = set()
    for number in range(num_rows):
        tag = list(kinds)[number % len(kinds)]
        difficulty = 1 + number // len(kinds) % 3
        while True:
            row = kinds[tag](rng, difficulty)
            if row["prompt"] not in seen and is_held_out(row["prompt"], held_out) == (split == "val"):
                break
            # Easy prompts are few: a harder one takes the place of one that was drawn before.
            difficulty = rng.randint(1, 3)
        seen.add(row["prompt"])
        yield generated_row(tag=tag, id=f"{name}-{split}-{number}", difficulty=difficulty, **row)
