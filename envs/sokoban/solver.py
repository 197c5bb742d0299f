"""An exact solver: A* over pushes, where a push costs its own move and the walk to it."""

from __future__ import annotations

from heapq import heappop, heappush
from itertools import count

from envsdk.envs.sokoban.room import Room, bits, push_distances, shift, walk, walk_layers

_EXACT_UP_TO = 2
"""Boxes up to which the fewest moves are found; beyond, the search is greedy."""
_GREED = 4
"""Weight of the remaining pushes where the search is greedy."""


def solve(room: Room, *, player: int, boxes: int, max_expanded: int = 20_000) -> list[int] | None:
    """Moves that solve `room` from a position, as indices of `MOVES`.

    The fewest moves for one or two boxes. None when there is no solution, or none was found
    within `max_expanded` positions.
    """
    width, floor, targets, around = room.width, room.floor, room.targets, room.offsets
    stride = width + 1
    distances = push_distances(floor, targets, width)
    alive = sum(1 << cell for cell in distances)
    if boxes & ~alive:
        return None
    weight = 1 if targets.bit_count() <= _EXACT_UP_TO else _GREED
    pushes_left = sum(distances[box] for box in bits(boxes))
    order = count()
    queue = [(weight * pushes_left, next(order), 0, pushes_left, player, boxes)]
    moves_to: dict[tuple[int, int], int] = {(player, boxes): 0}
    came_from: dict[tuple[int, int], tuple[int, int, int]] = {}
    """Position -> the position before its push, and the push's direction."""
    closed: set[tuple[int, int]] = set()
    while queue and len(closed) < max_expanded:
        _, _, num_moves, pushes_left, player, boxes = heappop(queue)
        here = (player, boxes)
        if boxes == targets:
            return _moves(room, here, came_from)
        if here in closed:
            continue
        closed.add(here)
        free = floor & ~boxes
        layers = walk_layers(player, free, stride)
        reach = 0
        for layer in layers:
            reach |= layer
        for direction, offset in enumerate(around):
            pushable = boxes & shift(reach, offset) & shift(free & alive, -offset)
            for box in bits(pushable):
                behind, ahead = box - offset, box + offset
                moved = boxes ^ (1 << box | 1 << ahead)
                steps = next(i for i, layer in enumerate(layers) if layer >> behind & 1) + 1
                there = (box, moved)
                known = moves_to.get(there)
                if known is not None and known <= num_moves + steps:
                    continue
                if _is_stuck(ahead, moved, floor, targets, stride):
                    continue
                moves_to[there] = num_moves + steps
                came_from[there] = (player, boxes, direction)
                left = pushes_left + distances[ahead] - distances[box]
                heappush(
                    queue, (num_moves + steps + weight * left, next(order), num_moves + steps, left, *there)
                )
    return None


def _is_stuck(box: int, boxes: int, floor: int, targets: int, stride: int) -> bool:
    """Whether the box just pushed is one of a square of boxes and walls that can never move apart."""
    solid = boxes | ~floor
    for corner in (box, box - 1, box - stride, box - stride - 1):
        square = 1 << corner | 1 << (corner + 1) | 1 << (corner + stride) | 1 << (corner + stride + 1)
        if square & solid == square and square & boxes & ~targets:
            return True
    return False


def _moves(
    room: Room, end: tuple[int, int], came_from: dict[tuple[int, int], tuple[int, int, int]]
) -> list[int]:
    """The walks and pushes that lead to `end`."""
    parts: list[list[int]] = []
    while end in came_from:
        player, boxes, direction = came_from[end]
        behind = end[0] - room.offsets[direction]
        parts.append([*walk(player, behind, room.floor & ~boxes, room.width), direction])
        end = (player, boxes)
    return [move for part in reversed(parts) for move in part]
