"""Arithmetic in English sentences for a small pretrained language model, as rows in ROLL's format:

    sums        What is 47 - 19? Answer with one number.
    stories     Mia has 15 shells. Mia gives 4 to Leo. How many shells does Mia have now? Answer with ...

The difficulty of a row, 1 to 3, is the number of its operations. No prompt is in both splits.
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
_MOST = 60
"""No number on the way to an answer is larger."""


def word_problem_rows(split: str, num_rows: int) -> Iterator[dict[str, Any]]:
    """Rows of `train` or `val`."""
    return drawn_rows("word problems", _KINDS, split, num_rows)


def _sum(rng: random.Random, difficulty: int) -> dict[str, Any]:
    """Up to three numbers added or subtracted."""
    total = rng.randint(2, 50)
    text = str(total)
    for _ in range(difficulty):
        change = _change(rng, total, at_most=30)
        total += change
        text += f" {'+' if change > 0 else '-'} {abs(change)}"
    return {"prompt": f"What is {text}? Answer with one number.", "ground_truth": str(total)}


def _story(rng: random.Random, difficulty: int) -> dict[str, Any]:
    """Somebody has things, in a few holders or loose, and gains and loses some."""
    name, other = rng.sample(_NAMES, 2)
    things = rng.choice(_THINGS)
    if rng.random() < 0.5:
        num_holders, each = rng.randint(2, 5), rng.randint(2, 9)
        total, num_changes = num_holders * each, difficulty - 1
        sentences = [f"{name} has {num_holders} {rng.choice(_HOLDERS)} with {each} {things} in each."]
    else:
        total, num_changes = rng.randint(3, 30), difficulty
        sentences = [f"{name} has {total} {things}."]
    for _ in range(num_changes):
        change = _change(rng, total, at_most=20)
        total += change
        said = rng.choice(_GAINS if change > 0 else _LOSSES)
        sentences.append(said.format(name=name, other=other, n=abs(change)))
    question = f"How many {things} does {name} have now? Answer with one number."
    return {"prompt": " ".join([*sentences, question]), "ground_truth": str(total)}


def _change(rng: random.Random, total: int, *, at_most: int) -> int:
    """A gain or a loss of `total`, never 0, that leaves a positive number of at most `_MOST`."""
    gain, loss = min(at_most, _MOST - total), min(at_most, total - 1)
    change = rng.randint(1, gain + loss)
    return change if change <= gain else gain - change


_KINDS = {"sums": _sum, "stories": _story}
