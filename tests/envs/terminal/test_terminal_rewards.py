"""What counts as a reward, and what a task's steps come to."""

from __future__ import annotations

import json
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envsdk.envs.terminal.harbor.rewards import NoReward, combined, gate_failed, read_rewards, scalar

numbers = st.floats(allow_nan=False, allow_infinity=False) | st.integers(-(10**6), 10**6)
rewards = st.dictionaries(st.sampled_from(["reward", "speed", "size"]), numbers.map(float), min_size=1)


def test_reward_json_counts_before_reward_txt() -> None:
    assert read_rewards(b'{"reward": 0.5, "speed": 3}', b"1") == {"reward": 0.5, "speed": 3.0}
    assert read_rewards(b"0.25", None) == {"reward": 0.25}
    assert read_rewards(None, b" 1\n") == {"reward": 1.0}


def test_true_is_1_in_reward_json_as_in_harbor_and_no_number_in_reward_txt() -> None:
    found = read_rewards(b'{"reward": true, "speed": false}', None)
    assert found == {"reward": 1.0, "speed": 0.0}
    assert all(type(value) is float for value in found.values())
    assert read_rewards(b"true", None) == {"reward": 1.0}
    with pytest.raises(NoReward, match="holds no number: 'true'"):
        read_rewards(None, b"true")


@pytest.mark.parametrize(
    ("json_file", "text_file", "said"),
    [
        (None, None, "neither /logs/verifier/reward.json nor"),
        (None, b"", "it is empty"),
        (None, b"  \n", "it is empty"),
        (None, b"one", "holds no number: 'one'"),
        (None, b"nan", "reward.txt is NaN, not a finite number"),
        (None, b"1e999", "not a finite number"),
        (b"", b"1", "reward.json is no JSON: it is empty"),
        (b"{}", b"1", "names no reward"),
        (b"[1]", b"1", "reward.json: reward is [1]"),
        (b'{"reward": NaN}', b"1", "reward.json: reward is NaN"),
        (b'{"reward": 1, "b": "1"}', b"1", 'reward.json: b is "1"'),
        (b'{"reward": 1' + b"0" * 400 + b"}", b"1", "not a finite number"),
        (b"[" * 100_000, b"1", "is no JSON"),
        (b"\xff", b"1", "is no JSON"),
    ],
)
def test_anything_else_is_no_reward_and_never_0(
    json_file: bytes | None, text_file: bytes | None, said: str
) -> None:
    with pytest.raises(NoReward) as error:
        read_rewards(json_file, text_file)
    assert said in str(error.value)


@given(rewards)
def test_finite_numbers_are_read_as_they_are_written(found: dict[str, float]) -> None:
    assert read_rewards(json.dumps(found).encode(), None) == found


def test_the_number_that_is_paid_is_named_or_the_only_one() -> None:
    assert scalar({"reward": 1, "speed": 9}, "reward") == 1
    assert scalar({"speed": 9}, "reward") == 9
    with pytest.raises(NoReward, match="name one by `reward_key`: size, speed"):
        scalar({"size": 1, "speed": 9}, "reward")


def test_a_gate_is_missed_below_its_reward_or_without_it() -> None:
    assert gate_failed({"reward": 0.5}, {"reward": 0.5}) == ""
    assert gate_failed({"reward": 0.4}, {"reward": 0.5}) == "reward = 0.4 is below min_reward 0.5"
    assert gate_failed({"reward": 1}, {"speed": 0}) == "speed is missing, and has the min_reward 0"


@given(st.lists(rewards, min_size=1, max_size=4))
def test_the_mean_counts_a_missing_reward_as_0(stages: list[dict[str, float]]) -> None:
    assert combined(stages, "final") == stages[-1]
    mean = combined(stages, "mean")
    assert set(mean) == {name for each in stages for name in each}
    for name, value in mean.items():
        total = sum(Fraction(each.get(name, 0.0)) for each in stages)
        assert value == pytest.approx(float(total / len(stages)))


def test_the_mean_of_rewards_whose_sum_is_no_number_is_one() -> None:
    assert combined([{"reward": 1.7e308}, {"reward": 1.7e308}], "mean") == {"reward": 1.7e308}
