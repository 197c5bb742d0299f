"""The lake as a pure core: seeded maps that can be solved, how one slips, and the way to the goal.

Cells are numbered row by row with one spare number at the end of each row, where the text of
the map has its newline: cell `row * (size + 1) + column` is also a position in that text, and
sets of cells are integers whose shifts never run from one row into the next.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

_MAX_DRAWS = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Lake:
    """One map."""

    size: int
    ice: int
    """Set of cells without a hole, start and goal among them."""
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
) -> Lake:
    """Draw a map whose shortest way from start to goal is within the two distances.

    Draws as `gymnasium.envs.toy_text.frozen_lake.generate_random_map` does, so that a fixed start
    and goal give the same map for the same seed. Where `p` is so low that hardly any draw has a
    way through, one is carved into the last draw instead of drawing for ever.

    Needs `1 <= min_distance <= size - size % 2` (what the farthest corner is away from any cell) and
    `max_distance >= 2 * (size - 1)`.
    """
    stride = size + 1
    cells = [row * stride + column for row in range(size) for column in range(size)]
    start, goal = cells[0], cells[-1]
    for _ in range(_MAX_DRAWS):
        ice = 0
        for cell, draw in zip(cells, rng.random(size * size).tolist(), strict=True):
            if draw < p:
                ice |= 1 << cell
        if random_start or random_goal:
            start, goal = _draw_ends(rng, cells, stride, min_distance, random_start, random_goal)
        ice |= 1 << start | 1 << goal
        if min_distance <= _distance(ice, start, goal, stride) <= max_distance:
            return Lake(size=size, ice=ice, start=start, goal=goal)
    return Lake(size=size, ice=ice | _carve(rng, start, goal, stride), start=start, goal=goal)


def _draw_ends(
    rng: np.random.Generator,
    cells: list[int],
    stride: int,
    min_distance: int,
    random_start: bool,
    random_goal: bool,
) -> tuple[int, int]:
    """Start and goal at least `min_distance` apart, counted as if there were no holes."""

    def far_from(cell: int) -> list[int]:
        row, column = divmod(cell, stride)
        return [c for c in cells if abs(c // stride - row) + abs(c % stride - column) >= min_distance]

    if not random_start:
        ends = far_from(cells[0])
        return cells[0], ends[int(rng.random() * len(ends))]
    goal = cells[int(rng.random() * len(cells))] if random_goal else cells[-1]
    starts = far_from(goal)
    return starts[int(rng.random() * len(starts))], goal


def _distance(ice: int, start: int, goal: int, stride: int) -> int:
    """Steps of the shortest way, or -1."""
    reached, target, distance = 1 << start, 1 << goal, 0
    while not reached & target:
        spread = (reached | reached << 1 | reached >> 1 | reached << stride | reached >> stride) & ice
        if spread == reached:
            return -1
        reached = spread
        distance += 1
    return distance


def _carve(rng: np.random.Generator, start: int, goal: int, stride: int) -> int:
    """The cells of a random way from start to goal without detours."""
    rows, columns = goal // stride - start // stride, goal % stride - start % stride
    steps = [stride if rows > 0 else -stride] * abs(rows) + [1 if columns > 0 else -1] * abs(columns)
    cell, way = start, 1 << start
    for index in rng.permutation(len(steps)).tolist():
        cell += steps[index]
        way |= 1 << cell
    return way


@lru_cache(maxsize=64)
def neighbors(size: int) -> tuple[tuple[int, int, int, int], ...]:
    """For each cell, where Left, Down, Right and Up lead; the edge of the lake holds one back."""
    stride = size + 1

    def around(cell: int) -> tuple[int, int, int, int]:
        row, column = divmod(cell, stride)
        return (
            cell - 1 if column > 0 else cell,
            cell + stride if row < size - 1 else cell,
            cell + 1 if column < size - 1 else cell,
            cell - stride if row > 0 else cell,
        )

    return tuple(around(cell) for cell in range(size * stride - 1))


def slip(move: int, draw: float, success_rate: float) -> int:
    """Where one goes on slippery ice: ahead with `success_rate`, else to either side alike.

    `draw` is uniform on [0, 1); sides in gymnasium's order, so equal draws slip equally.
    """
    to_one_side = (1.0 - success_rate) / 2.0
    if draw < to_one_side:
        return (move - 1) % 4
    return move if draw < to_one_side + success_rate else (move + 1) % 4


def best_moves(lake: Lake, success_rate: float) -> dict[int, int]:
    """For each cell of ice from which the goal can be reached, the move that reaches it best.

    With `success_rate` 1 the moves are those of a shortest way. Below it they maximize the
    probability of ever arriving, discounted a little so that of two sure ways the shorter wins.
    """
    around = neighbors(lake.size)
    cells = [cell for cell in range(len(around)) if lake.ice >> cell & 1 and cell != lake.goal]
    sideways = (1.0 - success_rate) / 2.0
    chances = ((-1, sideways), (0, success_rate), (1, sideways)) if sideways else ((0, 1.0),)
    value = [0.0] * len(around)
    value[lake.goal] = 1.0
    best: dict[int, int] = {}
    change = 1.0
    while change > 1e-9:
        change = 0.0
        for cell in cells:
            there = around[cell]
            worths = [
                0.99 * sum(chance * value[there[(move + turn) % 4]] for turn, chance in chances)
                for move in range(4)
            ]
            worth = max(worths)
            if worth > value[cell]:
                change = max(change, worth - value[cell])
                value[cell] = worth
                best[cell] = worths.index(worth)
    return best
