"""Reward functions for tests."""

from __future__ import annotations

from envsdk.rewards.reward import Reward, RewardError, RewardFunction, Runs, Sample


class SameText(RewardFunction):
    """1 for the reference answer; `unreachable` is nobody's fault."""

    runs = Runs.INLINE

    def score(self, sample: Sample) -> Reward:
        if sample.response == "unreachable":
            raise RewardError("the judge is away")
        right = sample.response == sample.ground_truth
        verdict = f"{sample.response} is {'right' if right else 'wrong'}"
        return Reward(value=float(right), verdict=verdict, parts={"same": float(right)})
