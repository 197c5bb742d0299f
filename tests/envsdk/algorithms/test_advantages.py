"""Advantages against plain Python re-computations, and what must hold for any input."""

from __future__ import annotations

import math
import statistics

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from envsdk.algorithms.advantages import (
    AdvantageSample,
    discounted_returns,
    gae,
    group_advantages,
    reinforce_advantages,
    spread_turns,
    token_advantages,
    whiten,
)
from envsdk.algorithms.args import AlgorithmArgs

rewards = st.floats(-100, 100, allow_nan=False, width=32)
turns = st.lists(st.tuples(rewards, st.integers(0, 3)), max_size=4)
masked_rows = st.lists(st.tuples(rewards, st.integers(0, 1)), min_size=1, max_size=8)
members = st.lists(st.tuples(rewards, st.integers(0, 4), st.booleans()), min_size=1, max_size=24)


def make_sample(**changes: object) -> AdvantageSample:
    """Three turns; the second reply is empty. Tokens: 2 prompt, 2 reply, 1 prompt, 1 prompt, 3 reply."""
    settings: dict[str, object] = {
        "group_id": 0,
        "response_mask": np.array([0, 0, 1, 1, 0, 0, 1, 1, 1], np.int8),
        "turn_rewards": [1.0, -0.5, 2.0],
        "turn_spans": [(2, 4), (5, 5), (6, 9)],
    }
    return AdvantageSample(**{**settings, **changes})


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
    if len(before) < 2 or before.std() == 0:
        assert not after.any()
    elif before.std() > 0.01:
        assert abs(after.mean()) < 1e-3
        assert after.std() == pytest.approx(1.0, abs=1e-3)


def test_whitening_leaves_out_failed_trajectories() -> None:
    args = AlgorithmArgs(adv_estimator="reinforce", reinforce_baseline="none", whiten_advantages=True)
    samples = [
        make_sample(turn_rewards=[0.0, 0.0, 1.0]),
        make_sample(turn_rewards=[0.0, 0.0, 3.0]),
        make_sample(turn_rewards=[0.0, 0.0, 99.0], valid=False),
    ]
    first, second, failed = (result.advantages for result in token_advantages(args, samples))
    np.testing.assert_allclose(first[first != 0], -1.0, rtol=1e-4)
    np.testing.assert_allclose(second[second != 0], 1.0, rtol=1e-4)
    assert not failed.any()


def test_grpo_gives_every_sampled_token_its_trajectorys_advantage() -> None:
    low, high = token_advantages(AlgorithmArgs(), [make_sample(), make_sample(turn_rewards=[3.0, 0.0, 2.0])])
    assert low.returns is None
    np.testing.assert_allclose(high.advantages, make_sample().response_mask / math.sqrt(2), rtol=1e-5)
    np.testing.assert_allclose(low.advantages, -high.advantages)


def test_reinforce_gives_every_token_of_a_turn_the_return_from_that_turn_on() -> None:
    args = AlgorithmArgs(adv_estimator="reinforce", reinforce_baseline="none", gamma=0.5)
    [result] = token_advantages(args, [make_sample()])
    assert result.advantages.tolist() == [0, 0, 1.25, 1.25, 0, 0, 2, 2, 2]


def test_token_level_gae_puts_a_turns_reward_on_its_last_token() -> None:
    args = AlgorithmArgs(adv_estimator="gae", gamma=1.0, lambd=0.0)
    values = np.arange(9, dtype=np.float32) / 10
    [result] = token_advantages(args, [make_sample(values=values)])
    # One-step differences between sampled tokens 2, 3, 6, 7, 8; token 3 also takes the empty reply's reward.
    expected = [0.1, 0.5 + 0.3, 0.1, 0.1, 2.0 - 0.8]
    np.testing.assert_allclose(result.advantages[[2, 3, 6, 7, 8]], expected, rtol=1e-5)
    assert result.returns is not None
    np.testing.assert_allclose(
        result.returns[[2, 3, 6, 7, 8]], np.array(expected) + values[[2, 3, 6, 7, 8]], rtol=1e-5
    )
    assert not result.advantages[[0, 1, 4, 5]].any()


def test_turn_level_gae_takes_values_before_each_reply_and_discounts_per_turn() -> None:
    args = AlgorithmArgs(adv_estimator="gae", gae_level="turn", gamma=0.5, lambd=1.0)
    values = np.zeros(9, np.float32)
    values[2], values[6] = 0.25, 0.75
    [result] = token_advantages(args, [make_sample(values=values, last_value=1.0)])
    second = 2.0 + 0.5 * 1.0 - 0.75
    first = (1.0 - 0.5) + 0.5 * 0.75 - 0.25 + 0.5 * second
    np.testing.assert_allclose(
        result.advantages, [0, 0, first, first, 0, 0, second, second, second], rtol=1e-6
    )


def test_the_kl_penalty_lowers_rewards_where_the_policy_left_the_reference() -> None:
    args = AlgorithmArgs(
        adv_estimator="reinforce", reinforce_baseline="none", gamma=0.0, init_kl_coef=0.1, kl_reward_type="k1"
    )
    logprobs = np.full(9, -1.0, np.float32)
    reference = np.array([9, 9, -1, -3, 9, 9, -1, -1, -1.5], np.float32)
    [result] = token_advantages(args, [make_sample(logprobs=logprobs, reference_logprobs=reference)])
    np.testing.assert_allclose(result.advantages[[2, 8]], [1.0 - 0.1 * 2.0, 2.0 - 0.1 * 0.5], rtol=1e-5)


@given(
    st.lists(
        st.tuples(
            st.integers(0, 2), st.booleans(), st.lists(st.tuples(rewards, st.integers(0, 3)), max_size=4)
        ),
        max_size=6,
    ),
    st.sampled_from(["grpo", "reinforce", "gae"]),
    st.sampled_from(["token", "turn"]),
    st.booleans(),
)
def test_no_batch_gives_a_number_that_is_not_finite(rows, estimator, level, whitened) -> None:
    samples = []
    for group, valid, turns in rows:
        mask: list[int] = [0]
        spans = []
        for _, length in turns:
            spans.append((len(mask), len(mask) + length))
            mask += [1] * length + [0]
        samples.append(
            AdvantageSample(
                group_id=group,
                valid=valid,
                response_mask=np.array(mask, np.int8),
                turn_rewards=[reward for reward, _ in turns],
                turn_spans=spans,
                values=np.linspace(-1, 1, len(mask)).astype(np.float32),
            )
        )
    args = AlgorithmArgs(adv_estimator=estimator, gae_level=level, whiten_advantages=whitened)
    results = token_advantages(args, samples)
    assert len(results) == len(samples)
    for sample, result in zip(samples, results, strict=True):
        assert np.isfinite(result.advantages).all()
        assert not result.advantages[sample.response_mask == 0].any()
        assert sample.valid or not result.advantages.any()


def test_missing_inputs_are_named() -> None:
    with pytest.raises(ValueError, match="value head"):
        token_advantages(AlgorithmArgs(adv_estimator="gae"), [make_sample()])
    with pytest.raises(ValueError, match="reference"):
        token_advantages(AlgorithmArgs(init_kl_coef=0.1), [make_sample()])


def test_spreading_turns_skips_tokens_the_policy_did_not_write() -> None:
    assert spread_turns(make_sample(), [1, 2, 3]).tolist() == [0, 0, 1, 1, 0, 0, 3, 3, 3]
