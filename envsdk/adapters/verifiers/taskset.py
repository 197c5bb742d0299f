"""Environments of envsdk as a taskset of verifiers. A module of your own, such as `my_lake.py`:

    from envsdk.adapters.verifiers.taskset import TextEnvTasks, TextEnvPlay, TextHarness

    __all__ = ["TextEnvPlay", "TextEnvTasks", "TextHarness"]

is what verifiers finds by its name:

    eval my-lake --env.taskset.env envsdk/FrozenLake-v1
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator
from functools import partial
from typing import Any

import verifiers.v1 as vf
from pydantic import Field

from envsdk.adapters.verifiers.harness import HARNESS_ID, TextHarness
from envsdk.adapters.verifiers.rollout import role_of, text_of
from envsdk.base import registry
from envsdk.contracts.env import EnvSpec, Isolation, TextEnv
from envsdk.contracts.seeds import stable_seed

__all__ = ["TextEnvPlay", "TextEnvTasks", "TextHarness"]

TASKSET_ID = "envsdk_tasks"
"""Name by which verifiers finds the taskset in a process that has imported this module."""
_MAX_TURNS = 100
"""Turns of environments that have no limit of their own."""


class TextEnvTasksConfig(vf.TasksetConfig):  # type: ignore[misc]
    """Which environment, and how many of its tasks."""

    env: str = ""
    """As for `envsdk.make`."""
    env_config: dict[str, Any] = Field(default_factory=dict)
    """Arguments of the environment."""
    split: str = "train"
    """Another name gives other tasks."""
    num_tasks: int = Field(1000, ge=1)
    seed: int = 0
    """The seeds of tasks follow from it."""


class TextEnvTaskData(vf.TaskData):  # type: ignore[misc]
    """One task: an environment and a seed. Its prompt is the first observation."""

    env: str
    env_config: dict[str, Any]
    seed: int


class TextEnvTask(vf.Task[TextEnvTaskData]):  # type: ignore[misc]
    """Scored by `TextEnvPlay`, which sees the rewards."""


class TextEnvTasks(vf.Taskset[TextEnvTask, TextEnvTasksConfig]):  # type: ignore[misc]
    """The tasks of one environment."""

    def load(self) -> Iterator[TextEnvTask]:
        """ConfigurationError: nothing is registered under `env`, or it refuses its arguments."""
        config = self.config
        spec = registry.spec(config.env)
        env = registry.make(spec, **config.env_config)
        system = registry.system_prompt(spec, config.env_config)
        for index in range(config.num_tasks):
            seed = stable_seed(config.seed, config.split, spec.id, index)
            observation, _ = env.reset(seed=seed)
            data = TextEnvTaskData(
                id=f"{config.split}-{index}",
                prompt=observation,
                system_prompt=system or None,
                env=spec.id,
                env_config=config.env_config,
                seed=seed,
            )
            yield TextEnvTask(data, config.task)
        env.close()


class TextEnvPlayConfig(vf.EnvConfig):  # type: ignore[misc]
    """The one agent that plays."""

    agent: vf.AgentConfig = vf.AgentConfig(
        harness={"id": HARNESS_ID}, runtime=vf.SubprocessConfig(), network_notice=False
    )


class TextEnvPlay(vf.Env[TextEnvPlayConfig]):  # type: ignore[misc]
    """Plays an episode: each reply is a step, and what it answers is the next message of the user.

    The reward `episode_return` is the sum of the turns' rewards; `success` is a metric. The observation after
    the last step is nobody's message: the episode is over.
    """

    async def run(self, task: Any, agents: Any) -> None:
        spec = registry.spec(task.data.env)
        env = await _call(spec, lambda: registry.make(spec, **task.data.env_config))
        try:
            await _call(spec, lambda: env.reset(seed=task.data.seed))
            async with agents.agent.interaction(task) as talk:
                total, success = await _played(spec, env, talk)
        finally:
            await _call(spec, env.close)
        talk.trace.record_reward("episode_return", total)
        talk.trace.record_metric("success", float(success))


async def _played(spec: EnvSpec, env: TextEnv, talk: Any) -> tuple[float, bool]:
    limit = getattr(env, "max_steps", None) or spec.max_steps or _MAX_TURNS
    total, success = 0.0, False
    segment = await talk.turn()
    for turn in range(1, limit + 1):
        if segment.terminated:
            break
        answer = await _call(spec, partial(env.step, _reply_in(segment)))
        observation, reward, terminated, truncated, info = answer
        total += float(reward)
        success = bool(info.get("success", False))
        if terminated or truncated or turn == limit:
            break
        segment = await talk.turn(observation)
    return total, success


def _reply_in(segment: Any) -> str:
    """As it was sampled: `last_reply` is stripped."""
    return text_of([message for message in segment.messages if role_of(message) == "assistant"][-1:])


async def _call(spec: EnvSpec, function: Any) -> Any:
    return function() if spec.isolation is Isolation.INLINE else await asyncio.to_thread(function)


sys.modules.setdefault(TASKSET_ID, sys.modules[__name__])
