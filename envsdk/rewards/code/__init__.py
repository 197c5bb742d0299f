"""The reward `code`: programs, judged by test cases in a sandbox."""

from envsdk.rewards.code.reward import CodeReward

__all__ = ["CodeReward"]
