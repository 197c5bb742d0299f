"""What the shopper is asked to buy: goals of people's instructions, and synthetic ones.

Prices are drawn once, when a store is built: first the price of every product that has a range, in the
order of the catalogue, then two candidates per goal, of which the larger is its limit. The goals are
then shuffled by `random.Random(233)`, as upstream does: their order depends on their number alone.
"""

from __future__ import annotations

import random
from bisect import bisect_right
from collections.abc import Iterator, MutableSequence
from dataclasses import dataclass
from math import prod
from typing import Any, Literal

from envsdk.envs.webshop.products import Product

GoalKind = Literal["human", "synthetic"]
Split = Literal["all", "test", "eval", "train", "held_out", "rest"]

PRICE_RANGE = tuple(10.0 * step for step in range(1, 100))
NO_LIMIT = 1_000_000.0
ORDER_SEED = 233
PRICE_SEED = 20240607


@dataclass(frozen=True, slots=True, kw_only=True)
class Goal:
    """What one episode is about."""

    product: int
    """Position of the product in the catalogue."""
    wanted: Product
    text: str
    """The instruction, with the limit of the price."""
    attributes: tuple[str, ...]
    options: tuple[str, ...] | dict[str, str]
    """Values that people asked for; of a synthetic goal, by option name."""
    price_upper: float
    """Dollars."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DrawnGoal:
    """All of a goal that is not in its product."""

    product: int
    variant: int
    """Which of the product's human instructions, or which combination of its option values."""
    price_upper: float


def draw_price_upper(price: float, rng: random.Random) -> float:
    """The limit of a goal whose product costs `price`: `NO_LIMIT` when it is dearer than nearly all."""
    first = bisect_right(PRICE_RANGE, price)
    candidates = PRICE_RANGE[first : first + 4]
    return max(rng.sample(candidates, 2)) if len(candidates) >= 2 else NO_LIMIT


def human_goals(index: int, product: Product, price: float, rng: random.Random) -> Iterator[DrawnGoal]:
    """One goal per instruction that names an attribute."""
    for variant, instruction in enumerate(product.human):
        if instruction.attributes:
            yield DrawnGoal(product=index, variant=variant, price_upper=draw_price_upper(price, rng))


def synthetic_goals(index: int, product: Product, price: float, rng: random.Random) -> Iterator[DrawnGoal]:
    """One goal per combination of option values, all with one limit."""
    if product.instruction is not None:
        limit = draw_price_upper(price, rng)
        for variant in range(num_combinations(product)):
            yield DrawnGoal(product=index, variant=variant, price_upper=limit)


def num_combinations(product: Product) -> int:
    return prod(len(values) for values in product.options.values())


def combination(product: Product, variant: int) -> dict[str, str]:
    """The option values of one synthetic goal: names in alphabetic order, the last varying fastest."""
    names = sorted(product.options)
    chosen = {}
    for name in reversed(names):
        variant, position = divmod(variant, len(product.options[name]))
        chosen[name] = product.options[name][position]
    return {name: chosen[name] for name in names}


def make_goal(kind: GoalKind, drawn: DrawnGoal, product: Product) -> Goal:
    """All of the goal."""
    limit = drawn.price_upper
    price_text = "" if limit == NO_LIMIT else f", and price lower than {limit:.2f} dollars"
    options: tuple[str, ...] | dict[str, str]
    if kind == "human":
        instruction = product.human[drawn.variant]
        text, attributes, options = instruction.text.strip("."), instruction.attributes, instruction.options
    else:
        assert product.instruction is not None
        options = combination(product, drawn.variant)
        wish = ", and ".join(f"{name}: {value}" for name, value in options.items())
        text = product.instruction + (f" with {wish}" if wish else "")
        attributes = product.instruction_attributes
    return Goal(
        product=drawn.product,
        wanted=product,
        text=text + price_text,
        attributes=attributes,
        options=options,
        price_upper=limit,
    )


def shuffle(goals: MutableSequence[Any]) -> None:
    """Put goals into upstream's order."""
    random.Random(ORDER_SEED).shuffle(goals)


def split_bounds(split: Split, num_goals: int) -> tuple[int, int]:
    """First and last (exclusive) position of a split; ValueError when it has no goal.

    `test`, `eval` and `train` are upstream's, for the official data. Smaller catalogues can be split into
    `held_out`, the first fifth, and `rest`.
    """
    fifth = num_goals // 5
    start, stop = {
        "all": (0, num_goals),
        "test": (0, 500),
        "eval": (500, 1500),
        "train": (1500, num_goals),
        "held_out": (0, fifth),
        "rest": (fifth, num_goals),
    }[split]
    stop = min(stop, num_goals)
    if start >= stop:
        raise ValueError(f"split: {split!r} starts at goal {start}, and there are only {num_goals} goals")
    return start, stop
