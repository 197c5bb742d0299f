"""Prices and goals of a store, from its products: drawn, weighted and put into upstream's order.

    products -> goals in the order of the catalogue -> weights -> order -> files of the store

What grows with the catalogue is in files of the work folder: goals and attributes one behind the other,
read in pieces, and the order, of 4 bytes per goal, by mmap.
"""

from __future__ import annotations

import math
import mmap
import random
import struct
from array import array
from collections import Counter
from collections.abc import Callable, Iterator, MutableSequence
from contextlib import ExitStack
from itertools import islice
from pathlib import Path
from typing import Self, cast

import numpy as np
from numpy.typing import NDArray

from envsdk.envs.webshop.columns import PIECE, ColumnWriter, read_pieces, write_values
from envsdk.envs.webshop.goals import (
    DrawnGoal,
    GoalKind,
    human_goals,
    num_combinations,
    shuffle,
    synthetic_goals,
)
from envsdk.envs.webshop.product_files import read_pricing, read_records
from envsdk.envs.webshop.store import GOAL_DTYPE, GOALS, PRICES, PRODUCTS, decode_product

_BLOCK = 1 << 18
"""Goals that are put into order at a time; each time all goals are read."""
_SETS = 1024
"""Products whose goals are weighed at a time."""
_KINDS: tuple[GoalKind, ...] = ("human", "synthetic")
_GOAL = struct.Struct("<IIdd")
_SET = np.dtype([("num_goals", "<u4"), ("num_attributes", "<u4")])


def _packed(goal: DrawnGoal) -> bytes:
    """As `GOAL_DTYPE` has it, with the weight 1 in place of the sum."""
    return _GOAL.pack(goal.product, goal.variant, goal.price_upper, 1.0)


class _AttributeSets:
    """The attributes of each product's synthetic goals, as numbers, to weigh them once all are counted.

    In `sets` there is an entry per product, in `members` a number per attribute of each.
    """

    def __init__(self, folder: Path) -> None:
        self._sets, self._members = folder / "attribute_sets.u32", folder / "attributes.u32"
        self._files = [path.open("wb") for path in (self._sets, self._members)]
        self._counts: Counter[int] = Counter()
        self._ids: dict[str, int] = {}

    def add(self, attributes: tuple[str, ...], num_goals: int) -> None:
        ids = [self._ids.setdefault(attribute, len(self._ids)) for attribute in attributes]
        for number in ids:
            self._counts[number] += num_goals
        sets, members = self._files
        sets.write(array("I", (num_goals, len(ids))).tobytes())
        members.write(array("I", ids).tobytes())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for file in self._files:
            file.close()

    def weights(self) -> Iterator[NDArray[np.float64]]:
        """Weights of every goal, the goals of some products at a time."""
        with self._members.open("rb") as members:
            for sets in read_pieces(self._sets, _SET, _SETS):
                ids: list[int] = np.fromfile(members, np.uint32, int(sets["num_attributes"].sum())).tolist()
                weights, start = [], 0
                for length in sets["num_attributes"].tolist():
                    counts = (self._counts[number] for number in ids[start : start + length])
                    shares = [1.0 / count for count in counts if count]
                    weights.append(sum(shares) / length if length else 0.0)
                    start += length
                yield np.repeat(weights, sets["num_goals"])


def write_goals(folder: Path, *, seed: int, tell: Callable[[str, float], None]) -> dict[str, int]:
    """Write the prices and the goals of the products in `folder`; returns the number of goals by kind."""
    rng = random.Random(seed)
    num_products = _write_prices(folder, rng)
    draws = {kind: random.Random() for kind in _KINDS}
    for draw in draws.values():
        draw.setstate(rng.getstate())
    drawn = {kind: folder / f"goals_{kind}.drawn" for kind in _KINDS}
    with ExitStack() as stack:
        human, synthetic = (stack.enter_context(drawn[kind].open("wb")) for kind in _KINDS)
        attributes = stack.enter_context(_AttributeSets(folder))
        # The same seed draws the same prices again.
        prices = _prices(folder, random.Random(seed))
        for index, (record, price) in enumerate(zip(read_records(folder, PRODUCTS), prices, strict=True)):
            if index % 1000 == 0:
                tell("goals", index / num_products)
            product = decode_product(record)
            human.writelines(map(_packed, human_goals(index, product, price, draws["human"])))
            if product.instruction is not None:
                attributes.add(product.instruction_attributes, num_combinations(product))
            synthetic.writelines(map(_packed, synthetic_goals(index, product, price, draws["synthetic"])))
    weighted = folder / "goals_synthetic.weighted"
    write_values(weighted, _with_weights(drawn["synthetic"], attributes.weights()))
    drawn["synthetic"].unlink()
    tell("order of goals", 0.0)
    return {
        "human": _write_in_order(folder / GOALS["human"], drawn["human"]),
        "synthetic": _write_in_order(folder / GOALS["synthetic"], weighted),
    }


def _prices(folder: Path, rng: random.Random) -> Iterator[float]:
    for low, high in read_pricing(folder):
        yield low if math.isnan(high) else rng.uniform(low, high)


def _write_prices(folder: Path, rng: random.Random) -> int:
    """Returns the number of products."""
    num_products = 0
    prices = _prices(folder, rng)
    with ColumnWriter(folder / PRICES, np.float64) as column:
        while len(piece := np.fromiter(islice(prices, PIECE), np.float64)):
            column.append(piece)
            num_products += len(piece)
    return num_products


def _with_weights(drawn: Path, weights: Iterator[NDArray[np.float64]]) -> Iterator[NDArray[np.void]]:
    with drawn.open("rb") as file:
        for piece in weights:
            goals = np.fromfile(file, GOAL_DTYPE, len(piece))
            goals["cumulative"] = piece
            yield goals


def _write_in_order(out: Path, path: Path) -> int:
    """Write the goals of `path` in upstream's order, with the sums of their weights; returns their number."""
    num_goals = path.stat().st_size // GOAL_DTYPE.itemsize
    order = path.with_suffix(".order")
    total = 0.0
    # Nothing cannot be mapped: without goals there is one that nobody asks for.
    with ColumnWriter(out, GOAL_DTYPE, min_length=1) as column:
        if num_goals:
            _write_order(order, num_goals)
            for places in read_pieces(order, np.uint32, _BLOCK):
                goals = _take(path, places)
                goals["cumulative"][0] += total
                goals["cumulative"] = np.cumsum(goals["cumulative"])
                total = float(goals["cumulative"][-1])
                column.append(goals)
            order.unlink()
    path.unlink()
    return num_goals


def _write_order(path: Path, num_goals: int) -> None:
    """For each position of the shuffled goals the position before."""
    starts = range(0, num_goals, PIECE)
    write_values(path, (np.arange(start, min(start + PIECE, num_goals), dtype=np.uint32) for start in starts))
    with (
        path.open("r+b") as file,
        mmap.mmap(file.fileno(), 0) as mapped,
        memoryview(mapped) as view,
        view.cast("I") as order,
    ):
        shuffle(cast(MutableSequence[int], order))


def _take(path: Path, places: NDArray[np.uint32]) -> NDArray[np.void]:
    """The goals at these places of a file, read front to back."""
    order = np.argsort(places, kind="stable")
    ascending = places[order]
    taken = np.empty(len(places), GOAL_DTYPE)
    start = 0
    for piece in read_pieces(path, GOAL_DTYPE):
        first, last = np.searchsorted(ascending, (start, start + len(piece)))
        taken[order[first:last]] = piece[ascending[first:last] - start]
        start += len(piece)
    return taken
