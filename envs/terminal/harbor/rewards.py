"""What a verifier's reward files say, and what a task's stages come to; pure."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any, Literal

Rewards = Mapping[str, float]
"""Rewards by name; `reward` where the verifier writes one number."""


class NoReward(Exception):
    """A verifier has left no reward that can be used: the task's fault, and no score of the episode."""


def read_rewards(json_file: bytes | None, text_file: bytes | None) -> dict[str, float]:
    """The rewards of `reward.json`, or of `reward.txt` where there is none; None is a missing file.

    As in Harbor, `true` is 1 and `false` is 0.

    Raises NoReward: both are missing, or the one that counts is empty or holds anything but finite numbers.
    """
    if json_file is not None:
        try:
            said = json.loads(json_file)
        except (ValueError, RecursionError):
            raise NoReward(f"reward.json is no JSON: {_shown(json_file)}") from None
        found = said if isinstance(said, dict) else {"reward": said}
        if not found:
            raise NoReward("reward.json names no reward")
        return {name: _finite(value, f"reward.json: {name}") for name, value in found.items()}
    if text_file is None:
        raise NoReward("neither /logs/verifier/reward.json nor /logs/verifier/reward.txt was written")
    try:
        return {"reward": _finite(float(text_file), "reward.txt")}
    except ValueError:
        raise NoReward(f"reward.txt holds no number: {_shown(text_file)}") from None


def _finite(value: Any, where: str) -> float:
    if isinstance(value, int | float):
        try:
            number = float(value)
        except OverflowError:
            number = math.inf
        if math.isfinite(number):
            return number
    raise NoReward(f"{where} is {json.dumps(value)[:80]}, not a finite number")


def _shown(content: bytes) -> str:
    return repr(content[:80].decode(errors="replace")) if content.strip() else "it is empty"


def scalar(rewards: Rewards, key: str) -> float:
    """The number that an episode is paid: the reward `key`, or the only one there is.

    Raises NoReward: there are several, and none has this name.
    """
    if key in rewards:
        return rewards[key]
    if len(rewards) == 1:
        return next(iter(rewards.values()))
    raise NoReward(
        f"several rewards and none is named {key!r}: name one by `reward_key`: {', '.join(rewards)}"
    )


def gate_failed(rewards: Rewards, gates: Mapping[str, float]) -> str:
    """Which of a step's `min_reward` is missed; empty where none is."""
    for name, least in gates.items():
        if name not in rewards:
            return f"{name} is missing, and has the min_reward {least:g}"
        if rewards[name] < least:
            return f"{name} = {rewards[name]:g} is below min_reward {least:g}"
    return ""


def combined(stages: Sequence[Rewards], strategy: Literal["mean", "final"]) -> dict[str, float]:
    """What the stages that were played come to: the last one's, or means by name, a missing one being 0."""
    if strategy == "final":
        return dict(stages[-1])
    names = dict.fromkeys(name for rewards in stages for name in rewards)
    return {name: statistics.mean(rewards.get(name, 0.0) for rewards in stages) for name in names}
