"""Pure: which of the played episodes are kept.

filters = EpisodeFilters(success_only=True, max_turns=8)
filters.reason_to_drop(trajectory)      # None, or "not_solved", "too_long" ...

seen = Deduplicator(Duplicates.EPISODE)
seen.is_new(trajectory)                 # False for the second of its kind
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated, Any, Self

from pydantic import Field, model_validator

from envsdk.base.settings.options import Options
from envsdk.contracts.trajectory import Outcome, Trajectory

DUPLICATE = "duplicate"
"""Why a repeated episode was dropped."""


class EpisodeFilters(Options):
    """Conditions for keeping an episode; None is no condition. Any filter drops failed episodes."""

    success_only: bool = False
    """Keep solved episodes alone."""
    min_reward: float | None = None
    """Least total reward that is kept."""
    max_reward: float | None = None
    """Largest total reward that is kept."""
    min_turns: Annotated[int | None, Field(ge=0)] = None
    """Fewest turns that are kept."""
    max_turns: Annotated[int | None, Field(ge=0)] = None
    """Most turns that are kept."""
    max_tokens: int | None = None
    """Most tokens that are kept, prompts included; for policies with tokens."""

    @model_validator(mode="after")
    def _may_keep_something(self) -> Self:
        for low, high in (("min_reward", "max_reward"), ("min_turns", "max_turns")):
            least, most = getattr(self, low), getattr(self, high)
            if least is not None and most is not None and least > most:
                raise ValueError(f"{low}={least:g} is above {high}={most:g}: nothing would be kept")
        return self

    def __bool__(self) -> bool:
        return bool(self.to_json())

    def to_json(self) -> dict[str, Any]:
        """The conditions that are set."""
        return self.model_dump(exclude_defaults=True)

    def reason_to_drop(self, trajectory: Trajectory) -> str | None:
        """None when the episode is kept."""
        if not self:
            return None
        if trajectory.outcome is Outcome.FAILED:
            return "failed"
        if self.success_only and not trajectory.success:
            return "not_solved"
        if not _within(trajectory.total_reward, self.min_reward, self.max_reward):
            return "reward"
        if not _within(len(trajectory.turns), self.min_turns, None):
            return "too_short"
        if not _within(len(trajectory.turns), None, self.max_turns):
            return "too_long"
        if self.max_tokens is not None and (
            trajectory.tokens is None or len(trajectory.tokens) > self.max_tokens
        ):
            return "too_many_tokens"
        return None


def _within(value: float, least: float | None, most: float | None) -> bool:
    # Written so that NaN is within no limits.
    return (least is None or value >= least) and (most is None or value <= most)


class Duplicates(StrEnum):
    """What makes two episodes of a tag the same."""

    EPISODE = "episode"
    """Every observation and every reply."""
    TASK = "task"
    """The first observation: of each task one episode is kept."""


class Deduplicator:
    """Keeps the first of each kind. Holds a digest per kept episode, some 100 bytes of memory."""

    def __init__(self, kind: Duplicates) -> None:
        self._kind = kind
        self._seen: set[bytes] = set()

    def is_new(self, trajectory: Trajectory) -> bool:
        """Whether this is the first episode of its kind. Failed ones without a turn always are."""
        if trajectory.outcome is Outcome.FAILED and not trajectory.turns:
            return True
        digest = episode_digest(trajectory, self._kind)
        if digest in self._seen:
            return False
        self._seen.add(digest)
        return True


def episode_digest(trajectory: Trajectory, kind: Duplicates) -> bytes:
    """16 bytes, equal for the same episodes."""
    digest = hashlib.blake2b(digest_size=16)

    def add(text: str) -> None:
        encoded = text.encode("utf-8", "surrogatepass")
        digest.update(len(encoded).to_bytes(8, "big"))
        digest.update(encoded)

    add(trajectory.task.tag)
    if kind is Duplicates.TASK:
        add(trajectory.turns[0].observation if trajectory.turns else trajectory.final_observation)
        return digest.digest()
    for turn in trajectory.turns:
        add(turn.observation)
        add(turn.reply)
    add(trajectory.final_observation)
    return digest.digest()


def selection_config(filters: EpisodeFilters, duplicates: Duplicates | None) -> Mapping[str, Any]:
    """What a data set's configuration says about its selection; empty when everything is kept."""
    chosen: dict[str, Any] = {}
    if filters:
        chosen["filters"] = filters.to_json()
    if duplicates is not None:
        chosen["deduplicate"] = duplicates.value
    return chosen
