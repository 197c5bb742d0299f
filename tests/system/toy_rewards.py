"""Rewards that a policy with random weights earns now and then."""

from __future__ import annotations

from envsdk.rewards.reward import Reward, RewardFunction, Runs, Sample


class Digits(RewardFunction):
    """The share of digits in a response; scored in a worker process."""

    def score(self, sample: Sample) -> Reward:
        digits = sum(character.isdigit() for character in sample.response)
        value = digits / max(1, len(sample.response))
        return Reward(value=value, verdict=f"{digits} digits", parts={"digits": value})


class Short(RewardFunction):
    """More for shorter responses; scored in the event loop."""

    runs = Runs.INLINE

    def score(self, sample: Sample) -> Reward:
        return Reward(value=1 / (1 + len(sample.response)), verdict=f"{len(sample.response)} characters")
