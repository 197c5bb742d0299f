"""From a batch of trajectories to token advantages: what each setting does to the tokens."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from envsdk.algorithms.advantage_sample import AdvantageSample, TokenAdvantages, steps_of
from envsdk.algorithms.args import AlgorithmArgs
from envsdk.algorithms.batches import token_advantages
from envsdk.algorithms.estimator_contract import load_estimator
from envsdk.contracts.failures import ConfigurationError

rewards = st.floats(-100, 100, allow_nan=False, width=32)
turns = st.lists(st.tuples(rewards, st.integers(0, 3)), max_size=4)


def make_sample(**changes: object) -> AdvantageSample:
    """Three turns; the second reply is empty. Tokens: 2 prompt, 2 reply, 1 prompt, 1 prompt, 3 reply."""
    settings: dict[str, object] = {
        "group_id": 0,
        "response_mask": np.array([0, 0, 1, 1, 0, 0, 1, 1, 1], np.int8),
        "turn_rewards": [1.0, -0.5, 2.0],
        "turn_spans": [(2, 4), (5, 5), (6, 9)],
    }
    return AdvantageSample(**{**settings, **changes})


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


def test_a_shifted_baseline_imitates_what_is_average_and_leaves_failed_trajectories_out() -> None:
    args = AlgorithmArgs(grpo_normalize_std=False, adv_args={"baseline_shift": -0.25})
    rewards = ([1.0, 0.0, 0.0], [0.0, 0.0, 0.0], [0.0, 0.0, 0.0])
    samples = [make_sample(turn_rewards=each, valid=i < 2) for i, each in enumerate(rewards)]
    first, second, failed = (set(each.advantages) for each in token_advantages(args, samples))
    assert (first - {0.0}, second - {0.0}, failed) == ({0.75}, {-0.25}, {0.0})


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


@st.composite
def samples_of(draw: st.DrawFn, max_size: int = 6) -> list[AdvantageSample]:
    """Any batch: failed members, empty replies, replies side by side, states met again."""
    samples = []
    for _ in range(draw(st.integers(0, max_size))):
        played = draw(turns)
        mask: list[int] = [0]
        spans = []
        for _, length in played:
            spans.append((len(mask), len(mask) + length))
            mask += [1] * length + [0] * draw(st.integers(0, 1))
        size = len(mask)
        samples.append(
            AdvantageSample(
                group_id=draw(st.integers(0, 2)),
                tag=draw(st.sampled_from(["lake", "box"])),
                success=draw(st.booleans()),
                valid=draw(st.booleans()),
                response_mask=np.array(mask, np.int8),
                turn_rewards=[reward for reward, _ in played],
                turn_spans=spans,
                state_hashes=[draw(st.sampled_from("ab")) for _ in played],
                values=np.linspace(-1, 1, size).astype(np.float32),
                last_value=draw(st.sampled_from([0.0, 0.5])),
                logprobs=np.linspace(-2, -1, size).astype(np.float32),
                reference_logprobs=np.linspace(-1, -2, size).astype(np.float32),
            )
        )
    return samples


groupings = st.sampled_from(["none", "group", "tag", "batch"])
settings_of = st.fixed_dictionaries(
    {
        "adv_estimator": st.sampled_from(
            ["grpo", "rloo", "reinforce", "reinforce_plus_plus", "gae", "gigpo"]
        ),
        "gae_level": st.sampled_from(["token", "turn"]),
        "discount_level": st.sampled_from([None, "turn", "segment", "token"]),
        "gamma": st.sampled_from([0.0, 0.9, 1.0]),
        "whiten_advantages": st.booleans(),
        "init_kl_coef": st.sampled_from([0.0, 0.1]),
        "reward_normalize_mean": groupings,
        "reward_normalize_std": groupings,
        "reward_clip": st.sampled_from([None, 1.0]),
        "reward_level": st.sampled_from(["turn", "trajectory", "return"]),
        "advantage_clip": st.sampled_from([None, 0.5]),
        "length_weight": st.sampled_from([0.0, 0.5, 1.0]),
        "difficulty_weight": st.sampled_from(["none", "learnability", "hard"]),
    }
).map(lambda keys: AlgorithmArgs(**keys))


@given(samples_of(), settings_of)
def test_no_batch_gives_a_number_that_is_not_finite(samples, args) -> None:
    results = token_advantages(args, samples)
    assert len(results) == len(samples)
    for sample, result in zip(samples, results, strict=True):
        assert result.advantages.shape == sample.response_mask.shape
        assert result.advantages.dtype == np.float32
        assert np.isfinite(result.advantages).all()
        assert not result.advantages[sample.response_mask == 0].any()
        assert sample.valid or not result.advantages.any()
        if args.advantage_clip is not None:
            assert np.abs(result.advantages).max() <= args.advantage_clip
        if result.returns is not None:
            assert np.isfinite(result.returns).all()


@given(samples_of(), settings_of, st.randoms(use_true_random=False))
def test_the_order_of_trajectories_changes_nothing(samples, args, random) -> None:
    order = list(range(len(samples)))
    random.shuffle(order)
    straight = token_advantages(args, samples)
    for place, result in enumerate(token_advantages(args, [samples[i] for i in order])):
        expected = straight[order[place]].advantages
        np.testing.assert_allclose(result.advantages, expected, rtol=1e-3, atol=1e-4)


@given(samples_of(), settings_of, rewards)
def test_what_a_failed_trajectory_would_have_earned_changes_nothing(samples, args, reward) -> None:
    rescored = [
        sample if sample.valid else replace(sample, turn_rewards=[reward] * len(sample.turn_rewards))
        for sample in samples
    ]
    alive = [sample for sample in samples if sample.valid]
    without = iter(token_advantages(args, alive))
    both = zip(token_advantages(args, samples), token_advantages(args, rescored), strict=True)
    for sample, (one, other) in zip(samples, both, strict=True):
        np.testing.assert_array_equal(one.advantages, other.advantages)
        if sample.valid:
            np.testing.assert_array_equal(one.advantages, next(without).advantages)


@given(samples_of(), settings_of, st.integers(1, 3))
def test_padding_on_the_right_changes_nothing(samples, args, padding) -> None:
    def padded(values):
        return np.concatenate([values, np.full(padding, 7 if values.dtype == np.float32 else 0)])

    wider = [
        replace(
            sample,
            response_mask=padded(sample.response_mask).astype(np.int8),
            values=padded(sample.values),
            logprobs=padded(sample.logprobs),
            reference_logprobs=padded(sample.reference_logprobs),
        )
        for sample in samples
    ]
    for one, other in zip(token_advantages(args, samples), token_advantages(args, wider), strict=True):
        # A group's mean may be rounded otherwise: with equal rewards that is all there is.
        np.testing.assert_allclose(one.advantages, other.advantages[:-padding], rtol=1e-5, atol=1e-9)
        assert not other.advantages[-padding:].any()


@given(samples_of())
def test_estimators_reduce_to_one_another(samples) -> None:
    """GAE with lambda 1 and no critic is REINFORCE; REINFORCE++ is REINFORCE whitened; GiGPO without its
    step level is GRPO."""

    def run(rows=samples, **keys):
        return [result.advantages for result in token_advantages(AlgorithmArgs(**keys), rows)]

    def assert_same(one, other):
        for left, right in zip(one, other, strict=True):
            np.testing.assert_allclose(left, right, rtol=1e-4, atol=1e-4)

    blind = [replace(s, values=np.zeros_like(s.values), last_value=0.0) for s in samples]
    plain = {"adv_estimator": "reinforce", "reinforce_baseline": "none", "discount_level": "token"}
    assert_same(run(blind, adv_estimator="gae", gamma=0.9, lambd=1.0), run(gamma=0.9, **plain))
    assert_same(run(adv_estimator="reinforce_plus_plus"), run(whiten_advantages=True, **plain))
    assert_same(run(adv_estimator="gigpo", gigpo_step_weight=0.0), run(adv_estimator="grpo"))
    own = [
        replace(s, state_hashes=[f"{i}/{k}" for k in range(9)][: len(s.turn_rewards)])
        for i, s in enumerate(samples)
    ]
    assert_same(run(own, adv_estimator="gigpo"), run(adv_estimator="grpo"))
    centered = {"adv_estimator": "reinforce", "reinforce_baseline": "none"}
    spoken = [s for s in samples if len(s.turn_rewards) == 1]
    assert_same(
        run(spoken, reward_normalize_mean="group", reward_normalize_std="group", **centered),
        run(spoken, adv_estimator="grpo"),
    )


def test_gigpo_adds_the_comparison_of_actions_taken_in_the_same_state() -> None:
    # Both begin in "start"; the first goes on in a state of its own, the second comes back to "start".
    first = make_sample(turn_rewards=[0.0, 0.0, 1.0], state_hashes=["start", "x", "y"])
    second = make_sample(turn_rewards=[0.0, 0.0, 0.0], state_hashes=["start", "start", "z"])
    args = AlgorithmArgs(adv_estimator="gigpo", grpo_normalize_std=False, gigpo_step_weight=2.0, gamma=0.5)
    one, other = (result.advantages for result in token_advantages(args, [first, second]))
    # Returns in "start": 0.25, 0 and 0; episodes: 1 and 0.
    np.testing.assert_allclose(
        one, [0, 0] + [0.5 + 2 * (0.25 - 0.25 / 3)] * 2 + [0, 0] + [0.5] * 3, rtol=1e-5
    )
    np.testing.assert_allclose(other, [0, 0] + [-0.5 - 2 * 0.25 / 3] * 2 + [0, 0] + [-0.5] * 3, rtol=1e-5)


def test_discounting_counts_turns_segments_or_tokens() -> None:
    """The second reply is empty: a turn but no segment; the last two replies have nothing between them."""
    sample = AdvantageSample(
        group_id=0,
        response_mask=np.array([0, 1, 1, 0, 1, 1, 1], np.int8),
        turn_rewards=[1.0, 2.0, 4.0, 8.0],
        turn_spans=[(1, 3), (4, 4), (4, 5), (5, 7)],
    )
    assert steps_of(sample, "turn").rewards_S.tolist() == [1, 2, 4, 8]
    assert steps_of(sample, "reply").rewards_S.tolist() == [3, 4, 8]
    assert steps_of(sample, "segment").rewards_S.tolist() == [3, 12]
    assert steps_of(sample, "token").rewards_S.tolist() == [0, 3, 4, 0, 8]
    expected = {
        "turn": [1 + 1 + 1 + 1, 4, 4 + 4, 8],
        "segment": [3 + 6, 9, 12, 12],
        "token": [0 + 1.5 + 1 + 0 + 0.5, 3 + 2 + 0 + 1, 4 + 0 + 2, 0 + 4],
    }
    for level, (first, second, third, last) in expected.items():
        args = AlgorithmArgs(
            adv_estimator="reinforce", reinforce_baseline="none", gamma=0.5, discount_level=level
        )
        [result] = token_advantages(args, [sample])
        end = 8.0 if level == "token" else last
        found = result.advantages.tolist()
        assert found == [0, first, second if level == "token" else first, 0, third, last, end]


@pytest.mark.parametrize(
    ("level", "expected"),
    [
        # Sums 6 and 0: their mean of 3 comes off the last turn, which leaves 4 and -1.
        ("turn", [[1, -1], [-2]]),
        ("trajectory", [[2, 2], [-2]]),
        # Returns 6, 2 and 0, less their mean of 8/3.
        ("return", [[2, -2 / 3], [-2]]),
    ],
)
def test_what_is_normalized_and_clipped_is_each_turn_or_their_sum_or_the_returns(level, expected) -> None:
    def played(*rewards: float) -> AdvantageSample:
        spans = [(turn, turn + 1) for turn in range(len(rewards))]
        return make_sample(
            response_mask=np.ones(len(rewards), np.int8), turn_rewards=rewards, turn_spans=spans
        )

    args = AlgorithmArgs(
        adv_estimator="reinforce",
        reinforce_baseline="none",
        reward_normalize_mean="group",
        reward_clip=2.0,
        reward_level=level,
    )
    found = token_advantages(args, [played(4.0, 2.0), played(0.0)])
    for each, wanted in zip(found, expected, strict=True):
        np.testing.assert_allclose(each.advantages, wanted, rtol=1e-6)


def test_the_reward_of_an_empty_first_reply_is_in_no_tokens_return() -> None:
    sample = AdvantageSample(
        group_id=0,
        response_mask=np.array([0, 0, 0, 1, 1, 0, 1], np.int8),
        turn_rewards=[5.0, 0.0, 1.0],
        turn_spans=[(1, 1), (3, 5), (6, 7)],
        values=np.zeros(7, np.float32),
    )
    for level in ("reply", "segment"):
        assert steps_of(sample, level).rewards_S.tolist() == [0, 1]
    assert steps_of(sample, "token").rewards_S.tolist() == [0, 0, 1]
    for level in ("turn", "segment", "token"):
        args = AlgorithmArgs(adv_estimator="reinforce", reinforce_baseline="none", discount_level=level)
        [result] = token_advantages(args, [sample])
        assert result.advantages.tolist() == [0, 0, 0, 1, 1, 0, 1]
    for level in ("turn", "token"):
        [result] = token_advantages(AlgorithmArgs(adv_estimator="gae", gae_level=level), [sample])
        assert result.advantages.tolist() == [0, 0, 0, 1, 1, 0, 1]


@given(
    samples_of(max_size=1).filter(bool),
    st.lists(st.tuples(st.integers(0, 4), rewards), max_size=4),
    st.sampled_from(["reply", "segment", "token"]),
    st.booleans(),
)
def test_an_empty_reply_anywhere_adds_its_reward_to_the_step_sampled_before_it(
    samples, empty, level, is_placed
) -> None:
    [sample] = samples
    played = list(zip(sample.turn_spans, sample.turn_rewards, strict=True))
    for place, reward in empty:
        place = min(place, len(played))
        # A reply without tokens may know its place among them, or say (0, 0).
        end = played[place - 1][0][1] if place and is_placed else 0
        played.insert(place, ((end, end), reward))
    with_empty = replace(
        sample, turn_spans=[span for span, _ in played], turn_rewards=[reward for _, reward in played]
    )
    found = steps_of(with_empty, level)
    np.testing.assert_array_equal(found.step_of_token_n, steps_of(sample, level).step_of_token_n)

    expected = np.zeros(len(found.rewards_S))
    step_of_token = dict(zip(found.tokens_n.tolist(), found.step_of_token_n.tolist(), strict=True))
    before = None
    for (start, end), reward in played:
        before = step_of_token[end - 1] if end > start else before
        if before is not None:
            expected[before] += reward
    np.testing.assert_allclose(found.rewards_S, expected, rtol=1e-6, atol=1e-5)


def test_reinforce_plus_plus_counts_the_penalties_still_to_come() -> None:
    logprobs, reference = np.full(9, -1.0, np.float32), np.full(9, -1.5, np.float32)
    sample = make_sample(logprobs=logprobs, reference_logprobs=reference, turn_rewards=[0.0, 0.0, 1.0])
    other = replace(sample, turn_rewards=[0.0, 0.0, 0.0])
    args = AlgorithmArgs(adv_estimator="reinforce_plus_plus", init_kl_coef=0.2)
    results = token_advantages(args, [sample, other])
    plain = np.array([1 - 0.1 * left for left in (5, 4, 3, 2, 1)] + [-0.1 * left for left in (5, 4, 3, 2, 1)])
    expected = (plain - plain.mean()) / (plain.std() + 1e-6)
    found = np.concatenate([result.advantages[sample.response_mask == 1] for result in results])
    np.testing.assert_allclose(found, expected, rtol=1e-5)


def test_an_adapted_weight_replaces_the_initial_one() -> None:
    logprobs, reference = np.full(9, -1.0, np.float32), np.full(9, -1.5, np.float32)
    sample = make_sample(logprobs=logprobs, reference_logprobs=reference)
    strong, weak = (
        AlgorithmArgs(adv_estimator="gae", init_kl_coef=0.4),
        AlgorithmArgs(adv_estimator="gae", init_kl_coef=0.1),
    )
    sample = replace(sample, values=np.zeros(9, np.float32))
    [adapted] = token_advantages(weak, [sample], kl_coef=0.4)
    [fixed] = token_advantages(strong, [sample])
    np.testing.assert_array_equal(adapted.advantages, fixed.advantages)


def test_weights_come_after_whitening_and_clipping_comes_last() -> None:
    short = make_sample(group_id=0, success=True, turn_rewards=[0.0, 0.0, 1.0])
    short = replace(short, response_mask=np.array([0, 0, 1, 0, 0, 0, 0, 0, 0], np.int8))
    short = replace(short, turn_spans=[(2, 3), (3, 3), (3, 3)])
    long = make_sample(group_id=0, turn_rewards=[0.0, 0.0, 0.0])
    plain = token_advantages(AlgorithmArgs(), [short, long])
    weighted = token_advantages(
        AlgorithmArgs(length_weight=1.0, difficulty_weight="hard", advantage_clip=0.4), [short, long]
    )
    # Lengths 1 and 5, mean 3; half of the group succeeded: 3 x 0.5 and 3/5 x 0.5.
    assert plain[0].advantages[2] == pytest.approx(0.7071, abs=1e-4)
    assert weighted[0].advantages[2] == pytest.approx(0.4)
    assert weighted[1].advantages[2] == pytest.approx(-0.7071 * 0.3, abs=1e-4)


def first_turn_only(samples, args):
    """An estimator as a stranger writes it."""
    return [
        TokenAdvantages(advantages=steps_of(s, "turn").spread(np.array([s.turn_rewards[0], 0, 0])))
        for s in samples
    ]


def test_an_estimator_of_your_own_is_found_by_its_dotted_name() -> None:
    args = AlgorithmArgs(adv_estimator=f"{__name__}:first_turn_only")
    [result, failed] = token_advantages(args, [make_sample(), make_sample(valid=False)])
    assert result.advantages.tolist() == [0, 0, 1, 1, 0, 0, 0, 0, 0]
    assert not failed.advantages.any()
    with pytest.raises(ConfigurationError, match="not registered under envsdk"):
        load_estimator("grpp")


def test_missing_inputs_are_named() -> None:
    with pytest.raises(ValueError, match="value head"):
        token_advantages(AlgorithmArgs(adv_estimator="gae"), [make_sample()])
    with pytest.raises(ValueError, match="reference"):
        token_advantages(AlgorithmArgs(init_kl_coef=0.1), [make_sample()])
    with pytest.raises(ValueError, match="hash of the state"):
        token_advantages(AlgorithmArgs(adv_estimator="gigpo"), [make_sample()])
