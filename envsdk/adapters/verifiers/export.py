"""Environments of envsdk in verifiers:

    import verifiers as vf
    vf.load_environment("envsdk.adapters.verifiers.export", id="envsdk/FrozenLake-v1", num_train=1000)

A package of your own that names one environment takes `load_environment` from here:

    from functools import partial
    load_environment = partial(envsdk.adapters.verifiers.export.load_environment, id="mine/Puzzle-v1")
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from datasets import Dataset

from envsdk import registry
from envsdk.adapters.verifiers.messages import text_of
from envsdk.adapters.verifiers.package import import_verifiers
from envsdk.env import EnvSpec, Isolation, TextEnv
from envsdk.failures import ConfigurationError
from envsdk.seeds import stable_seed

import_verifiers()

import verifiers as vf  # noqa: E402 - what is missing has been said above

_ENV = "text_env"
"""The key of a rollout's state that holds its environment."""
_MAX_TURNS = 100
"""Turns of environments that have no limit of their own."""


def load_environment(
    *,
    id: str,
    env_config: Mapping[str, Any] | None = None,
    num_train: int = 1000,
    num_eval: int = 100,
    seed: int = 0,
    system_prompt: str | None = None,
) -> TextEnvInVerifiers:
    """The environment registered under `id` as a `MultiTurnEnv` of verifiers.

    Args:
        id: As for `envsdk.make`.
        env_config: Arguments of the environment.
        num_train: Rows of the data set, a task each.
        num_eval: Rows of the evaluation data set, of other seeds.
        seed: The seeds of tasks follow from it.
        system_prompt: By default what the environment says of itself.

    Raises:
        ConfigurationError: Nothing is registered under `id`, or it refuses its arguments.
    """
    spec = registry.spec(id)
    if min(num_train, num_eval) < 1:
        raise ConfigurationError(
            f"num_train and num_eval: must be at least 1, not {num_train} and {num_eval}"
        )
    registry.make(spec, **dict(env_config or {})).close()
    if system_prompt is None:
        system_prompt = registry.system_prompt(spec, env_config or {})
    return TextEnvInVerifiers(
        spec,
        dict(env_config or {}),
        dataset=lambda: _tasks(spec, env_config, "train", num_train, seed),
        eval_dataset=lambda: _tasks(spec, env_config, "val", num_eval, seed),
        system_prompt=system_prompt,
    )


class TextEnvInVerifiers(vf.MultiTurnEnv):  # type: ignore[misc]
    """A `TextEnv` behind verifiers' interface: a row is a seed, the reward is the episode's return."""

    def __init__(self, spec: EnvSpec, env_config: Mapping[str, Any], **others: Any) -> None:
        """`others` are those of `verifiers.MultiTurnEnv`; rows need `info["seed"]`."""
        rubric = vf.Rubric(funcs=[episode_return], weights=[1.0])
        rubric.add_metric(success)
        # The environment counts turns itself; verifiers would leave out the last reply.
        super().__init__(rubric=rubric, max_turns=-1, **others)
        self._spec = spec
        self._env_config = dict(env_config)

    async def setup_state(self, state: Any) -> Any:
        env = registry.make(self._spec, **self._env_config)
        state.update({_ENV: env, "text_env_return": 0.0, "text_env_success": False, "text_env_turns": 0})
        await self._call(env.reset, seed=state["info"]["seed"])
        return state

    async def env_response(self, messages: Any, state: Any, **_: Any) -> Any:
        env: TextEnv = state[_ENV]
        reply = text_of(messages[-1:])
        observation, reward, terminated, truncated, info = await self._call(env.step, reply)
        state["text_env_return"] += float(reward)
        state["text_env_success"] = bool(info.get("success", False))
        state["text_env_turns"] += 1
        answer = [{"role": "user", "content": observation}]
        limit = getattr(env, "max_steps", None) or self._spec.max_steps or _MAX_TURNS
        if terminated or truncated or state["text_env_turns"] >= limit:
            state["final_env_response"] = answer
        return answer

    @vf.cleanup  # type: ignore[untyped-decorator]
    async def close_text_env(self, state: Any) -> None:
        env = state.pop(_ENV, None)
        if env is not None:
            await self._call(env.close)

    async def _call(self, method: Any, *args: Any, **kwargs: Any) -> Any:
        if self._spec.isolation is Isolation.INLINE:
            return method(*args, **kwargs)
        return await asyncio.to_thread(method, *args, **kwargs)


async def episode_return(state: Any) -> float:
    """The sum of the turns' rewards."""
    return float(state["text_env_return"])


async def success(state: Any) -> float:
    """1 for an episode that ended solved."""
    return float(state["text_env_success"])


def _tasks(
    spec: EnvSpec, env_config: Mapping[str, Any] | None, split: str, number: int, seed: int
) -> Dataset:
    env = registry.make(spec, **dict(env_config or {}))
    rows = []
    for index in range(number):
        task_seed = stable_seed(seed, split, spec.id, index)
        observation, _ = env.reset(seed=task_seed)
        rows.append({"question": observation, "answer": "", "info": {"seed": task_seed}})
    env.close()
    return Dataset.from_list(rows)
