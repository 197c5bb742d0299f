"""Formulas of advantages against plain Python re-computations, and what must hold for any input."""

from __future__ import annotations

import math
import statistics

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from envsdk.algorithms.estimators import (
    discounted_returns,
    gae,
    group_advantages,
    hgpo_advantages,
    reinforce_advantages,
    rloo_advantages,
    whiten,
)

rewards = st.floats(-100, 100, allow_nan=False, width=32)
members = st.lists(st.tuples(rewards, st.integers(0, 4), st.booleans()), min_size=1, max_size=24)
stays = st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from([0.0, 1.0, 2.5])), max_size=6)
episodes = st.lists(st.tuples(st.integers(0, 1), st.booleans(), stays), min_size=1, max_size=8)


@given(members)
def test_grpo_agrees_with_python_statistics(data: list[tuple[float, int, bool]]) -> None:
    returns, groups, valid = zip(*data, strict=True)
    advantages = group_advantages(returns, groups, valid=valid)
    for value, group, is_valid, advantage in zip(returns, groups, valid, advantages, strict=True):
        peers = [r for r, g, v in data if g == group and v]
        if not is_valid or len(peers) < 2 or len(set(peers)) == 1:
            assert advantage == 0
        else:
            expected = (value - statistics.fmean(peers)) / (statistics.stdev(peers) + 1e-6)
            assert advantage == pytest.approx(expected, rel=1e-6, abs=1e-9)


@given(members, st.randoms(use_true_random=False))
def test_grpo_does_not_depend_on_the_order_of_trajectories(data, random) -> None:
    order = list(range(len(data)))
    random.shuffle(order)
    returns, groups, valid = zip(*data, strict=True)
    straight = group_advantages(returns, groups, valid=valid)
    shuffled = group_advantages(
        [returns[i] for i in order], [groups[i] for i in order], valid=[valid[i] for i in order]
    )
    np.testing.assert_allclose(shuffled, straight[order], rtol=1e-9, atol=1e-9)


@given(members, st.floats(-50, 50), st.booleans())
def test_what_a_failed_member_would_have_scored_changes_nothing(data, score, normalize) -> None:
    returns, groups, valid = zip(*data, strict=True)
    rescored = [value if is_valid else score for value, _, is_valid in data]
    np.testing.assert_array_equal(
        group_advantages(returns, groups, valid=valid, normalize_std=normalize),
        group_advantages(rescored, groups, valid=valid, normalize_std=normalize),
    )


@given(st.lists(rewards, min_size=2, max_size=8, unique=True), st.booleans())
def test_advantages_of_a_group_sum_to_zero_and_keep_the_order_of_returns(returns, normalize) -> None:
    advantages = group_advantages(returns, [7] * len(returns), normalize_std=normalize)
    assert abs(advantages.sum()) < 1e-6 * max(1.0, np.abs(advantages).max())
    assert np.all(np.diff(advantages[np.argsort(returns)]) >= 0)


def test_a_group_with_equal_returns_has_exactly_zero_advantage() -> None:
    assert group_advantages([0.1] * 3 + [1.0], [1, 1, 1, 2]).tolist() == [0.0] * 4


@given(st.lists(st.lists(rewards, max_size=5), min_size=1, max_size=6), st.floats(0, 1), st.booleans())
def test_reinforce_agrees_with_the_sum_over_later_turns(turns, gamma, baseline) -> None:
    expected = [
        [sum(r * gamma**d for d, r in enumerate(rewards[k:])) for k in range(len(rewards))]
        for rewards in turns
    ]
    everything = [value for values in expected for value in values]
    mean = statistics.fmean(everything) if baseline and everything else 0.0
    for got, want in zip(reinforce_advantages(turns, gamma=gamma, baseline=baseline), expected, strict=True):
        np.testing.assert_allclose(got, np.array(want) - mean, rtol=1e-6, atol=1e-6)


def test_a_failed_trajectory_enters_no_reinforce_baseline() -> None:
    with_failure = reinforce_advantages([[1.0], [3.0], [100.0]], valid=[True, True, False])
    assert [values.tolist() for values in with_failure] == [[-1.0], [1.0], [0.0]]


