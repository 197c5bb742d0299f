"""What a run's episodes and training steps take: stated in a file or measured in a run's folder. Pure.

Every draw is a function of the task, the member, the attempt and the turn, so two simulated runs that play
the same episodes draw the same durations.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, NonNegativeFloat, PositiveFloat, PositiveInt

from envsdk.base.settings.strict import StrictSettings
from envsdk.managers.ledger_types import Lease
from envsdk.view.planning.simulation import EpisodeDraw, TurnDraw

_NORMAL = NormalDist()
_MASK = 2**64 - 1
Share = Annotated[float, Field(ge=0, lt=1)]


class Distribution(StrictSettings):
    """A number, or the shape that numbers are drawn from."""

    kind: Literal["constant", "normal", "lognormal"] = "constant"
    mean: NonNegativeFloat
    std: NonNegativeFloat = 0.0
    """Standard deviation of a normal distribution, which is cut off at 0."""
    sigma: NonNegativeFloat = 0.0
    """Shape of a lognormal distribution: the standard deviation of the logarithm."""
    most: PositiveFloat | None = None
    """Larger draws become this."""

    def draw(self, key: int, which: int) -> float:
        """The draw number `which` of an episode."""
        is_fixed = self.kind == "constant" and self.most is None
        return self.mean if is_fixed else self.quantile(_uniform(key, which))

    def quantile(self, uniform: float) -> float:
        """The value below which a share `uniform` of the draws lies, in (0, 1)."""
        drawn = self.mean
        if self.kind == "normal":
            drawn = max(0.0, self.mean + self.std * _NORMAL.inv_cdf(uniform))
        elif self.kind == "lognormal":
            drawn = self.mean * math.exp(self.sigma * _NORMAL.inv_cdf(uniform) - self.sigma**2 / 2)
        return drawn if self.most is None else min(drawn, self.most)


def _from_number(value: Any) -> Any:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return {"mean": value} if is_number else value


Drawn = Annotated[Distribution, BeforeValidator(_from_number)]
"""A number is a constant."""


class Delay(StrictSettings):
    """Now and then a step takes longer: an environment that hangs for a while."""

    rate: Share
    """Share of the steps."""
    delay_s: NonNegativeFloat
    """Seconds more."""


class TrainTime(StrictSettings):
    """How long a training step takes on `devices`: `base_s` + tokens x `token_s` / devices ^ `scaling`."""

    base_s: NonNegativeFloat = 0.0
    """Seconds that do not depend on the batch."""
    token_s: NonNegativeFloat = 0.0
    """Seconds of one device per token."""
    scaling: Annotated[float, Field(ge=0, le=1)] = 1.0
    """1: twice the devices take half the time; 0: they change nothing."""

    def seconds(self, num_tokens: float, devices: float) -> float:
        """Seconds of a step on so many tokens."""
        return self.base_s + num_tokens * self.token_s / float(devices**self.scaling)


class EngineTime(StrictSettings):
    """How long a reply takes: (`first_token_s` + tokens x `token_s`) x the slowdown under load."""

    first_token_s: NonNegativeFloat = 0.0
    """Seconds from a request to its first token, alone on an engine."""
    token_s: NonNegativeFloat = 0.0
    """Seconds per sampled token, alone on an engine."""
    slowdown: dict[PositiveInt, PositiveFloat] = Field(default_factory=dict)
    """How many times longer a reply takes, by the number of replies that the engine samples at once. Between
    these points, and after the last two, in straight lines."""


class Timings(StrictSettings):
    """What a step takes besides the episodes."""

    engine: EngineTime = EngineTime()
    """Times of one engine."""
    train: TrainTime = TrainTime()
    """Times of a training step."""
    update_s: NonNegativeFloat = 0.0
    """Seconds from the end of a training step until all engines sample under the new weights."""
    pause_s: NonNegativeFloat = 0.0
    """The last part of it, in which the engines stand still."""
    switch_s: NonNegativeFloat = 0.0
    """Seconds of a step in which devices change hands, where sampling and training share them."""
    collect_s: NonNegativeFloat = 0.0
    """Seconds from a batch's completion to the start of its training step."""
    turn_overhead_s: NonNegativeFloat = 0.0
    """Seconds of a turn, besides the reply and the environment."""


