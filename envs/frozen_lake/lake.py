"""The lake as a pure core: seeded maps that can be crossed, slipping, and the best way to the goal.

A cell is a position in the text of the map, whose rows end with a newline: `row * (size + 1) + column`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

_MAX_DRAWS = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Lake:
    """One map."""

    size: int
    ice: frozenset[int]
    """Cells without a hole, including start and goal."""
    start: int
    goal: int


def generate_lake(
    rng: np.random.Generator,
    *,
    size: int,
    p: float,
    max_distance: int,
    min_distance: int = 1,
    random_start: bool = False,
    random_goal: bool = False,
    detours: float = 0.0,
) -> Lake:
    """Draw a map whose shortest way from start to goal is within the two distances; with probability
    `detours`, one that holes make longer.

    Draws as `gymnasium.envs.toy_text.frozen_lake.generate_random_map` does: a fixed start and goal give
    the same map for the same seed. If no map of many draws can be crossed, a way is carved into the last one.

    Needs `1 <= min_distance <= size - size % 2` (the least distance of any cell to its farthest corner) and
    `max_distance >= 2 * (size - 1)`.
    """
    everywhere = cells(size)
    start, goal = everywhere[0], everywhere[-1]
    ice: frozenset[int] = frozenset()
    is_detour = bool(detours) and rng.random() < detours
    for _ in range(_MAX_DRAWS):
        draws = rng.random(size * size).tolist()
        if random_start or random_goal:
            start, goal = _draw_ends(rng, size, min_distance, random_start, random_goal)
        ice = frozenset(cell for cell, draw in zip(everywhere, draws, strict=True) if draw < p) | {
            start,
            goal,
        }
        least = max(min_distance, _apart(start, goal, size) + 1 if is_detour else 0)
        if least <= _distance(ice, start, goal, size) <= max_distance:
            return Lake(size=size, ice=ice, start=start, goal=goal)
    return Lake(size=size, ice=ice | _carve(rng, start, goal, size), start=start, goal=goal)


@lru_cache(maxsize=64)
def cells(size: int) -> tuple[int, ...]:
    """Every cell, row by row."""
    return tuple(row * (size + 1) + column for row in range(size) for column in range(size))


@lru_cache(maxsize=64)
def neighbors(size: int) -> Mapping[int, tuple[int, int, int, int]]:
    """For each cell, where Left, Down, Right and Up lead; a move off the edge stays in place."""

    def around(cell: int) -> tuple[int, int, int, int]:
        row, column = divmod(cell, size + 1)
        return (
            cell - 1 if column > 0 else cell,
            cell + size + 1 if row < size - 1 else cell,
            cell + 1 if column < size - 1 else cell,
            cell - size - 1 if row > 0 else cell,
        )

    return {cell: around(cell) for cell in cells(size)}


def _draw_ends(
    rng: np.random.Generator, size: int, min_distance: int, random_start: bool, random_goal: bool
) -> tuple[int, int]:
    """Start and goal at least `min_distance` apart, counted as if there were no holes."""
    everywhere = cells(size)

    def draw(candidates: Sequence[int]) -> int:
        return candidates[int(rng.random() * len(candidates))]

    def far_from(cell: int) -> list[int]:
        return [there for there in everywhere if _apart(cell, there, size) >= min_distance]

    if not random_start:
        return everywhere[0], draw(far_from(everywhere[0]))
    goal = draw(everywhere) if random_goal else everywhere[-1]
    return draw(far_from(goal)), goal


def _apart(here: int, there: int, size: int) -> int:
    """Steps of the shortest way, were there no holes."""
    (row, column), (to_row, to_column) = divmod(here, size + 1), divmod(there, size + 1)
    return abs(to_row - row) + abs(to_column - column)


def _distance(ice: frozenset[int], start: int, goal: int, size: int) -> int:
    """Steps of the shortest way, or -1."""
    around = neighbors(size)
    reached = frontier = {start}
    distance = 0
    while goal not in frontier:
        frontier = {there for cell in frontier for there in around[cell] if there in ice} - reached
        if not frontier:
            return -1
        reached = reached | frontier
        distance += 1
    return distance


def _carve(rng: np.random.Generator, start: int, goal: int, size: int) -> set[int]:
    """The cells of a random way from start to goal without detours."""
    stride = size + 1
    rows, columns = goal // stride - start // stride, goal % stride - start % stride
    steps = [stride if rows > 0 else -stride] * abs(rows) + [1 if columns > 0 else -1] * abs(columns)
    cell, way = start, {start}
    for index in rng.permutation(len(steps)).tolist():
        cell += steps[index]
        way.add(cell)
    return way


def slip(move: int, draw: float, success_rate: float) -> int:
    """The direction of a move on slippery ice: ahead with `success_rate`, else to one of the sides.

    `draw` is uniform on [0, 1); the sides come in gymnasium's order, so equal draws slip equally.
    """
    to_one_side = (1.0 - success_rate) / 2.0
    if draw < to_one_side:
        return (move - 1) % 4
    return move if draw < to_one_side + success_rate else (move + 1) % 4


def _added(terms: Iterable[float]) -> float:
    """One after the other. `sum` of Python 3.12 rounds otherwise, which would decide between equal moves."""
    total = 0.0
    for term in terms:
        total += term
    return total


@lru_cache(maxsize=64)
def best_moves(lake: Lake, success_rate: float) -> Mapping[int, int]:
    """For each cell of ice from which the goal can be reached, the move that reaches it best.

    With `success_rate` 1 the moves are those of a shortest way. Below it they maximize the
    probability of ever arriving, discounted a little so that of two sure ways the shorter wins.
    """
    around = neighbors(lake.size)
    sideways = (1.0 - success_rate) / 2.0
    chances = ((-1, sideways), (0, success_rate), (1, sideways)) if sideways else ((0, 1.0),)
    value = dict.fromkeys(around, 0.0)
    value[lake.goal] = 1.0
    best: dict[int, int] = {}
    change = 1.0
    while change > 1e-9:
        change = 0.0
        for cell in sorted(lake.ice - {lake.goal}):
            there = around[cell]
            worths = [
                0.99 * _added(chance * value[there[(move + turn) % 4]] for turn, chance in chances)
                for move in range(4)
            ]
            worth = max(worths)
            if worth > value[cell]:
                change = max(change, worth - value[cell])
                value[cell] = worth
                best[cell] = worths.index(worth)
    return best
