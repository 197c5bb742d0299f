"""Masks and weights of the loss, against ROLL's formulas written out over plain lists."""

from __future__ import annotations

import statistics
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from pydantic import ValidationError

from envsdk.algorithms.advantage_sample import AdvantageSample
from envsdk.algorithms.args import AlgorithmArgs
from envsdk.algorithms.batches import token_advantages
from envsdk.algorithms.masks import left_out, loss_weights
from envsdk.contracts.trajectory import FinishReason, Turn


def sample(
    reward: float = 1.0,
    *,
    length: int = 3,
    group: int = 0,
    is_cut: bool = False,
    valid: bool = True,
    learns: bool = True,
    difficulty: float | None = None,
    tag: str = "math",
) -> AdvantageSample:
    turn = Turn(
        observation="q",
        reply="a",
        reward=reward,
        response_start=1,
        response_end=1 + length,
        finish_reason=FinishReason.LENGTH if is_cut else FinishReason.STOP,
        metrics={} if difficulty is None else {"difficulty": difficulty},
    )
    return AdvantageSample(
        group_id=group,
        tag=tag,
        response_mask=np.array([0] + [1] * length, np.int8),
        turn_rewards=[reward],
        turn_spans=[(1, 1 + length)],
        turns=[turn],
        valid=valid,
        learns=learns,
    )


samples = st.builds(
    sample,
    st.sampled_from([0.0, 0.25, 0.5, 1.0]),
    length=st.integers(0, 6),
    group=st.integers(0, 2),
    is_cut=st.booleans(),
    valid=st.booleans(),
    learns=st.booleans(),
    difficulty=st.sampled_from([None, -1.0, 0.25, 1.0, 7.0]),
    tag=st.sampled_from(["math", "code"]),
)
batches = st.lists(samples, max_size=10)
ALL = {"max_len_mask": True, "difficulty_mask": True, "error_max_len_clip": True}


@example([sample(0.25), sample(0.25)], 0.25, 1.0)
@example([sample(0.5), sample(0.5)], 0.0, 0.5)
@given(batches, st.sampled_from([0.0, 0.1, 0.25]), st.sampled_from([0.5, 0.95, 1.0]))
def test_the_difficulty_mask_keeps_groups_whose_mean_reward_is_between_the_thresholds(
    batch, low, high
) -> None:
    args = AlgorithmArgs(difficulty_mask=True, difficulty_low_threshold=low, difficulty_high_threshold=high)
    found = left_out(args, batch)["difficulty"]
    for each, out in zip(batch, found, strict=True):
        rewards = [s.turn_rewards[0] for s in batch if s.valid and s.group_id == each.group_id]
        keeps = not each.valid or len(rewards) == 1 or low < statistics.fmean(rewards) < high
        assert out == (not keeps)


@given(batches, st.sampled_from([None, 1, 3]))
def test_error_max_len_clip_keeps_right_answers_and_short_wrong_ones(batch, threshold) -> None:
    args = AlgorithmArgs(error_max_len_clip=True, error_max_len_threshold=threshold)
    for each, out in zip(batch, left_out(args, batch)["error_max_len"], strict=True):
        score, length = each.turn_rewards[0], int(each.response_mask.sum())
        keeps = (score == 0 and length < (threshold or 9999999999)) or score == 1
        assert out == (each.valid and not keeps)


@given(batches)
def test_max_len_mask_goes_by_the_finish_reason_and_no_mask_is_on_by_default(batch) -> None:
    found = left_out(AlgorithmArgs(max_len_mask=True), batch)["max_len"]
    assert found.tolist() == [s.valid and s.turns[0].finish_reason is FinishReason.LENGTH for s in batch]
    assert left_out(AlgorithmArgs(), batch) == {}
    assert set(left_out(AlgorithmArgs(**ALL), batch)) == {"max_len", "difficulty", "error_max_len"}


def test_a_reply_at_any_turn_that_was_cut_counts() -> None:
    cut, plain = sample(is_cut=True), sample()
    both = replace(plain, turns=[*cut.turns, *plain.turns])
    assert left_out(AlgorithmArgs(max_len_mask=True), [both])["max_len"].tolist() == [True]


@given(batches, st.booleans(), st.booleans())
def test_weights_are_those_of_the_formula_divided_by_their_mean(batch, by_difficulty, by_length) -> None:
    args = AlgorithmArgs(difficulty_loss_weight=by_difficulty, length_loss_weight=by_length)
    weights = loss_weights(args, batch)
    counted = [i for i, s in enumerate(batch) if s.valid and s.learns]
    lengths = {i: int(batch[i].response_mask.sum()) for i in counted}
    expected = {}
    for i in counted:
        weight = 1.0
        difficulty = batch[i].turns[0].metrics.get("difficulty")
        if by_difficulty and difficulty is not None:
            weight *= 0.5 + 1.5 * min(max(difficulty, 0.0), 1.0)
        shortest, longest = min(lengths.values()), max(lengths.values())
        if by_length and longest > shortest:
            weight *= 1.5 - (lengths[i] - shortest) / (longest - shortest)
        expected[i] = weight
    mean = statistics.fmean(expected.values()) if expected else 1.0
    assert weights.shape == (len(batch),)
    for i in range(len(batch)):
        assert weights[i] == pytest.approx(expected.get(i, mean) / mean)


@given(batches, st.sampled_from(["grpo", "reinforce"]), st.booleans(), st.sampled_from(["batch", "tag"]))
def test_what_does_not_learn_has_no_advantage_and_is_in_no_mean(batch, estimator, whiten, over) -> None:
    args = AlgorithmArgs(
        adv_estimator=estimator, reinforce_baseline="none", whiten_advantages=whiten, whiten_over=over
    )
    results = [
        r.advantages[s.response_mask == 1] for r, s in zip(token_advantages(args, batch), batch, strict=True)
    ]
    for each, found in zip(batch, results, strict=True):
        assert np.isfinite(found).all()
        assert (each.valid and each.learns) or not found.any()
    if not whiten:
        # Its outcome still counts in its group's mean: the others' advantages do not depend on the mask.
        everyone = token_advantages(args, [replace(s, learns=True) for s in batch])
        for each, found, full in zip(batch, results, everyone, strict=True):
            if each.learns:
                np.testing.assert_array_equal(found, full.advantages[each.response_mask == 1])
        return
    for tag in {s.tag if over == "tag" else "" for s in batch}:
        chosen = [
            f for f, s in zip(results, batch, strict=True) if s.valid and s.learns and tag in ("", s.tag)
        ]
        tokens = np.concatenate(chosen) if chosen else np.zeros(0)
        if tokens.any():
            assert tokens.mean() == pytest.approx(0, abs=1e-5)
            assert tokens.std() == pytest.approx(1, abs=1e-3)


def test_the_last_weight_is_applied_after_the_clip_as_it_is_to_the_loss() -> None:
    args = AlgorithmArgs(
        adv_estimator="reinforce", reinforce_baseline="none", advantage_clip=0.5, length_loss_weight=True
    )
    short, long = token_advantages(args, [sample(2.0, length=1), sample(2.0, length=5)])
    assert short.advantages[1:].tolist() == [0.75]
    assert long.advantages[1:].tolist() == [0.25] * 5


def test_thresholds_that_leave_no_room_are_refused() -> None:
    with pytest.raises(ValidationError, match=r"difficulty_low_threshold: 1 is not below"):
        AlgorithmArgs(difficulty_mask=True, difficulty_low_threshold=1.0, difficulty_high_threshold=1.0)
