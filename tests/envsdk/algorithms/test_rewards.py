"""Normalization of rewards by any two groupings, and weights, against plain Python."""

from __future__ import annotations

import statistics

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from envsdk.algorithms.kl import adapted_kl_coef
from envsdk.algorithms.rewards import (
    difficulty_weights,
    length_weights,
    normalized_turns,
    reward_statistics,
)

rewards = st.floats(-100, 100, allow_nan=False, width=32)
rows = st.lists(
    st.tuples(rewards, st.integers(0, 2), st.sampled_from("ab"), st.booleans()), min_size=1, max_size=16
)


@given(rows, st.sampled_from([None, 1, 2, "batch"]), st.sampled_from([None, 1, 2, "batch"]))
def test_mean_and_deviation_may_be_over_different_trajectories(data, mean_by, std_by) -> None:
    def labels(by):
        return None if by is None else [0 if by == "batch" else row[by] for row in data]

    values, valid = [row[0] for row in data], [row[3] for row in data]
    shift, scale = reward_statistics(values, mean_over=labels(mean_by), std_over=labels(std_by), valid=valid)
    assert shift.shape == scale.shape == (len(data),)
    for index, value in enumerate(values):

        def peers(by, index=index):
            found = labels(by)
            return [
                v for v, label, ok in zip(values, found, valid, strict=True) if ok and label == found[index]
            ]

        if not valid[index]:
            assert (shift[index], scale[index]) == (0, 1)
            continue
        mean = 0.0 if mean_by is None else statistics.fmean(peers(mean_by))
        spread = [] if std_by is None else peers(std_by)
        std = statistics.stdev(spread) + 1e-6 if len(set(spread)) > 1 else 1.0
        normalized = (value - shift[index]) / scale[index]
        assert normalized == pytest.approx((value - mean) / std, rel=1e-5, abs=1e-5)


def test_deviation_per_group_around_the_mean_of_the_batch() -> None:
    shift, scale = reward_statistics([0.0, 2.0, 5.0, 5.0], mean_over=[0] * 4, std_over=[1, 1, 2, 2])
    np.testing.assert_allclose(shift, 3.0)
    # The second group never varies: it keeps its distance from the mean, unscaled.
    np.testing.assert_allclose(
        (np.array([0.0, 2.0, 5.0, 5.0]) - shift) / scale, [-3 / 2**0.5, -1 / 2**0.5, 2, 2], rtol=1e-5
    )


@given(st.lists(rewards, min_size=1, max_size=6), rewards, st.floats(0.1, 10))
def test_normalized_turns_add_up_to_the_normalized_reward(turn_rewards, shift, scale) -> None:
    found = normalized_turns(turn_rewards, shift, scale)
    assert found.sum() == pytest.approx((sum(turn_rewards) - shift) / scale, rel=1e-6, abs=1e-6)
    np.testing.assert_allclose(found[:-1] * scale, turn_rewards[:-1], rtol=1e-6, atol=1e-9)


def test_a_group_solved_half_of_the_time_weighs_most_or_the_harder_the_more() -> None:
    successes = [True, False, True, True, False, False, True]
    groups = [0, 0, 1, 1, 2, 2, 2]
    valid = [True] * 6 + [False]
    assert difficulty_weights("none", successes, groups).tolist() == [1] * 7
    learnable = difficulty_weights("learnability", successes, groups, valid=valid)
    assert learnable.tolist() == [1, 1, 0, 0, 0, 0, 1]
    hard = difficulty_weights("hard", successes, groups, valid=valid)
    assert hard.tolist() == [0.5, 0.5, 0, 0, 1, 1, 1]


@given(st.lists(st.integers(1, 50), min_size=1, max_size=8))
def test_with_power_one_every_trajectory_has_the_same_weight_times_length(lengths) -> None:
    weights = length_weights(1.0, lengths)
    np.testing.assert_allclose(weights * lengths, np.mean(lengths), rtol=1e-9)
    assert length_weights(0.0, lengths).tolist() == [1.0] * len(lengths)


def test_failed_and_empty_trajectories_enter_no_mean_length() -> None:
    assert length_weights(1.0, [2, 4, 100, 0], valid=[True, True, False, True]).tolist() == [1.5, 0.75, 1, 1]


@given(st.floats(1e-4, 1), st.floats(0, 5), st.integers(1, 200))
def test_the_kl_weight_moves_towards_the_target_by_at_most_a_fifth(coef, divergence, count) -> None:
    after = adapted_kl_coef(coef, divergence, target=1.0, horizon=100, num_trajectories=count)
    error = np.clip(divergence - 1.0, -0.2, 0.2)
    assert after == pytest.approx(coef * (1 + error * min(1.0, count / 100)))
    assert 0.8 * coef - 1e-12 <= after <= 1.2 * coef + 1e-12


def test_the_kl_weight_settles_where_a_divergence_that_falls_with_it_meets_the_target() -> None:
    coef = 1.0
    for _ in range(500):
        coef = adapted_kl_coef(coef, 0.03 / coef, target=0.1, horizon=100, num_trajectories=32)
    assert coef == pytest.approx(0.3, rel=1e-3)