class StatedEpisodes(StrictSettings):
    """Episodes by distributions. Turns, tokens and seconds are drawn independently."""

    num_turns: Drawn = Distribution(mean=1)
    """Turns of an episode; rounded, at least 1."""
    reply_tokens: Drawn = Distribution(mean=100)
    """Tokens of a reply."""
    observation_tokens: Drawn = Distribution(mean=0)
    """That a turn adds to the prompt."""
    env_s: Drawn = Distribution(mean=0)
    """Seconds of a step."""
    reset_s: Drawn = Distribution(mean=0)
    """Seconds of a reset."""
    env_delay: Delay | None = None
    """A tail of the steps."""
    failed: Share = 0.0
    """Episodes that fail."""
    filtered: Share = 0.0
    """Groups that a filter drops."""

    def draw(self, lease: Lease, timings: Timings, seed: int) -> EpisodeDraw:
        """The episode of a lease."""
        key = _key(seed, lease)
        num_turns = max(1, round(self.num_turns.draw(key, 0)))
        engine, turns, total = timings.engine, [], 0.0
        for index in range(num_turns):
            at = 8 * index
            reply = max(1.0, self.reply_tokens.draw(key, at + 4))
            env_s = self.env_s.draw(key, at + 5) + timings.turn_overhead_s
            if self.env_delay is not None and _uniform(key, at + 6) < self.env_delay.rate:
                env_s += self.env_delay.delay_s
            total += self.observation_tokens.draw(key, at + 7) + reply
            turns.append(TurnDraw(engine.first_token_s + reply * engine.token_s, env_s, round(total)))
        return EpisodeDraw(
            turns=turns,
            reset_s=self.reset_s.draw(key, 1),
            num_tokens=round(total),
            is_failed=_uniform(key, 2) < self.failed,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredEpisode:
    """One recorded episode."""

    reply_tokens: tuple[int, ...]
    """Tokens of each turn."""
    prompt_tokens: tuple[int, ...]
    """Before each reply."""
    num_tokens: int
    reply_factor: float = 1.0
    """How many times longer its replies took than the engine's timings say."""
    turn_env_s: float = 0.0
    """Seconds of each turn, its reset shared out."""
    is_failed: bool = False


@dataclass(frozen=True, slots=True)
class MeasuredEpisodes:
    """Recorded episodes, drawn by group, so that what the members of a group have in common stays."""

    groups: Sequence[Sequence[MeasuredEpisode]]
    filtered: float = 0.0

    def draw(self, lease: Lease, timings: Timings, seed: int) -> EpisodeDraw:
        """The episode of a lease: members beyond those of the recorded group begin again with its first."""
        of_task = _mixed(seed * 0x9E3779B97F4A7C15 + lease.task.index)
        group = self.groups[of_task % len(self.groups)]
        found = group[(of_task // len(self.groups) + lease.member + lease.attempt) % len(group)]
        engine = timings.engine
        turns = [
            TurnDraw(
                (engine.first_token_s + tokens * engine.token_s) * found.reply_factor,
                found.turn_env_s + timings.turn_overhead_s,
                prompt + tokens,
            )
            for tokens, prompt in zip(found.reply_tokens, found.prompt_tokens, strict=True)
        ]
        return EpisodeDraw(turns=turns, num_tokens=found.num_tokens, is_failed=found.is_failed)


Episodes = StatedEpisodes | MeasuredEpisodes


def dropped_groups(episodes: Episodes, seed: int) -> Callable[[int], bool] | None:
    """Whether the group of a task index is dropped; None when none is."""
    if not episodes.filtered:
        return None
    return lambda index: _uniform(_mixed(seed * 0x9E3779B97F4A7C15 + index), 3) < episodes.filtered


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """Episodes and timings."""

    episodes: Episodes
    timings: Timings


def _key(seed: int, lease: Lease) -> int:
    task = _mixed(seed * 0x9E3779B97F4A7C15 + lease.task.index)
    return _mixed(task + 0xBF58476D1CE4E5B9 * (lease.member + 1) + 0x94D049BB133111EB * lease.attempt)


def _uniform(key: int, which: int) -> float:
    """In (0, 1)."""
    return (_mixed(key + 0xD6E8FEB86659FD93 * (which + 1)) >> 11) / 2**53 + 2.0**-54


def _mixed(value: int) -> int:
    """SplitMix64's finalizer: neighbors become unrelated 64-bit numbers."""
    value &= _MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)
