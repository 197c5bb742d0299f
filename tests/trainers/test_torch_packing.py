"""Packing: every scored token once, nothing computed that no loss can see."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from envsdk.trainers.packing import divide, make_row, pack

masks = st.lists(st.lists(st.integers(0, 1), min_size=1, max_size=40), max_size=12)


@given(masks, st.integers(1, 100))
def test_every_scored_token_is_predicted_exactly_once_from_what_precedes_it(rows, budget) -> None:
    sequences = [
        (np.arange(1000 * i, 1000 * i + len(m), dtype=np.int32), np.array(m, np.int8))
        for i, m in enumerate(rows)
    ]
    packed_rows = [row for ids, mask in sequences if (row := make_row(ids, mask)) is not None]
    seen: list[int] = []
    for micro in pack(packed_rows, budget):
        before = micro.input_ids_BT.reshape(-1)[micro.positions_N]
        np.testing.assert_array_equal(before + 1, micro.targets_N)
        seen += micro.targets_N.tolist()
    expected = [int(i) for ids, mask in sequences for i in ids[1:][mask[1:] == 1]]
    assert sorted(seen) == sorted(expected)


@given(masks, st.integers(1, 100))
def test_micro_batches_keep_to_the_budget_and_hold_each_row_once(rows, budget) -> None:
    packed_rows = [
        row for m in rows if (row := make_row(np.zeros(len(m), np.int32), np.array(m, np.int8))) is not None
    ]
    batches = pack(packed_rows, budget)
    assert sorted(index for micro in batches for index in micro.rows) == list(range(len(packed_rows)))
    for micro in batches:
        assert micro.input_ids_BT.size <= budget or len(micro.rows) == 1
        assert micro.num_real_tokens == sum(len(packed_rows[index].input_ids) for index in micro.rows)


def test_a_row_ends_before_its_last_scored_token() -> None:
    row = make_row(np.arange(10, dtype=np.int32), np.array([1, 0, 1, 0, 1, 0, 0, 0, 0, 0], np.int8))
    assert row is not None
    assert row.input_ids.tolist() == [0, 1, 2, 3]
    assert row.targets.tolist() == [2, 4]


def test_a_sequence_whose_only_sampled_token_is_the_first_has_nothing_to_score() -> None:
    assert make_row(np.arange(3, dtype=np.int32), np.array([1, 0, 0], np.int8)) is None
    assert make_row(np.zeros(0, np.int32), np.zeros(0, np.int8)) is None


@given(masks, st.integers(1, 100), st.integers(1, 5))
def test_ranks_divide_the_rows_and_go_through_the_model_equally_often(rows, budget, world_size) -> None:
    packed_rows = [
        row for m in rows if (row := make_row(np.zeros(len(m), np.int32), np.array(m, np.int8))) is not None
    ]
    ranks = [pack(packed_rows, budget, rank=rank, world_size=world_size) for rank in range(world_size)]
    assert len({len(batches) for batches in ranks}) == 1
    real = [micro for batches in ranks for micro in batches if not micro.is_filler]
    assert sorted(index for micro in real for index in micro.rows) == list(range(len(packed_rows)))
    assert not packed_rows or any(not batches[-1].is_filler for batches in ranks)


@given(st.lists(st.integers(1, 1000), max_size=30), st.integers(1, 6))
def test_shares_differ_by_no_more_than_one_size(sizes, parts) -> None:
    shares = divide(sizes, parts)
    assert sorted(index for share in shares for index in share) == list(range(len(sizes)))
    totals = [sum(sizes[index] for index in share) for share in shares]
    assert max(totals) - min(totals) <= max(sizes, default=0)
