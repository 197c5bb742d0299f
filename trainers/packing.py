"""Ragged sequences into rectangular micro-batches under a token budget.

Only what the loss needs is computed. A row ends before its last scored token (nothing after it can
matter), and the vocabulary is projected at scored positions alone: in agentic data a tenth of all tokens.
Rows are sorted by length and padded on the right, where causal attention hides the padding from every
real token without a mask, so the fast causal kernel is used.

Several ranks divide the rows by their tokens and go through the model equally often, because the model
is gathered layer by layer by all of them together.

Shapes: B rows, T longest input of the micro-batch, N scored tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One sequence and the tokens of it that are scored."""

    input_ids: NDArray[np.int64]
    """`[num_inputs]`: everything before the last scored token."""
    scored: NDArray[np.int64]
    """`[num_scored]`: indices in the sequence, ascending, all >= 1; token t is predicted at input t - 1."""
    targets: NDArray[np.int64]
    """`[num_scored]`: the ids at `scored`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MicroBatch:
    """Rows that go through the model together."""

    rows: tuple[int, ...]
    """Which rows, as indices into the list that was packed."""
    input_ids_BT: NDArray[np.int64]
    positions_N: NDArray[np.int64]
    """Flat indices into `[B * T]` of the inputs that predict `targets_N`, row by row."""
    targets_N: NDArray[np.int64]
    num_real_tokens: int
    """Inputs that are not padding."""
    is_filler: bool = False
    """It repeats a row to keep this rank in step with the others: it counts nowhere and weighs nothing."""


def make_row(ids: NDArray[np.int32], mask: NDArray[np.int8]) -> Row | None:
    """The row of a sequence whose tokens with `mask` 1 are scored; None when there are none.

    The first token has nothing before it and is never scored.
    """
    scored = np.flatnonzero(mask[1:]) + 1
    if not len(scored):
        return None
    return Row(
        input_ids=ids[: scored[-1]].astype(np.int64),
        scored=scored,
        targets=ids[scored].astype(np.int64),
    )


def pack(
    rows: Sequence[Row], max_tokens: int, *, rank: int = 0, world_size: int = 1, pad_id: int = 0
) -> list[MicroBatch]:
    """This rank's micro-batches of at most `max_tokens` inputs, padding included, longest rows first.

    Every row is in exactly one of all ranks; a row longer than the budget gets one of its own. Each rank
    gets the same number; where its rows make fewer, the rest are fillers.
    """
    shares = divide([len(row.input_ids) for row in rows], world_size)
    groups = [_groups(rows, share, max_tokens) for share in shares]
    batches = [_pad(rows, group, pad_id) for group in groups[rank]]
    num_missing = max(map(len, groups)) - len(batches)
    if num_missing:
        shortest = min(range(len(rows)), key=lambda index: len(rows[index].input_ids))
        batches += [replace(_pad(rows, [shortest], pad_id), is_filler=True)] * num_missing
    return batches


def divide(sizes: Sequence[int], parts: int) -> list[list[int]]:
    """Indices of `sizes` in `parts` lists, each from the largest size to the smallest.

    The largest left goes where there is least so far, so two sums never differ by more than one size.
    """
    shares: list[list[int]] = [[] for _ in range(parts)]
    totals = [0] * parts
    for index in sorted(range(len(sizes)), key=lambda index: -sizes[index]):
        least = totals.index(min(totals))
        shares[least].append(index)
        totals[least] += sizes[index]
    return shares


def _groups(rows: Sequence[Row], indices: Sequence[int], max_tokens: int) -> list[list[int]]:
    """`indices`, longest row first, in runs that fit the budget once padded to their first."""
    groups: list[list[int]] = []
    start = 0
    while start < len(indices):
        stop = start + max(1, max_tokens // len(rows[indices[start]].input_ids))
        groups.append(list(indices[start:stop]))
        start = stop
    return groups


def _pad(rows: Sequence[Row], indices: list[int], pad_id: int) -> MicroBatch:
    longest = max(len(rows[index].input_ids) for index in indices)
    input_ids_BT = np.full((len(indices), longest), pad_id, np.int64)
    for line, index in enumerate(indices):
        inputs = rows[index].input_ids
        input_ids_BT[line, : len(inputs)] = inputs
    return MicroBatch(
        rows=tuple(indices),
        input_ids_BT=input_ids_BT,
        positions_N=np.concatenate(
            [line * longest + rows[index].scored - 1 for line, index in enumerate(indices)]
        ),
        targets_N=np.concatenate([rows[index].targets for index in indices]),
        num_real_tokens=sum(len(rows[index].input_ids) for index in indices),
    )
