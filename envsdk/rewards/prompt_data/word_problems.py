"""Arithmetic in English sentences for a small pretrained language model, as rows in ROLL's format:

    sums        What is 47 - 19? Answer with one number.
    stories     Mia has 15 shells. Mia gives 4 to Leo. How many shells does Mia have now? Answer with ...

Difficulties 1 and 2 have one operation, on numbers up to 20 and up to 60; 3 has two, up to 20. No prompt is
in both splits.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

from envsdk.rewards.prompt_data.generated_rows import drawn_rows

_NAMES = ("Mia", "Leo", "Anna", "Tom", "Sara", "Ben", "Nina", "Paul", "Ella", "Max")
_THINGS = (
    "apples",
    "marbles",
    "stickers",
    "books",
    "coins",
    "shells",
    "pencils",
    "cards",
    "buttons",
    "stamps",
)
_HOLDERS = ("bags", "boxes", "baskets", "jars")
_GAINS = ("{other} gives {name} {n} more.", "{name} finds {n} more.", "{name} buys {n} more.")
_LOSSES = ("{name} gives {n} to {other}.", "{name} loses {n}.", "{name} sells {n}.")
_LEVELS = ((1, 20), (1, 60), (2, 20))
"""Operations, and the largest number on the way to an answer."""


def word_problem_rows(split: str, num_rows: int) -> Iterator[dict[str, Any]]:
    """Rows of `train` or `val`."""
    return drawn_rows("word problems", _KINDS, split, num_rows)


def _sum(rng: random.Random, difficulty: int) -> dict[str, Any]:
    """Numbers added and subtracted."""
    num_changes, largest = _LEVELS[difficulty - 1]
    total = rng.randint(2, largest)
    text = str(total)
    for _ in range(num_changes):
        change = _change(rng, total, largest)
        total += change
        text += f" {'+' if change > 0 else '-'} {abs(change)}"
    return {"prompt": f"What is {text}? Answer with one number.", "ground_truth": str(total)}


def _story(rng: random.Random, difficulty: int) -> dict[str, Any]:
    """Somebody has things, in a few holders or loose, and gains and loses some."""
    num_changes, largest = _LEVELS[difficulty - 1]
    name, other = rng.sample(_NAMES, 2)
    things = rng.choice(_THINGS)
    if rng.random() < 0.5:
        num_holders = rng.randint(2, 5)
        each = rng.randint(2, min(9, largest // num_holders))
        total, num_changes = num_holders * each, num_changes - 1
        sentences = [f"{name} has {num_holders} {rng.choice(_HOLDERS)} with {each} {things} in each."]
    else:
        total = rng.randint(2, largest)
        sentences = [f"{name} has {total} {things}."]
    for _ in range(num_changes):
        change = _change(rng, total, largest)
        total += change
        said = rng.choice(_GAINS if change > 0 else _LOSSES)
        sentences.append(said.format(name=name, other=other, n=abs(change)))
    question = f"How many {things} does {name} have now? Answer with one number."
    return {"prompt": " ".join([*sentences, question]), "ground_truth": str(total)}


def _change(rng: random.Random, total: int, largest: int) -> int:
    """A gain or a loss, never 0, that leaves of `total` a number from 1 to `largest`."""
    change = rng.randint(1 - total, largest - total - 1)
    return change if change < 0 else change + 1


_KINDS = {"sums": _sum, "stories": _story}
