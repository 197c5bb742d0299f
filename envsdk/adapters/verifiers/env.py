"""`VerifiersEnv`: a rollout of verifiers as an episode."""

from __future__ import annotations

import json
import math
import weakref
from collections.abc import Mapping
from random import Random
from typing import TYPE_CHECKING, Any

from gymnasium.error import ResetNeeded

from envsdk.adapters.hosted import Answer, AsyncHostedEnv
from envsdk.adapters.missing import import_extra
from envsdk.adapters.verifiers.rollout import Asked, Ended, Rollout, text_of
from envsdk.contracts.env import Info

if TYPE_CHECKING:
    from envsdk.adapters.verifiers.hosted_taskset import HostedTaskset

DEFAULT_MAX_STEPS = 100


def make_verifiers_env(
    *,
    id: str,
    args: Mapping[str, Any] | None = None,
    split: str = "train",
    max_steps: int | None = None,
    success_reward: float = 1.0,
) -> VerifiersEnv:
    """Episodes of a taskset of verifiers.

    Args:
        id: Name of the module that has the taskset.
        args: Fields of its configuration.
        split: Only `train`: a taskset has no splits but those that its configuration names.
        max_steps: Replies before the episode ends and is scored as it is; by default 1 where the taskset
            has no environment of its own, or 100.
        success_reward: An episode whose reward is at least this counts as solved.

    Raises:
        ValueError: It cannot be loaded, or a policy that only writes text cannot play it.
        ConfigurationError: verifiers is not installed, or older than 0.4.
    """
    if split != "train":
        raise ValueError("split: tasksets of verifiers name their splits in `args`, if they have any")
    try:
        settings = json.dumps(dict(args or {}), sort_keys=True)
    except TypeError as error:
        raise ValueError(f"args: must be plain values: {error}") from error
    hosted = import_extra(
        "envsdk.adapters.verifiers.hosted_taskset", extra="verifiers", shown_as="verifiers 0.4 or later"
    )
    taskset: HostedTaskset = hosted.open_taskset(id, settings)
    return VerifiersEnv(
        taskset,
        max_steps=max_steps if max_steps is not None else taskset.own_limit or DEFAULT_MAX_STEPS,
        success_reward=success_reward,
    )


class VerifiersEnv(AsyncHostedEnv):
    """Plays rollouts of one taskset of verifiers: tasks by seed, messages as text.

        reset -> the task's prompt -> step -> what its environment answered -> ... -> the episode's reward

    The observation is the text of the messages since the last reply, the system message included. The
    reward comes with the last turn; each reward of verifiers, weighted, and each metric is a metric.
    """

    def __init__(
        self,
        taskset: HostedTaskset,
        *,
        max_steps: int = DEFAULT_MAX_STEPS,
        success_reward: float = 1.0,
    ) -> None:
        """The arguments are those of `make_verifiers_env`."""
        super().__init__(max_steps=max_steps)
        self._taskset = taskset
        self._success_reward = success_reward
        self._started: Rollout | None = None
        """To be cancelled at the end."""
        self._rollout: Rollout | None = None
        """The one that waits for a reply."""
        self._abandon: weakref.finalize[Any, Any] | None = None
        self._num_messages = 0
        """Messages of the conversation that were shown."""
        self._task: int | None = None
        """Number of the task to play, if `reset` was given one."""

    async def reset(  # type: ignore[override]
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[str, Info]:
        """With `options={"task": n}` task n of the taskset, modulo its length; else the seed picks one."""
        self._task = (options or {}).get("task")
        return await super().reset(seed=seed, options=options)

    async def close(self) -> None:  # type: ignore[override]
        started, self._started, self._rollout = self._started, None, None
        if self._abandon is not None:
            self._abandon.detach()
        if started is not None:
            await started.cancel()

    async def _start(self, seed: int) -> object:
        await self.close()
        number = self._taskset.num_tasks
        task = Random(seed).randrange(number) if self._task is None else self._task % number
        rollout = self._taskset.rollout(task, self.max_steps)
        self._started = rollout
        # Also where nobody closes it: the rollout waits for a reply.
        self._abandon = weakref.finalize(self, rollout.abandon)
        event = await rollout.start()
        if isinstance(event, Ended):
            raise RuntimeError(f"the rollout ended before its first turn: {event.error or 'no reason given'}")
        self._rollout = rollout
        self._num_messages = len(event.messages)
        return text_of(event.messages)

    async def _answer(self, reply: str) -> Answer:
        rollout, self._rollout = self._rollout, None
        if rollout is None:
            raise ResetNeeded("VerifiersEnv: the rollout failed; call reset() before step()")
        # Messages are validated as UTF-8, which has no lone surrogates.
        event = await rollout.reply(reply.encode("utf-8", "replace").decode("utf-8"))
        if isinstance(event, Asked):
            self._rollout = rollout
            # The first of the messages since then is the reply.
            fresh = event.messages[self._num_messages + 1 :]
            self._num_messages = len(event.messages)
            return Answer(observation=text_of(fresh))
        if event.error:
            raise RuntimeError(f"the rollout failed: {event.error}")
        return Answer(
            observation=text_of(event.last_messages),
            reward=event.reward,
            terminated=not event.was_cut_short,
            truncated=event.was_cut_short,
            success=event.reward >= self._success_reward,
            metrics={name: float(value) for name, value in event.metrics.items() if math.isfinite(value)},
        )
