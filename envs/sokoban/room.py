"""Rooms as a pure core: what a room is, and a seeded generator that plays backwards.

Cells are numbered as positions in the text of the room, row by row with one spare number at the
end of each row for its newline. Sets of cells are integers. The border of a room is wall, so no
shift of a set of floor cells leaves the room.

A room is made in three steps:

    grow a floor -> choose targets -> pull boxes off them until they are far enough away

Pulling is pushing played backwards, so every room that pulling reaches can be solved, and the
pulls in reverse order solve it. Nothing is drawn and thrown away: when a floor turns out too
narrow for what is asked, a cell is added to it and the pulling continues.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from heapq import heappop, heappush

_PULLS_PER_BOX = 24
"""Positions looked at per box before one is chosen: what bounds the time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """A room at its start."""

    width: int
    height: int
    floor: int
    """Set of cells that are not wall."""
    targets: int
    boxes: int
    player: int
    solution: tuple[int, ...]
    """Moves that solve it, as indices of `MOVES`; seldom the shortest."""

    @property
    def offsets(self) -> tuple[int, int, int, int]:
        return offsets(self.width)


@dataclass(frozen=True, slots=True)
class _Position:
    """A position reached by pulling, and how it was."""

    boxes: int
    player: int
    score: int
    """A lower bound of the pushes that solve it."""
    num_moves: int
    """Moves that solve it: those of the pulls and of the walks between them."""
    came_from: _Position | None
    direction: int
    """The pull that led here, as an index of `MOVES`: the player moved that way, a box behind it."""


def offsets(width: int) -> tuple[int, int, int, int]:
    """What Left, Down, Right and Up add to a cell."""
    return (-1, width + 1, 1, -width - 1)


def bits(cells: int) -> Iterator[int]:
    """The members of a set, lowest first."""
    while cells:
        lowest = cells & -cells
        yield lowest.bit_length() - 1
        cells ^= lowest


def shift(cells: int, offset: int) -> int:
    return cells << offset if offset > 0 else cells >> -offset


def walk_layers(start: int, free: int, stride: int) -> list[int]:
    """Sets of cells first reached after 0, 1, 2, ... steps over `free`."""
    layers = [1 << start]
    reached = frontier = layers[0]
    while True:
        frontier = (frontier << 1 | frontier >> 1 | frontier << stride | frontier >> stride) & free & ~reached
        if not frontier:
            return layers
        layers.append(frontier)
        reached |= frontier


def walk(start: int, end: int, free: int, width: int) -> list[int]:
    """The moves of a shortest walk over `free`; `end` must be within reach."""
    layers = walk_layers(start, free, width + 1)
    moves: list[int] = []
    index = next(i for i, layer in enumerate(layers) if layer >> end & 1)
    while index:
        index -= 1
        move, previous = next(
            (move, end - offset)
            for move, offset in enumerate(offsets(width))
            if layers[index] >> (end - offset) & 1
        )
        moves.append(move)
        end = previous
    return moves[::-1]


def push_distances(floor: int, targets: int, width: int) -> dict[int, int]:
    """Pushes from each cell to the nearest target, if there were one box and the player could fly.

    A lower bound of the pushes a box needs. A box on a cell that is missing here can never reach
    a target: such a cell is dead.
    """
    distances: dict[int, int] = {}
    frontier, reached, distance = targets, 0, 0
    while frontier:
        for cell in bits(frontier):
            distances[cell] = distance
        reached |= frontier
        pulled = 0
        for offset in offsets(width):
            pulled |= shift(frontier, offset) & floor & shift(floor, -offset)
        frontier = pulled & ~reached
        distance += 1
    return distances


def generate_room(
    rng: random.Random, *, width: int, height: int, num_boxes: int, max_moves: int, min_pushes: int
) -> Room:
    """A room that `max_moves` moves suffice for and fewer than `min_pushes` pushes do not.

    Every box starts off the targets. Where the size leaves no such room, the nearest to it found.
    Only `rng.random()` is used, whose stream is the same in every version of Python.
    """
    num_cells = (width - 2) * (height - 2)
    num_floor = min(num_cells, max(round(num_cells * (0.6 + 0.3 * rng.random())), 2 * num_boxes + 3))
    for floor in _growing_floors(rng, width, height):
        if floor.bit_count() < num_floor:
            continue
        targets = _choose_targets(rng, floor, width, num_boxes)
        if not targets:
            continue
        start, is_good = _pull(rng, floor, targets, width, max_moves, min_pushes)
        if is_good or (start.came_from and floor.bit_count() == num_cells):
            return _room(rng, width, height, floor, targets, start, max_moves)
    raise ValueError(f"a {width}x{height} room is too small for {num_boxes} boxes")


def _take(rng: random.Random, items: list[int]) -> int:
    """Remove and return one at random; the order of the rest is of no matter."""
    index = int(rng.random() * len(items))
    items[index], items[-1] = items[-1], items[index]
    return items.pop()


