"""The rewards for the form of a response, and sums of rewards."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envsdk.contracts.failures import ConfigurationError
from envsdk.rewards.loading import load_reward
from envsdk.rewards.reward import Reward, RewardError, RewardFunction, Runs, Sample
from envsdk.rewards.shaping import (
    FormatArgs,
    FormatReward,
    LengthArgs,
    LengthReward,
    RepetitionArgs,
    RepetitionReward,
)
from envsdk.rewards.workers import RewardWorkers


def in_format(response: str, **settings: object) -> bool | None:
    return FormatReward(FormatArgs.model_validate(settings)).score(Sample(response=response)).correct


def test_the_tags_stand_once_and_in_order() -> None:
    good = "<think>a</think>\n<answer>b</answer>\n"
    assert in_format(good)
    assert in_format(good.removeprefix("<think>"), opened_by_prompt=True)
    for bad in (
        good + "x",
        "x" + good,
        good * 2,
        "<answer>b</answer><think>a</think>",
        "<think>a",
        "",
        "<think><think>a</think>",
    ):
        assert not in_format(bad)
    assert not in_format(good, min_think_chars=2)
    assert not in_format(good.replace("a<", "aaa<"), max_think_chars=2)
    assert in_format("anything", tags=[])


def test_a_pattern_matches_from_the_beginning_over_lines() -> None:
    pattern = r"^<think>.*?</think>.*?<answer>.*?</answer>$"
    assert in_format("<think>\n</think> so <answer>1</answer>", pattern=pattern)
    assert not in_format("well <think></think><answer>1</answer>", pattern=pattern)
    with pytest.raises(ConfigurationError, match="pattern"):
        load_reward("format", {"pattern": "("})


@given(st.integers(0, 300), st.integers(1, 200), st.integers(0, 100))
def test_the_punishment_of_length_is_equation_13_of_DAPO(length: int, most: int, part: int) -> None:
    buffer = most * part // 100
    value = (
        LengthReward(LengthArgs(max_length=most, buffer=buffer)).score(Sample(response="x" * length)).value
    )
    if length <= most - buffer:
        assert value == 0
    elif length <= most:
        assert value == pytest.approx(((most - buffer) - length) / buffer)
    else:
        assert value == -1


def test_words_are_counted_where_they_are_the_unit() -> None:
    reward = LengthReward(LengthArgs(max_length=4, buffer=2, unit="words"))
    assert [reward.score(Sample(response="word " * n)).value for n in (2, 3, 4, 5)] == [0, -0.5, -1, -1]


def test_repetition_counts_ngrams_that_occurred_before() -> None:
    reward = RepetitionReward(RepetitionArgs(ngram_size=2))
    assert reward.score(Sample(response="a b c d")).value == 0
    assert reward.score(Sample(response="a B a b a")).value == -0.5
    assert reward.score(Sample(response="a")).value == 0
    assert reward.score(Sample(response="a " * 100_000)).value == pytest.approx(-1, abs=1e-4)


class Loud(RewardFunction):
    """1 for upper case; raises RewardError for `mask`."""

    runs = Runs.INLINE

    def score(self, sample: Sample) -> Reward:
        if sample.response == "mask":
            raise RewardError("no judge")
        return Reward(
            value=float(sample.response.isupper()), verdict="loud" if sample.response.isupper() else "quiet"
        )

    def problem(self, row: object) -> str | None:
        return "it has no pitch"


LOUD = f"{__name__}:Loud"


async def summed(response: str, parts: object, **settings: object) -> Reward:
    workers = RewardWorkers("sum", {"parts": parts, **settings})
    try:
        return await workers.score(Sample(response=response, row={"ground_truth": "4"}))
    finally:
        await workers.close()


async def test_a_sum_adds_weighted_parts_by_name_and_the_first_decides() -> None:
    parts = {
        "answer": {"worker_cls": "exact"},
        "short": {"worker_cls": "length", "weight": 0.5, "max_length": 3, "buffer": 2},
        "inner": {"worker_cls": "sum", "weight": 2, "parts": {"loud": {"worker_cls": LOUD, "weight": 3}}},
    }
    reward = await summed("4", parts)
    assert (reward.value, reward.correct) == (1.0, True)
    assert reward.verdict.startswith("4 is right; short: 1 characters")
    reward = await summed("YES", parts)
    assert reward.parts == {"answer": 0, "short": -0.5, "inner": 6, "inner.loud": 6}
    assert reward.value == sum(reward.parts[name] for name in parts)
    assert reward.correct is False
    assert (await summed("YES", parts, decides="inner")).correct is True


async def test_a_sum_is_masked_where_a_part_is() -> None:
    with pytest.raises(RewardError, match="no judge"):
        await summed("mask", {"answer": {"worker_cls": "exact"}, "loud": {"worker_cls": LOUD}})


def test_a_sum_names_the_part_that_is_wrong() -> None:
    for parts, message in (
        ({"a": {"worker_cls": "exakt"}}, "part 'a'.*exakt"),
        ({"a": {"worker_cls": "length", "max_len": 3}}, "part 'a'.*max_len"),
        ({}, "parts"),
        ({"a": {"worker_cls": LOUD, "nope": 1}}, "part 'a'"),
    ):
        with pytest.raises(ConfigurationError, match=message):
            load_reward("sum", {"parts": parts})
    with pytest.raises(ConfigurationError, match="decides"):
        load_reward("sum", {"parts": {"a": {"worker_cls": "exact"}}, "decides": "b"})
    function = load_reward(
        "sum", {"parts": {"answer": {"worker_cls": "exact"}, "loud": {"worker_cls": LOUD}}}
    )
    assert function.problem({"ground_truth": "4"}) == "loud: it has no pitch"
    assert function.reference(Sample(response="", row={"ground_truth": "4"})) == "4"
