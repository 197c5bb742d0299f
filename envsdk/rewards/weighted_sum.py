"""The `sum` reward: a weighted sum of other rewards, each with its own workers and deadline.

worker_cls: sum
parts:
  answer: {worker_cls: math, world_size: 4}
  form: {worker_cls: format, weight: 0.1}
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, Self

from pydantic import ConfigDict, Field, model_validator

from envsdk.base.settings.strict import StrictSettings
from envsdk.contracts.failures import ConfigurationError
from envsdk.rewards.reward import AsyncRewardFunction, Reward, Sample
from envsdk.rewards.workers import RewardWorkers


class Part(StrictSettings):
    """One reward of a sum; all further keys are its own settings."""

    model_config = ConfigDict(extra="allow")

    worker_cls: str
    """A reward's name, or `package.module:Class`."""
    weight: float = 1.0
    """What its value is multiplied by."""
    world_size: int = Field(default=1, ge=1)
    """Its worker processes."""
    timeout_s: float = Field(default=10.0, gt=0)
    """The deadline for one response."""
    infer_batch_size: int = Field(default=1, ge=1)
    """Responses that are scored together, where the reward can."""


class SumArgs(StrictSettings):
    """The settings of `sum`."""

    parts: dict[str, Part] = Field(min_length=1)
    """The rewards that are added, by name; a part may be a `sum`."""
    decides: str = ""
    """The part that says whether a response is correct; empty: the first."""

    @model_validator(mode="after")
    def _decides_is_a_part(self) -> Self:
        if self.decides and self.decides not in self.parts:
            raise ValueError(f"decides: {self.decides!r} is none of the parts {', '.join(self.parts)}")
        return self


class SumReward(AsyncRewardFunction):
    """The sum of weight times value over its parts, which are scored side by side."""

    Args = SumArgs
    keeps_deadline = True

    def __init__(self, args: SumArgs) -> None:
        """Raises ConfigurationError, which names the part."""
        self._weights = {name: part.weight for name, part in args.parts.items()}
        self._decides = args.decides or next(iter(args.parts))
        self._workers = {name: _workers(name, part) for name, part in args.parts.items()}

    async def score_async(self, sample: Sample) -> Reward:
        """Raises RewardError when one part does."""
        scored = await asyncio.gather(*(workers.score(sample) for workers in self._workers.values()))
        return self._add(dict(zip(self._workers, scored, strict=True)))

    async def close(self) -> None:
        for workers in self._workers.values():
            await workers.close()

    def reference(self, sample: Sample) -> str | None:
        """What solves the task for the part that decides."""
        return self._workers[self._decides].function.reference(sample)

    def unscorable(self, reason: str) -> Reward:
        return self._add({name: each.function.unscorable(reason) for name, each in self._workers.items()})

    def problem(self, row: Mapping[str, Any]) -> str | None:
        """The first problem that a part has with the row."""
        problems = ((name, workers.function.problem(row)) for name, workers in self._workers.items())
        return next((f"{name}: {problem}" for name, problem in problems if problem), None)

    def _add(self, rewards: Mapping[str, Reward]) -> Reward:
        parts: dict[str, float] = {}
        for name, reward in rewards.items():
            parts[name] = self._weights[name] * reward.value
            if isinstance(self._workers[name].function, SumReward):
                parts.update(
                    {f"{name}.{sub}": self._weights[name] * part for sub, part in reward.parts.items()}
                )
        decisive = rewards[self._decides]
        others = [f"{name}: {each.verdict}" for name, each in rewards.items() if name != self._decides]
        return Reward(
            value=sum(parts[name] for name in rewards),
            verdict="; ".join([decisive.verdict, *others]),
            correct=decisive.success,
            parts=parts,
        )


def _workers(name: str, part: Part) -> RewardWorkers:
    try:
        return RewardWorkers(
            part.worker_cls,
            part.model_extra or {},
            world_size=part.world_size,
            timeout_s=part.timeout_s,
            infer_batch_size=part.infer_batch_size,
        )
    except ConfigurationError as error:
        raise ConfigurationError(f"part {name!r}: {error}") from error
