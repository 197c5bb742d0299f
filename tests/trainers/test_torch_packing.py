"""Packing: every scored token once, nothing computed that no loss can see."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from envsdk.trainers.packing import MicroBatch, divide, make_row, pack

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


@given(
    st.lists(st.lists(st.integers(0, 2), min_size=2, max_size=12), min_size=1, max_size=12),
    st.integers(1, 60),
    st.integers(1, 3),
    st.sampled_from([0.5, 20.0, 1e6]),
)
def test_in_a_shared_line_every_token_sees_what_precedes_it_in_its_row_and_nothing_else(
    sequences, budget, world_size, pairs_per_token
) -> None:
    rows = [make_row(np.array(ids, np.int32), np.ones(len(ids), np.int8)) for ids in sequences]
    assert all(row is not None for row in rows)
    found: list[int] = []
    for rank in range(world_size):
        for micro in pack(rows, budget, rank=rank, world_size=world_size, pairs_per_token=pairs_per_token):
            contexts = iter(_contexts(micro))
            for index in micro.rows:
                for token in rows[index].scored:
                    assert next(contexts) == sequences[index][:token]
            np.testing.assert_array_equal(
                micro.targets_N, np.concatenate([rows[index].targets for index in micro.rows])
            )
            assert micro.input_ids_BT.size <= budget or len(micro.rows) == 1
            found += [] if micro.is_filler else micro.rows
    assert sorted(found) == list(range(len(rows)))


def _contexts(micro: MicroBatch) -> list[list[int]]:
    """Inputs that each scored position sees, in the order of their depths."""
    length = micro.input_ids_BT.shape[1]
    contexts = []
    for position in micro.positions_N.tolist():
        line, own = divmod(position, length)
        ids, seen = micro.input_ids_BT[line], list(range(own + 1))
        if micro.tree is not None:
            ends, depths = micro.tree.ends_BT[line], micro.tree.depths_BT[line]
            seen = [before for before in seen if own < ends[before]]
            assert depths[seen].tolist() == list(range(len(seen)))
        contexts.append(ids[seen].tolist())
    return contexts


def test_a_prompt_that_a_group_shares_is_computed_once() -> None:
    prompt = np.arange(40)
    sequences = [np.concatenate([prompt, [100 + reply] * 11]).astype(np.int32) for reply in range(8)]
    rows = [make_row(ids, (np.arange(51) >= 40).astype(np.int8)) for ids in sequences]
    (micro,) = pack(rows, 4096, pairs_per_token=1000.0)
    assert micro.input_ids_BT.shape == (1, 40 + 8 * 10)
    assert sum(batch.input_ids_BT.size for batch in pack(rows, 4096)) == 8 * 50


def test_rows_whose_replies_are_long_for_their_prompt_keep_lines_of_their_own() -> None:
    sequences = [np.concatenate([np.arange(20), np.full(800, 100 + reply)]) for reply in range(8)]
    rows = [make_row(ids.astype(np.int32), (np.arange(820) >= 20).astype(np.int8)) for ids in sequences]
    assert all(batch.tree is None for batch in pack(rows, 8192, pairs_per_token=1000.0))


def test_rows_share_inputs_as_far_as_the_same_experts_are_replayed() -> None:
    ids, mask = np.arange(30, dtype=np.int32), (np.arange(30) >= 20).astype(np.int8)
    experts = np.zeros((30, 2, 1), np.int16)
    other = experts.copy()
    other[12:] = 1
    rows = [
        make_row(ids + (np.arange(30) >= 20) * number, mask, each)
        for number, each in enumerate([experts, other])
    ]
    (micro,) = pack(rows, 512, pairs_per_token=1e9)
    assert micro.num_saved_tokens == 12
