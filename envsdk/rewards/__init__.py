"""Rewards of responses to prompts: the contract of one, and how one is made by name (docs/rewards.md)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from envsdk.base.settings.public import public_names

if TYPE_CHECKING:
    from envsdk.rewards.loading import load_reward
    from envsdk.rewards.reward import AsyncRewardFunction, Reward, RewardError, RewardFunction, Runs, Sample
    from envsdk.rewards.workers import RewardWorkers

_LAZY = {
    "AsyncRewardFunction": "envsdk.rewards.reward",
    "Reward": "envsdk.rewards.reward",
    "RewardError": "envsdk.rewards.reward",
    "RewardFunction": "envsdk.rewards.reward",
    "RewardWorkers": "envsdk.rewards.workers",
    "Runs": "envsdk.rewards.reward",
    "Sample": "envsdk.rewards.reward",
    "load_reward": "envsdk.rewards.loading",
}

__all__ = [
    "AsyncRewardFunction",
    "Reward",
    "RewardError",
    "RewardFunction",
    "RewardWorkers",
    "Runs",
    "Sample",
    "load_reward",
]

__getattr__, __dir__ = public_names(__name__, _LAZY)
