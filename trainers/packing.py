"""Ragged sequences into rectangular micro-batches under a token budget.

Only what the loss needs is computed. A row ends before its last scored token (nothing after it can
matter), and the vocabulary is projected at scored positions alone: in agentic data a tenth of all tokens.
Rows that begin alike share a line, where their common inputs stand once:

    a b c d        a b c d          each row's inputs, and only they, see each other: a branch
    a b c e f  ->          e f      of the tree of all rows' inputs, in depth-first order
    a b g                      g

Lines are sorted by length and padded on the right, where causal attention hides the padding from every
real token without a mask, so the fast causal kernel is used unless rows share a line.

Several ranks divide the lines by their tokens and go through the model equally often, because the model
is gathered layer by layer by all of them together.

Shapes: B lines, T longest line of the micro-batch, N scored tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from envsdk.contracts.support import Support


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One sequence and the tokens of it that are scored."""

    input_ids: NDArray[np.int64]
    """`[num_inputs]`: everything before the last scored token."""
    scored: NDArray[np.int64]
    """`[num_scored]`: indices in the sequence, ascending, all >= 1; token t is predicted at input t - 1."""
    targets: NDArray[np.int64]
    """`[num_scored]`: the ids at `scored`."""
    experts: NDArray[np.int16] | None = None
    """What routers are to choose, `[num_inputs, routers, chosen]`; -1: they choose themselves."""
    support: Support | None = None
    """`[num_scored]`: the tokens that could be drawn there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tree:
    """Where the inputs of lines stand in their rows, and which of them see each other."""

    depths_BT: NDArray[np.int64]
    """Position of each input in its rows."""
    ends_BT: NDArray[np.int64]
    """Index in the line behind the last input that sees this one: input i sees j where j <= i < ends[j]."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MicroBatch:
    """Rows that go through the model together."""

    rows: tuple[int, ...]
    """Which rows, as indices into the list that was packed."""
    input_ids_BT: NDArray[np.int64]
    tree: Tree | None = None
    """How rows share lines; None: each has one of its own, and sees what is before it."""
    positions_N: NDArray[np.int64]
    """Flat indices into `[B * T]` of the inputs that predict `targets_N`, row by row."""
    targets_N: NDArray[np.int64]
    support_N: Support | None = None
    """The tokens that could be drawn in the places of `targets_N`."""
    num_real_tokens: int
    """Inputs that are not padding."""
    num_saved_tokens: int
    """Inputs of rows that are not computed again: they stand in the line of an earlier row."""
    experts_BTRK: NDArray[np.int16] | None = None
    """Those of the rows; None where no row has some."""
    is_filler: bool = False
    """It repeats a row to keep this rank in step with the others: it counts nowhere and weighs nothing."""


def make_row(
    ids: NDArray[np.int32],
    mask: NDArray[np.int8],
    experts: NDArray[np.int16] | None = None,
    support: Support | None = None,
) -> Row | None:
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
        experts=None if experts is None else experts[: scored[-1]],
        support=None if support is None else support.take(scored),
    )


def pack(
    rows: Sequence[Row],
    max_tokens: int,
    *,
    rank: int = 0,
    world_size: int = 1,
    pad_id: int = 0,
    pairs_per_token: float = 0.0,
) -> list[MicroBatch]:
    """This rank's micro-batches of at most `max_tokens` inputs, padding included, longest lines first.

    Every row is in exactly one of all ranks; a row longer than the budget gets a line and a micro-batch of
    its own. Each rank gets the same number; where its lines make fewer, the rest are fillers.
    `pairs_per_token`: for how many pairs of tokens attention takes as long as the rest of the model for one
    token, where it computes all pairs of a line. Rows share a line while that saves time; with 0 none do.
    """
    lines = share_lines(rows, min(max_tokens, _LONGEST_TREE), pairs_per_token)
    shares = divide([_num_inputs(rows, line) for line in lines], world_size)
    groups = [_groups(rows, [lines[index] for index in share], max_tokens) for share in shares]
    batches = [_pad(rows, group, pad_id) for group in groups[rank]]
    num_missing = max(map(len, groups)) - len(batches)
    if num_missing:
        shortest = min(range(len(rows)), key=lambda index: len(rows[index].input_ids))
        batches += [replace(_pad(rows, [[(shortest, 0)]], pad_id), is_filler=True)] * num_missing
    return batches


