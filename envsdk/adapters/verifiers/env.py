"""`VerifiersEnv`: a rollout of verifiers as an episode."""

from __future__ import annotations

import json
import math
import weakref
from collections.abc import Mapping
from random import Random
from typing import Any, Literal, Protocol

from gymnasium.error import ResetNeeded

from envsdk.adapters.hosted import Answer, AsyncHostedEnv
from envsdk.adapters.verifiers.messages import text_of
from envsdk.adapters.verifiers.package import is_task_centric
from envsdk.adapters.verifiers.rollout import Asked, Ended, Rollout
from envsdk.env import Info

Split = Literal["train", "eval"]
SPLITS: tuple[Split, ...] = ("train", "eval")

DEFAULT_MAX_STEPS = 100


class Host(Protocol):
    """An environment of verifiers, of one interface or the other. May be shared: state is in the rollouts."""

    @property
    def num_tasks(self) -> int: ...

    @property
    def own_limit(self) -> int | None:
        """Replies after which it ends an episode by itself."""

    def rollout(self, task: int, max_turns: int) -> Rollout:
        """Of one task, by its number."""


def make_verifiers_env(
    *,
    id: str,
    args: Mapping[str, Any] | None = None,
    split: Split = "train",
    max_steps: int | None = None,
    success_reward: float = 1.0,
) -> VerifiersEnv:
    """The environment that `verifiers.load_environment(id, **args)` returns; from 0.4 on, a taskset.

    Args:
        id: Name of an installed environment or taskset: of the module that has it.
        args: Its arguments; of a taskset, fields of its configuration.
        split: `train` plays its data set, `eval` its evaluation data set (its only one where it has one).
            Tasksets have no splits but those that their arguments name.
        max_steps: Replies before the episode ends and is scored as it is; by default its own `max_turns`,
            or 100.
        success_reward: An episode whose reward is at least this counts as solved.

    Raises:
        ValueError: It cannot be loaded, or a policy that only writes text cannot play it.
        ConfigurationError: verifiers is not installed.
    """
    if split not in SPLITS:
        raise ValueError(f"split: must be one of {', '.join(SPLITS)}, not {split!r}")
    try:
        settings = json.dumps(dict(args or {}), sort_keys=True)
    except TypeError as error:
        raise ValueError(f"args: must be plain values: {error}") from error
    host: Host
    if is_task_centric():
        from envsdk.adapters.verifiers.hosted_taskset import open_taskset

        if split != "train":
            raise ValueError("split: tasksets of verifiers 0.4 name their splits in `args`, if they have any")
        host = open_taskset(id, settings)
    else:
        from envsdk.adapters.verifiers.classic import open_classic

        host = open_classic(id, settings, split)
    return VerifiersEnv(
        host,
        max_steps=max_steps if max_steps is not None else host.own_limit or DEFAULT_MAX_STEPS,
        success_reward=success_reward,
    )


class VerifiersEnv(AsyncHostedEnv):
    """Plays rollouts of one environment of verifiers: rows by seed, messages as text, the rubric's reward.

        reset -> the row's prompt -> step -> what the environment answered -> ... -> the rubric's reward

    The observation is the text of the messages since the last reply, the system message included. The
    reward comes with the last turn; the rubric's functions are its metrics.
    """

    def __init__(
        self,
        host: Host,
        *,
        max_steps: int = DEFAULT_MAX_STEPS,
        success_reward: float = 1.0,
    ) -> None:
        """The arguments are those of `make_verifiers_env`."""
        super().__init__(max_steps=max_steps)
        self._host = host
        self._success_reward = success_reward
        self._started: Rollout | None = None
        """To be cancelled at the end."""
        self._rollout: Rollout | None = None
        """The one that waits for a reply."""
        self._abandon: weakref.finalize[Any, Any] | None = None
        self._num_messages = 0
        """Messages of the conversation that were shown."""
        self._row: int | None = None
        """Number of the row to play, if `reset` was given one."""

    async def reset(  # type: ignore[override]
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[str, Info]:
        """With `options={"task": n}` row n of the data set, modulo its length; else the seed picks one."""
        self._row = (options or {}).get("task")
        return await super().reset(seed=seed, options=options)

    async def close(self) -> None:  # type: ignore[override]
        started, self._started, self._rollout = self._started, None, None
        if self._abandon is not None:
            self._abandon.detach()
        if started is not None:
            await started.cancel()

    async def _start(self, seed: int) -> object:
        await self.close()
        number = self._host.num_tasks
        row = Random(seed).randrange(number) if self._row is None else self._row % number
        rollout = self._host.rollout(row, self.max_steps)
        self._started = rollout
        # Also where nobody closes it: the rollout waits for a reply.
        self._abandon = weakref.finalize(self, rollout.abandon)
        event = await rollout.start()
        if isinstance(event, Ended):
            raise RuntimeError(f"the rollout ended before its first turn: {_why(event)}")
        self._rollout = rollout
        self._num_messages = len(event.messages)
        return text_of(event.messages)

    async def _answer(self, reply: str) -> Answer:
        rollout, self._rollout = self._rollout, None
        if rollout is None:
            raise ResetNeeded("VerifiersEnv: the rollout failed; call reset() before step()")
        is_last = self._turn >= self.max_steps
        # Messages are validated as UTF-8, which has no lone surrogates.
        event = await rollout.reply(reply.encode("utf-8", "replace").decode("utf-8"), is_last=is_last)
        if isinstance(event, Asked):
            self._rollout = rollout
            # The first of the messages since then is the reply.
            fresh = event.messages[self._num_messages + 1 :]
            self._num_messages = len(event.messages)
            return Answer(observation=text_of(fresh))
        if event.error:
            raise RuntimeError(f"the rollout failed: {_why(event)}")
        stop = event.stop_condition
        stopped_short = stop == "cut_short" or (stop == "max_turns_reached" and self.max_steps > 1)
        return Answer(
            observation=text_of(event.last_messages),
            reward=event.reward,
            terminated=not stopped_short,
            truncated=stopped_short,
            success=event.reward >= self._success_reward,
            metrics={name: float(value) for name, value in event.metrics.items() if math.isfinite(value)},
        )


def _why(event: Ended) -> str:
    return event.error or event.stop_condition or "no reason given"
