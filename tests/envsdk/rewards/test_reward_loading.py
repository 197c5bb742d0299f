"""Reward functions by name: what is wrong with their settings is named."""

from __future__ import annotations

import pytest

from envsdk.contracts.failures import ConfigurationError
from envsdk.rewards.loading import load_reward
from envsdk.rewards.reward import Reward, RewardError, RewardFunction, Sample


class Plain(RewardFunction):
    def score(self, sample: Sample) -> Reward:
        return Reward(value=float(sample.response == sample.ground_truth))


class Broken(Plain):
    def __init__(self) -> None:
        raise RuntimeError("no disk")


@pytest.mark.parametrize(("setting", "hint"), [("timeout", "timeout_s"), ("wold_size", "world_size")])
def test_an_unknown_setting_is_named_with_the_nearest(setting: str, hint: str) -> None:
    with pytest.raises(ConfigurationError, match=f"has no setting `{setting}`; did you mean `{hint}`"):
        load_reward(f"{__name__}:Plain", {setting: 3})


def test_a_constructor_that_raises_is_a_wrong_configuration() -> None:
    with pytest.raises(ConfigurationError, match="cannot be constructed: RuntimeError: no disk"):
        load_reward(f"{__name__}:Broken", {})


@pytest.mark.parametrize("row", [{}, {"ground_truth": None}])
def test_a_row_without_a_ground_truth_cannot_be_scored_by_it(row: dict[str, None]) -> None:
    with pytest.raises(RewardError, match="has no ground_truth"):
        Plain().score(Sample(response="", row=row))


@pytest.mark.parametrize(("name", "alone"), [("math", "5"), ("math", 5), ("exact", "5"), ("choice", "B")])
def test_a_list_with_one_ground_truth_is_that_ground_truth(name: str, alone: str | int) -> None:
    reward = load_reward(name, {})
    row = {"ground_truth": [alone]}
    assert reward.problem(row) is None
    assert reward.score(
        Sample(response=str(alone) if name == "exact" else f"\\boxed{{{alone}}}", row=row)
    ).correct
    assert reward.problem({"ground_truth": [alone, alone]}) is not None
    assert reward.problem({"ground_truth": [[alone]]}) is not None