_LONGEST_TREE = 8192
"""Inputs of a line that rows share: its mask is as large as the square."""

Line = list[tuple[int, int]]
"""Rows whose inputs stand in one line: index of each, and how many of its first inputs are there already."""


def share_lines(rows: Sequence[Row], max_tokens: int, pairs_per_token: float) -> list[Line]:
    """The rows in lines; see `pack`.

    In the order of their inputs, rows that begin alike are neighbors. Each continues the line of the one
    before it if the inputs saved are worth more than attention over a longer line costs.
    """
    lines: list[Line] = []
    before, length = None, 0
    # As bytes, big-endian numbers sort like the numbers.
    for index in sorted(range(len(rows)), key=lambda index: rows[index].input_ids.astype(">i8").tobytes()):
        own, shared = len(rows[index].input_ids), _num_shared(before, rows[index])
        longer = length + own - shared
        saves = shared * pairs_per_token > longer**2 - length**2 - own**2
        if lines and pairs_per_token and longer <= max_tokens and saves:
            lines[-1].append((index, shared))
            length = longer
        else:
            lines.append([(index, 0)])
            length = own
        before = rows[index]
    return lines


def _num_shared(before: Row | None, row: Row) -> int:
    """Inputs that both begin with; where a router's choices are replayed, with the same experts."""
    if before is None:
        return 0
    least = min(len(before.input_ids), len(row.input_ids))
    is_same = before.input_ids[:least] == row.input_ids[:least]
    if before.experts is not None and row.experts is not None:
        is_same &= (before.experts[:least] == row.experts[:least]).all((1, 2))
    return int(np.argmin(np.append(is_same, False)))


def _num_inputs(rows: Sequence[Row], line: Line) -> int:
    return sum(len(rows[index].input_ids) - shared for index, shared in line)


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


def _groups(rows: Sequence[Row], lines: Sequence[Line], max_tokens: int) -> list[list[Line]]:
    """`lines`, longest first, in runs that fit the budget once padded to their first."""
    groups: list[list[Line]] = []
    start = 0
    while start < len(lines):
        stop = start + max(1, max_tokens // _num_inputs(rows, lines[start]))
        groups.append(list(lines[start:stop]))
        start = stop
    return groups


def _pad(rows: Sequence[Row], lines: Sequence[Line], pad_id: int) -> MicroBatch:
    lengths = [_num_inputs(rows, line) for line in lines]
    longest = max(lengths)
    input_ids_BT = np.full((len(lines), longest), pad_id, np.int64)
    depths_BT = np.zeros_like(input_ids_BT)
    ends_BT = np.tile(np.arange(1, longest + 1), (len(lines), 1))  # padding sees itself alone
    given = [rows[index].experts for line in lines for index, _ in line]
    routed = next((experts for experts in given if experts is not None), None)
    experts_BTRK = None
    if routed is not None:
        experts_BTRK = np.full((*input_ids_BT.shape, *routed.shape[1:]), -1, np.int16)
    positions: list[NDArray[np.int64]] = []
    for number, line in enumerate(lines):
        path, end = np.zeros(0, np.int64), 0
        for index, shared in line:
            inputs = rows[index].input_ids
            start, end = end, end + len(inputs) - shared
            path = np.concatenate([path[:shared], np.arange(start, end)])
            input_ids_BT[number, start:end] = inputs[shared:]
            depths_BT[number, start:end] = np.arange(shared, len(inputs))
            ends_BT[number, path] = end
            if experts_BTRK is not None and (experts := rows[index].experts) is not None:
                experts_BTRK[number, start:end] = experts[shared:]
            positions.append(number * longest + path[rows[index].scored - 1])
    members = [index for line in lines for index, _ in line]
    return MicroBatch(
        rows=tuple(members),
        input_ids_BT=input_ids_BT,
        tree=Tree(depths_BT=depths_BT, ends_BT=ends_BT) if len(members) > len(lines) else None,
        positions_N=np.concatenate(positions),
        targets_N=np.concatenate([rows[index].targets for index in members]),
        support_N=Support.joined(
            [rows[index].support for index in members], [len(rows[index].scored) for index in members]
        ),
        num_real_tokens=sum(lengths),
        num_saved_tokens=sum(shared for line in lines for _, shared in line),
        experts_BTRK=experts_BTRK,
    )
