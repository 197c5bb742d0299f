"""Aggregation: the same number however the batch is padded, ordered or split."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from envsdk.algorithms.aggregation import sequence_weights
from envsdk.algorithms.args import AlgorithmArgs

MODES = [
    "token-mean",
    "seq-mean-token-sum",
    "seq-mean-token-sum-norm",
    "seq-mean-token-mean",
    "trajectory-mean-token-sum",
    "trajectory-mean-token-mean",
]
LENGTH = 7
token_losses = st.lists(st.lists(st.floats(-10, 10), max_size=6), min_size=1, max_size=8)


def aggregate(mode, rows, names=None):
    weights = sequence_weights(mode, [len(row) for row in rows], trajectories=names, length=LENGTH)
    return sum(weight * sum(row) for weight, row in zip(weights, rows, strict=True))


@given(token_losses)
def test_modes_agree_with_means_over_a_padded_masked_batch(rows) -> None:
    width = max(1, max(len(row) for row in rows)) + 2
    losses_BT, mask_BT = np.full((len(rows), width), np.nan), np.zeros((len(rows), width), bool)
    for line, row in enumerate(rows):
        losses_BT[line, 1 : 1 + len(row)], mask_BT[line, 1 : 1 + len(row)] = row, True
    filled = mask_BT.any(1)
    sums = np.where(mask_BT, losses_BT, 0).sum(1)[filled]
    counts = mask_BT.sum(1)[filled]
    expected = dict.fromkeys(MODES, 0.0)
    if filled.any():
        expected = {
            "token-mean": losses_BT[mask_BT].mean(),
            "seq-mean-token-sum": sums.mean(),
            "seq-mean-token-sum-norm": sums.mean() / LENGTH,
            "seq-mean-token-mean": (sums / counts).mean(),
            # Without names each sequence is a trajectory of its own.
            "trajectory-mean-token-sum": sums.mean(),
            "trajectory-mean-token-mean": (sums / counts).mean(),
        }
    for mode in MODES:
        assert aggregate(mode, rows) == pytest.approx(expected[mode], rel=1e-9, abs=1e-9)


@given(token_losses, st.randoms(use_true_random=False), st.sampled_from(MODES))
def test_order_empty_rows_and_micro_batches_change_nothing(rows, random, mode) -> None:
    named = [(row, random.choice(["a", "b", None])) for row in rows]
    whole = aggregate(mode, rows, [name for _, name in named])
    named.append(([], "c"))
    random.shuffle(named)
    shuffled, names = [row for row, _ in named], [name for _, name in named]
    assert aggregate(mode, shuffled, names) == pytest.approx(whole, rel=1e-9, abs=1e-9)
    weights = sequence_weights(mode, [len(row) for row in shuffled], trajectories=names, length=LENGTH)
    cut = random.randint(0, len(shuffled))
    parts = [
        sum(weight * sum(row) for weight, row in zip(weights[part], shuffled[part], strict=True))
        for part in (slice(cut), slice(cut, None))
    ]
    assert sum(parts) == pytest.approx(whole, rel=1e-9, abs=1e-9)


@given(token_losses, st.lists(st.integers(0, 5), min_size=8, max_size=8))
def test_a_trajectory_cut_into_segments_counts_as_one(rows, cuts) -> None:
    """The same loss as with each trajectory in one sequence, however it is cut."""
    pieces = [
        (piece, f"trajectory {index}")
        for index, (row, cut) in enumerate(zip(rows, cuts, strict=False))
        for piece in (row[:cut], row[cut:])
    ]
    names = [name for _, name in pieces]
    for mode in MODES:
        cut = aggregate(mode, [piece for piece, _ in pieces], names)
        assert cut == pytest.approx(aggregate(mode, rows), rel=1e-9, abs=1e-9)


def test_the_constant_length_is_asked_for() -> None:
    with pytest.raises(ValueError, match="needs loss_agg_length"):
        sequence_weights("seq-mean-token-sum-norm", [1])


def test_an_unknown_mode_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match="unknown loss_agg_mode 'mean'"):
        sequence_weights("mean", [1])


def test_settings_refuse_unknown_keys_and_a_k1_loss_that_would_only_add_noise() -> None:
    with pytest.raises(ValueError, match="pg_clip_hihg"):
        AlgorithmArgs(pg_clip_hihg=0.3)
    with pytest.raises(ValueError, match="use k2 or k3"):
        AlgorithmArgs(kl_loss_coef=0.1, kl_loss_type="k1")
    assert AlgorithmArgs(init_kl_coef=0.1).needs_reference
    assert not AlgorithmArgs().needs_reference
    assert AlgorithmArgs(temperature=0.0).logprob_temperature == 1.0