@given(
    st.lists(st.tuples(rewards, rewards), min_size=1, max_size=12),
    st.floats(0, 1),
    st.floats(0, 1),
    rewards,
)
def test_gae_agrees_with_the_double_sum_of_its_definition(steps, gamma, lambd, last_value) -> None:
    step_rewards, values = zip(*steps, strict=True)
    following = [*values[1:], last_value]
    deltas = [r + gamma * after - v for r, v, after in zip(step_rewards, values, following, strict=True)]
    expected = [
        math.fsum((gamma * lambd) ** (later - step) * deltas[later] for later in range(step, len(deltas)))
        for step in range(len(deltas))
    ]
    advantages, returns = gae(step_rewards, values, gamma=gamma, lambd=lambd, last_value=last_value)
    np.testing.assert_allclose(advantages, expected, rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(returns, np.array(expected) + np.array(values), rtol=1e-6, atol=1e-6)


@given(st.lists(rewards, max_size=40), st.floats(0, 1))
def test_a_return_is_what_a_step_earns_and_the_discounted_return_of_the_next(earned, gamma) -> None:
    expected: list[float] = []
    for reward in reversed(earned):
        expected.insert(0, reward + gamma * (expected[0] if expected else 0.0))
    np.testing.assert_allclose(discounted_returns(earned, gamma), expected, rtol=1e-9, atol=1e-9)


def test_gae_with_lambda_one_and_no_values_is_the_discounted_return() -> None:
    advantages, _ = gae([1.0, 2.0, 3.0], [0.0] * 3, gamma=0.5, lambd=1.0)
    np.testing.assert_allclose(advantages, discounted_returns([1.0, 2.0, 3.0], 0.5))
    assert advantages.tolist() == [2.75, 3.5, 3.0]


@given(
    st.lists(st.lists(st.tuples(rewards, st.integers(0, 1)), min_size=1, max_size=8), min_size=1, max_size=5)
)
def test_whitened_tokens_have_mean_zero_and_variance_one_over_the_batch(data) -> None:
    advantages = [np.array([a for a, _ in row], np.float32) for row in data]
    masks = [np.array([m for _, m in row], np.int8) for row in data]
    result = whiten(advantages, masks)
    assert all((values[mask == 0] == 0).all() for values, mask in zip(result, masks, strict=True))
    before = np.concatenate([a[m == 1] for a, m in zip(advantages, masks, strict=True)])
    after = np.concatenate([a[m == 1] for a, m in zip(result, masks, strict=True)])
    if len(before) < 2 or before.min() == before.max():
        assert not after.any()
    elif before.std() > 0.01:
        assert abs(after.mean()) < 1e-3
        assert after.std() == pytest.approx(1.0, abs=1e-3)


@given(members)
def test_rloo_compares_each_return_with_the_mean_of_the_others(data) -> None:
    returns, groups, valid = zip(*data, strict=True)
    advantages = rloo_advantages(returns, groups, valid=valid)
    for index, (value, group, is_valid) in enumerate(data):
        others = [r for i, (r, g, v) in enumerate(data) if g == group and v and i != index]
        peers = {r for r, g, v in data if g == group and v}
        expected = value - statistics.fmean(others) if is_valid and others and len(peers) > 1 else 0.0
        assert advantages[index] == pytest.approx(expected, rel=1e-6, abs=1e-6)


@given(st.lists(rewards, min_size=2, max_size=12))
def test_rloo_is_grpo_without_deviation_times_n_over_n_minus_one(returns) -> None:
    count = len(returns)
    plain = group_advantages(returns, [0] * count, normalize_std=False)
    np.testing.assert_allclose(
        rloo_advantages(returns, [0] * count), plain * count / (count - 1), rtol=1e-9, atol=1e-9
    )


@given(episodes, st.floats(0, 1), st.booleans())
def test_gigpo_compares_each_turn_with_all_others_in_its_state(data, gamma, normalize) -> None:
    groups, valid, turns = zip(*data, strict=True)
    hashes = [[state for state, _ in each] for each in turns]
    returns = [
        [sum(r * gamma**d for d, (_, r) in enumerate(each[k:])) for k in range(len(each))] for each in turns
    ]
    found = hgpo_advantages(returns, hashes, groups, valid=valid, normalize_std=normalize)
    for index, each in enumerate(turns):
        assert len(found[index]) == len(each)
        for turn, (state, _) in enumerate(each):
            peers = [
                returns[i][k]
                for i, other in enumerate(turns)
                if groups[i] == groups[index] and valid[i]
                for k in range(len(other))
                if hashes[i][k] == state
            ]
            if not valid[index] or len(set(peers)) < 2:
                assert found[index][turn] == 0
                continue
            expected = returns[index][turn] - statistics.fmean(peers)
            if normalize:
                expected /= statistics.stdev(peers) + 1e-6
            assert found[index][turn] == pytest.approx(expected, rel=1e-4, abs=1e-6)


@given(episodes, st.randoms(use_true_random=False))
def test_gigpo_does_not_depend_on_the_order_of_trajectories(data, random) -> None:
    order = list(range(len(data)))
    random.shuffle(order)

    def advantages(rows):
        groups, valid, turns = zip(*rows, strict=True)
        hashes = [[state for state, _ in each] for each in turns]
        returns = [[reward for _, reward in each] for each in turns]
        return hgpo_advantages(returns, hashes, groups, valid=valid)

    straight, shuffled = advantages(data), advantages([data[i] for i in order])
    for place, index in enumerate(order):
        np.testing.assert_allclose(shuffled[place], straight[index], rtol=1e-9, atol=1e-9)
