"""`HostedEnv` and `AsyncHostedEnv`: bases of environments around another package's environment."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from gymnasium.error import ResetNeeded
from gymnasium.spaces import Text

from envsdk.adapters.text import MAX_OBSERVATION_LENGTH, as_observation
from envsdk.contracts.env import AsyncTextEnv, Info, TextEnv
from envsdk.contracts.turn_env import AnyText, AnyTextSpaces


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """How the other package's environment answers a reply."""

    observation: object = ""
    """Shown as text."""
    reward: float = 0.0
    terminated: bool = False
    truncated: bool = False
    success: bool = False
    metrics: Mapping[str, float] = field(default_factory=dict)
    note: str = ""
    """Why the reply did not parse; then nothing else counts, and the last observation is shown again."""


def explains_itself(**_: Any) -> str:
    """The system prompt of environments whose first observation says all, the form of a reply included."""
    return "Do what the first message asks for, and reply in the form that it asks for."


class HostedEpisode(AnyTextSpaces):
    """An episode of another package's environment: counts turns, keeps what was shown, answers late replies.

    Any text becomes one that can be tokenized and stored.
    """

    metadata = {"render_modes": []}  # noqa: RUF012 (gymnasium declares it so)

    def __init__(self, *, max_steps: int, invalid_penalty: float = 0.0) -> None:
        """
        Args:
            max_steps: Replies before the episode is truncated, at least 1.
            invalid_penalty: Taken off the reward of a turn whose reply does not parse.
        """
        if isinstance(max_steps, bool) or not isinstance(max_steps, int) or max_steps < 1:
            raise ValueError(f"max_steps: must be a whole number of at least 1, not {max_steps!r}")
        self.max_steps = max_steps
        self._invalid_penalty = invalid_penalty
        self._seed: int | None = None
        """Seed of the episode; None before the first one."""
        self._turn = 0
        self._shown = ""
        """The last observation without notes."""
        self._note = ""
        self._terminated = self._truncated = self._success = False

    @cached_property
    def observation_space(self) -> Text:  # type: ignore[override]
        """What `as_observation` returns, with room for a note after it."""
        return AnyText(2 * MAX_OBSERVATION_LENGTH, min_length=1)

    def _begun(self, seed: int) -> None:
        """Start an episode; `_show` its first observation next."""
        self._seed, self._turn, self._note = seed, 0, ""
        self._terminated = self._truncated = self._success = False

    def _show(self, observation: object) -> str:
        self._shown = as_observation(observation)
        return self._shown

    def _is_over(self) -> bool:
        """Whether a reply comes late. Raises ResetNeeded before the first episode."""
        if self._seed is None:
            raise ResetNeeded(f"{type(self).__name__}: call reset() before step()")
        return self._terminated or self._truncated

    def _after_the_end(self) -> tuple[str, float, bool, bool, Info]:
        info = {"success": self._success, "metrics": {}}
        return self._observation(), 0.0, self._terminated, self._truncated, info

    def _answered(self, answer: Answer) -> tuple[str, float, bool, bool, Info]:
        """What `step` returns for an answer to a reply that was counted."""
        numbers = {name: float(value) for name, value in answer.metrics.items()}
        metrics = {name: number for name, number in numbers.items() if math.isfinite(number)}
        self._note = answer.note
        if answer.note:
            reward = 0.0 - self._invalid_penalty
            metrics["action_is_valid"] = 0.0
        else:
            reward = float(answer.reward)
            self._show(answer.observation)
            self._terminated, self._truncated = bool(answer.terminated), bool(answer.truncated)
            self._success = bool(answer.success)
        if not self._terminated and self._turn >= self.max_steps:
            self._truncated = True
        info = {"success": self._success, "metrics": metrics}
        return self._observation(), reward, self._terminated, self._truncated, info

    def _observation(self) -> str:
        return f"{self._shown}\n{as_observation(self._note)}" if self._note else self._shown


class HostedEnv(HostedEpisode, TextEnv):
    """A `TextEnv` that keeps the contract around an environment which keeps another one.

        reset(seed) -> _start(seed) -> text
        step(reply) -> _answer(reply) -> Answer

    After a reply that did not parse it repeats the observation. `_start` gets a seed in any case; after a
    reset without one it is drawn from `np_random`.
    """

    @abstractmethod
    def _start(self, seed: int) -> object:
        """Start the episode of `seed`; returns its first observation."""

    @abstractmethod
    def _answer(self, reply: str) -> Answer:
        """Play one reply of an episode that has not ended."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, Info]:
        super().reset(seed=seed)
        self._begin(int(self.np_random.integers(2**31)) if seed is None else seed)
        return self._observation(), {}

    def step(self, action: str) -> tuple[str, float, bool, bool, Info]:
        if self._is_over():
            return self._after_the_end()
        self._turn += 1
        return self._answered(self._answer(action))

    def _begin(self, seed: int) -> None:
        self._begun(seed)
        self._show(self._start(seed))


class AsyncHostedEnv(HostedEpisode, AsyncTextEnv):
    """A `HostedEnv` whose `_start` and `_answer` are awaited."""

    @abstractmethod
    async def _start(self, seed: int) -> object:
        """Start the episode of `seed`; returns its first observation."""

    @abstractmethod
    async def _answer(self, reply: str) -> Answer:
        """Play one reply of an episode that has not ended."""

    async def reset(  # type: ignore[override]
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[str, Info]:
        await super().reset(seed=seed)
        seed = int(self.np_random.integers(2**31)) if seed is None else seed
        self._begun(seed)
        return self._show(await self._start(seed)), {}

    async def step(self, action: str) -> tuple[str, float, bool, bool, Info]:  # type: ignore[override]
        if self._is_over():
            return self._after_the_end()
        self._turn += 1
        return self._answered(await self._answer(action))


class ReplayedEnv(HostedEnv):
    """A `HostedEnv` whose snapshot is its seed and its replies: `restore` plays them again.

    For environments in which the same seed and replies lead to the same state, which is what the contract
    asks of all of them; it takes as long as the episode took.
    """

    _replies: tuple[str, ...] = ()

    def step(self, action: str) -> tuple[str, float, bool, bool, Info]:
        if not (self._terminated or self._truncated):
            self._replies = (*self._replies, action)
        return super().step(action)

    def snapshot(self) -> Any:
        return self._seed, self._replies, self.np_random.bit_generator.state

    def restore(self, snapshot: Any) -> str:
        seed, replies, state = snapshot
        if seed is None:
            raise ResetNeeded(f"{type(self).__name__}: the snapshot was taken before the first reset()")
        self._begin(seed)
        for reply in replies:
            self.step(reply)
        self.np_random.bit_generator.state = state
        return self._observation()

    def _begin(self, seed: int) -> None:
        self._replies = ()
        super()._begin(seed)
