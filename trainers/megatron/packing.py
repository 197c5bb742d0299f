"""Ragged rows into packed micro-batches: one sequence after the other, cut apart again by attention. Pure.

    rows -> a share per data-parallel rank -> micro-batches -> each context-parallel rank's part of them

Only what pipeline, context and sequence parallelism ask for is padded. Every rank knows all rows and makes
all plans, so that data-parallel ranks go through the model equally often without asking each other.

Shapes: T inputs of a micro-batch that this rank holds, S of them scored, N scored tokens of all ranks, R
routers, K experts of a token.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from envsdk.contracts.support import Support
from envsdk.trainers.packing import Row, divide


@dataclass(frozen=True, slots=True, kw_only=True)
class PackingLayout:
    """The demands of the parallel layout on micro-batches."""

    data_rank: int = 0
    data_size: int = 1
    context_rank: int = 0
    context_size: int = 1
    length_multiple: int = 1
    """Divides the length of a context-parallel rank's part of a micro-batch (sequence parallelism)."""
    count_multiple: int = 1
    """Divisor of the number of the micro-batches of one pass (interleaved pipeline stages)."""
    same_length: bool = False
    """All micro-batches of a pass are filled up to the longest (interleaved pipeline stages)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedBatch:
    """Rows that go through the model together; one without rows only keeps this rank in step."""

    rows: tuple[int, ...]
    """Which rows, as indices into the list that was packed."""
    input_ids_T: NDArray[np.int64]
    positions_T: NDArray[np.int64]
    """Position of each input in its sequence."""
    lengths: tuple[int, ...]
    """Lengths of packed sequences, padding and other ranks' parts included; the last may be only padding."""
    scored_S: NDArray[np.int64]
    """Indices into T of the inputs that predict `targets_S`."""
    targets_S: NDArray[np.int64]
    places_S: NDArray[np.int64]
    """Which of the N scored tokens, row by row, they are."""
    support_S: Support | None
    """Tokens that could be drawn in the places of `targets_S`."""
    experts_TRK: NDArray[np.int16] | None
    """Experts to be chosen; -1 leaves it to the router. None where no row has any."""
    num_scored: int
    """N"""
    num_real_tokens: int
    """Inputs that are not padding, over all context-parallel ranks."""

    @property
    def num_tokens(self) -> int:
        """Inputs, over all context-parallel ranks."""
        return sum(self.lengths)


def pack_rows(rows: Sequence[Row], max_tokens: int, layout: PackingLayout) -> list[PackedBatch]:
    """This rank's micro-batches of at most `max_tokens` inputs over all context-parallel ranks.

    Every row is in exactly one micro-batch of all data-parallel ranks; a row longer than the budget gets
    one of its own. Each rank gets the same number, by fillers where its rows make fewer.
    """
    multiple = 2 * layout.context_size if layout.context_size > 1 else 1
    lengths = [-(-len(row.input_ids) // multiple) * multiple for row in rows]
    shares = divide(lengths, layout.data_size)
    plans = [_first_fit(lengths, share, max_tokens) for share in shares]
    count = -(-max(map(len, plans)) // layout.count_multiple) * layout.count_multiple
    whole = math.lcm(layout.context_size * layout.length_multiple, multiple)
    totals = [[sum(lengths[index] for index in group) for group in plan] for plan in plans]
    longest = max((total for plan in totals for total in plan), default=0) if layout.same_length else 1
    mine = plans[layout.data_rank] + [[] for _ in range(count - len(plans[layout.data_rank]))]
    return [
        _packed(
            rows,
            group,
            [lengths[index] for index in group],
            -(-max(longest, sum(lengths[index] for index in group)) // whole) * whole,
            layout,
        )
        for group in mine
    ]


def held_positions(length: int, rank: int, size: int) -> NDArray[np.int64]:
    """Positions of a sequence that a context-parallel rank holds, in its order `[length / size]`.

    Of 2 x size equal pieces, number `rank` from the front and from the back: under a causal mask every
    rank has as much to attend to. `length` is a multiple of 2 x size, unless there is one rank.
    """
    if size == 1:
        return np.arange(length)
    pieces = np.arange(length).reshape(2 * size, -1)
    return np.concatenate([pieces[rank], pieces[2 * size - 1 - rank]])


def _first_fit(lengths: Sequence[int], indices: Sequence[int], max_tokens: int) -> list[list[int]]:
    """`indices`, longest first, each where it still fits."""
    groups: list[list[int]] = []
    left: list[int] = []
    for index in indices:
        place = next((place for place, room in enumerate(left) if room >= lengths[index]), len(groups))
        if place == len(groups):
            groups.append([])
            left.append(max_tokens)
        groups[place].append(index)
        left[place] -= lengths[index]
    return groups


def _packed(
    rows: Sequence[Row], members: list[int], lengths: list[int], total: int, layout: PackingLayout
) -> PackedBatch:
    filler = total - sum(lengths)
    ids: list[NDArray[np.int64]] = []
    positions: list[NDArray[np.int64]] = []
    scored: list[NDArray[np.int64]] = []
    targets: list[NDArray[np.int64]] = []
    places: list[NDArray[np.int64]] = []
    supports: list[Support | None] = []
    num_held = num_scored = 0
    for index, length in zip(members, lengths, strict=True):
        row = rows[index]
        held = held_positions(length, layout.context_rank, layout.context_size)
        padded = np.zeros(length, np.int64)
        padded[: len(row.input_ids)] = row.input_ids
        local = np.full(length, -1)
        local[held] = np.arange(len(held))
        predicting = local[row.scored - 1]
        is_held = predicting >= 0
        ids.append(padded[held])
        positions.append(held)
        scored.append(num_held + predicting[is_held])
        targets.append(row.targets[is_held])
        places.append(num_scored + np.flatnonzero(is_held))
        supports.append(row.support and row.support.take(np.flatnonzero(is_held)))
        num_held += len(held)
        num_scored += len(row.scored)
    if filler:
        held = held_positions(filler, layout.context_rank, layout.context_size)
        ids.append(np.zeros(len(held), np.int64))
        positions.append(held)
    return PackedBatch(
        rows=tuple(members),
        input_ids_T=np.concatenate(ids),
        positions_T=np.concatenate(positions),
        lengths=(*lengths, *([filler] if filler else [])),
        scored_S=_joined(scored),
        targets_S=_joined(targets),
        places_S=_joined(places),
        support_S=Support.joined(supports, list(map(len, targets))),
        experts_TRK=_experts(rows, members, [*lengths, filler], layout),
        num_scored=num_scored,
        num_real_tokens=sum(len(rows[index].input_ids) for index in members),
    )


def _experts(
    rows: Sequence[Row], members: list[int], lengths: list[int], layout: PackingLayout
) -> NDArray[np.int16] | None:
    given = [rows[index].experts for index in members]
    shape = next((experts.shape[1:] for experts in given if experts is not None), None)
    if shape is None:
        return None
    parts: list[NDArray[np.int16]] = []
    for experts, length in zip([*given, None], lengths, strict=True):
        padded = np.full((length, *shape), -1, np.int16)
        if experts is not None:
            padded[: len(experts)] = experts
        if length:
            parts.append(padded[held_positions(length, layout.context_rank, layout.context_size)])
    return np.concatenate(parts)


def _joined(parts: list[NDArray[np.int64]]) -> NDArray[np.int64]:
    return np.concatenate(parts) if parts else np.zeros(0, np.int64)
