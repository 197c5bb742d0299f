"""Packing for Megatron: every scored token once over all ranks, and what the layouts ask of lengths."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from envsdk.trainers.megatron.packing import PackingLayout, held_positions, pack_rows
from envsdk.trainers.packing import make_row

masks = st.lists(st.lists(st.integers(0, 1), min_size=1, max_size=40), max_size=12)
sizes = st.integers(1, 3)


def rows_of(rows: list[list[int]]):
    return [
        row
        for index, mask in enumerate(rows)
        if (row := make_row(np.arange(len(mask), dtype=np.int32) + 100 * index, np.array(mask, np.int8)))
    ]


@given(masks, st.integers(1, 100), sizes, sizes, sizes, sizes, st.booleans())
def test_all_ranks_together_predict_every_scored_token_once_from_the_one_before(
    masks, budget, data_size, context_size, length_multiple, count_multiple, same_length
) -> None:
    rows = rows_of(masks)
    found: list[tuple[int, int]] = []
    counts, lengths = set(), set()
    for data_rank in range(data_size):
        parts = [
            pack_rows(
                rows,
                budget,
                PackingLayout(
                    data_rank=data_rank,
                    data_size=data_size,
                    context_rank=context_rank,
                    context_size=context_size,
                    length_multiple=length_multiple,
                    count_multiple=count_multiple,
                    same_length=same_length,
                ),
            )
            for context_rank in range(context_size)
        ]
        counts |= {len(batches) for batches in parts}
        for batch in zip(*parts, strict=True):
            for part in batch:
                assert len(part.input_ids_T) * context_size == part.num_tokens == sum(part.lengths)
                assert len(part.input_ids_T) % length_multiple == 0
                assert len(part.input_ids_T) > 0
                np.testing.assert_array_equal(part.input_ids_T[part.scored_S] + 1, part.targets_S)
                lengths.add(part.num_tokens)
            places = np.concatenate([part.places_S for part in batch])
            targets = np.concatenate([part.targets_S for part in batch])[np.argsort(places)]
            assert sorted(places.tolist()) == list(range(batch[0].num_scored))
            expected = [rows[index].targets for index in batch[0].rows]
            np.testing.assert_array_equal(targets, np.concatenate([*expected, []]))
            found += batch[0].rows
    assert sorted(found) == list(range(len(rows)))
    assert len(counts) == 1
    assert counts.pop() % count_multiple == 0
    assert len(lengths) <= 1 or not same_length


@given(st.integers(1, 4), st.integers(1, 9))
def test_context_parallel_ranks_have_equally_much_to_attend_to(size, pieces) -> None:
    length = 2 * size * pieces
    held = [held_positions(length, rank, size) for rank in range(size)]
    assert sorted(np.concatenate(held).tolist()) == list(range(length))
    # Under a causal mask position p attends to p + 1 positions.
    assert len({int((positions + 1).sum()) for positions in held}) == 1
