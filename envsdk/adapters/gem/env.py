"""`GemEnv`: an environment of gem under envsdk's contract."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from envsdk.adapters.gem.package import import_gem
from envsdk.adapters.global_random import OwnGlobals
from envsdk.adapters.hosted import Answer, ReplayedEnv
from envsdk.base.settings.nearest import did_you_mean

DEFAULT_MAX_STEPS = 100
_OVER = "<｜TERMINAL_STATE｜>"
"""What gem's single-turn environments show after the answer."""


def make_gem_env(
    *,
    id: str,
    kwargs: Mapping[str, Any] | None = None,
    max_steps: int | None = None,
    success_reward: float = 1.0,
) -> GemEnv:
    """The environment that gem registers under `id`.

    Args:
        id: As for `gem.make`, such as `game:GuessTheNumber-v0-easy`.
        kwargs: Arguments of `gem.make`.
        max_steps: Replies before the episode is truncated; by default its own `max_turns`, or 100.
        success_reward: An episode whose last reward is at least this counts as solved.

    Raises:
        ValueError: There is no such environment, or it refuses its arguments.
        ConfigurationError: gem is not installed.
    """
    gem = import_gem()
    registered = gem.envs.registration.ENV_REGISTRY
    if id not in registered:
        raise ValueError(f"id: gem has no environment {id!r}.{did_you_mean(str(id), registered)}")
    arguments = dict(kwargs or {})
    if max_steps is None:
        max_steps = {**registered[id].kwargs, **arguments}.get("max_turns") or DEFAULT_MAX_STEPS
    own_globals = OwnGlobals()
    with own_globals.in_place(seed=0):
        try:
            env = gem.make(id, **arguments)
        except ImportError as error:
            raise ValueError(f"id: {id} cannot be loaded: {error}") from error
    return GemEnv(env, own_globals, max_steps=max_steps, success_reward=success_reward)


class GemEnv(ReplayedEnv):
    """A `gem.Env` with its own global random state.

    gem seeds and draws from `random` and `numpy.random`. Here they are in place only while gem's code runs,
    so that many instances play in one process without hearing of one another.
    """

    def __init__(
        self,
        env: Any,
        own_globals: OwnGlobals | None = None,
        *,
        max_steps: int = DEFAULT_MAX_STEPS,
        success_reward: float = 1.0,
    ) -> None:
        """
        Args:
            env: A `gem.Env`. Is owned: `close` closes it.
            own_globals: What it was built under.

        The others are those of `make_gem_env`.
        """
        super().__init__(max_steps=max_steps)
        self._env = env
        self._globals = own_globals or OwnGlobals()
        self._success_reward = success_reward
        self._is_closed = False

    def close(self) -> None:
        if not self._is_closed and hasattr(self._env, "close"):
            self._env.close()
        self._is_closed = True

    @property
    def inside(self) -> Any:
        """The `gem.Env`."""
        return self._env

    def _start(self, seed: int) -> object:
        with self._globals.in_place(seed):
            observation, info = self._env.reset(seed=seed)
        return _shown(observation, info)

    def _answer(self, reply: str) -> Answer:
        with self._globals.in_place():
            observation, given, terminated, truncated, info = self._env.step(reply)
        reward = float(given)
        is_last = bool(terminated or truncated)
        return Answer(
            observation="" if observation == _OVER else observation if is_last else _shown(observation, info),
            reward=reward,
            terminated=terminated,
            truncated=truncated,
            success=is_last and reward >= self._success_reward,
        )


def _shown(observation: str, info: Mapping[str, Any]) -> str:
    """An observation with what gem's own wrapper puts before and after it."""
    line = observation if not observation or observation.endswith("\n") else f"{observation}\n"
    return f"{info.get('prefix', '')}{line}{info.get('suffix', '')}"