def _growing_floors(rng: random.Random, width: int, height: int) -> Iterator[int]:
    """Connected floors of random shape, each a cell larger than the last, up to all of the inside."""
    stride, around = width + 1, offsets(width)
    row = ((1 << (width - 2)) - 1) << 1
    interior = sum(row << (y * stride) for y in range(1, height - 1))
    first = (1 + int(rng.random() * (height - 2))) * stride + 1 + int(rng.random() * (width - 2))
    floor, edge, seen = 0, [first], 1 << first
    while edge:
        cell = _take(rng, edge)
        floor |= 1 << cell
        for offset in around:
            bit = 1 << (cell + offset)
            if bit & interior & ~seen:
                seen |= bit
                edge.append(cell + offset)
        yield floor


def _choose_targets(rng: random.Random, floor: int, width: int, num_boxes: int) -> int:
    """Targets such that a box can be pulled off the last one, or 0 if there is no room for them.

    On a full inside with at least four cells per box there always is: the straight threes of
    cells in it that do not overlap are more than the other targets can block.
    """
    targets = 0
    for _ in range(num_boxes):
        free = floor & ~targets
        pullable = 0
        for offset in offsets(width):
            pullable |= free & shift(free, -offset) & shift(free, -2 * offset)
        cells = list(bits(pullable))
        if not cells:
            return 0
        targets |= 1 << cells[int(rng.random() * len(cells))]
    return targets


def _pull(
    rng: random.Random, floor: int, targets: int, width: int, max_moves: int, min_pushes: int
) -> tuple[_Position, bool]:
    """Search backwards from the solved room; a position to start from, and whether it is as asked.

    Best first by the lower bound of pushes, with noise so that rooms differ, and for a bounded
    number of positions. Of those that are as asked one is drawn; with none, that with most boxes
    off target and then most pushes is taken.
    """
    stride, around = width + 1, offsets(width)
    distances = push_distances(floor, targets, width)
    num_boxes = targets.bit_count()
    best, best_rank = _Position(targets, 0, 0, 0, None, 0), (0, 0)
    good: list[_Position] = []
    queue: list[tuple[float, int, _Position]] = []
    num_queued = 0
    seen: set[tuple[int, int]] = set()

    for start in _regions(floor & ~targets, stride):
        heappush(queue, (0.0, num_queued, _Position(targets, start, 0, 0, None, 0)))
        num_queued += 1

    for _ in range(_PULLS_PER_BOX * num_boxes):
        if not queue:
            break
        position = heappop(queue)[2]
        boxes = position.boxes
        free = floor & ~boxes
        layers = walk_layers(position.player, free, stride)
        reach = 0
        for layer in layers:
            reach |= layer
        key = (boxes, reach & -reach)
        if key in seen:
            continue
        seen.add(key)
        for direction, offset in enumerate(around):
            pulls = boxes & shift(reach, -offset) & shift(free, -2 * offset)
            for box in bits(pulls):
                neighbor = box + offset
                num_moves = position.num_moves + 1
                if position.came_from is not None:
                    while not layers[num_moves - position.num_moves - 1] >> neighbor & 1:
                        num_moves += 1
                if num_moves > max_moves:
                    continue
                score = position.score + distances[neighbor] - distances[box]
                pulled = _Position(
                    boxes ^ (1 << box | 1 << neighbor),
                    neighbor + offset,
                    score,
                    num_moves,
                    position,
                    direction,
                )
                rank = ((pulled.boxes & ~targets).bit_count(), score)
                if rank > best_rank:
                    best, best_rank = pulled, rank
                if score >= min_pushes and not pulled.boxes & targets:
                    good.append(pulled)
                num_queued += 1
                heappush(queue, (3.0 * rng.random() - score, num_queued, pulled))
    if good:
        return good[int(rng.random() * len(good))], True
    return best, False


def _regions(free: int, stride: int) -> Iterator[int]:
    """A cell of each part of `free` that cannot be left by walking."""
    while free:
        start = (free & -free).bit_length() - 1
        yield start
        for layer in walk_layers(start, free, stride):
            free &= ~layer


def _room(
    rng: random.Random, width: int, height: int, floor: int, targets: int, last: _Position, max_moves: int
) -> Room:
    """The room that starts at `last`, with the player a random walk away from the first push."""
    free = floor & ~last.boxes
    player = last.player
    layers = walk_layers(player, free, width + 1)[: max_moves - last.num_moves + 1]
    within_reach = list(bits(sum(layers)))
    start = within_reach[int(rng.random() * len(within_reach))]
    solution = walk(start, player, free, width)
    around = offsets(width)
    position = last
    while position.came_from is not None:
        before = position.came_from
        solution.append((position.direction + 2) % 4)
        if before.came_from is not None:
            neighbor = position.player - around[position.direction]
            solution.extend(walk(neighbor, before.player, floor & ~before.boxes, width))
        position = before
    return Room(
        width=width,
        height=height,
        floor=floor,
        targets=targets,
        boxes=last.boxes,
        player=start,
        solution=tuple(solution),
    )
