"""Environments of envsdk as gem's: `register_with_gem()`, then `gem.make("envsdk/FrozenLake-v1")`."""

from __future__ import annotations

import random
from typing import Any

from envsdk.adapters.gem.package import import_gem
from envsdk.base import registry
from envsdk.contracts.env import EnvSpec, TextEnv
from envsdk.contracts.failures import ConfigurationError

import_gem()

import gem  # noqa: E402 - what is missing has been said above


def register_with_gem() -> list[str]:
    """Make every environment known to `gem.make` under its id; returns those ids. May be called again."""
    ids = [id for id in registry.known_ids() if id not in _OF_GEM]
    registered = gem.envs.registration.ENV_REGISTRY
    for id in ids:
        if id not in registered:
            gem.register(id, f"{__name__}:TextEnvInGem", id_or_spec=id)
    return ids


_OF_GEM = ("envsdk/Gem-v1",)
"""Not worth offering to gem: its own."""


class TextEnvInGem(gem.Env):  # type: ignore[misc]
    """A `TextEnv` behind gem's interface."""

    def __init__(self, id_or_spec: str | EnvSpec, seed: int | None = None, **env_config: Any) -> None:
        """
        Args:
            id_or_spec: As for `envsdk.make`.
            seed: Of the first episode, unless `reset` gets another; vectorized environments give it.
            env_config: Arguments of the environment.
        """
        super().__init__()
        self.env: TextEnv = registry.make(id_or_spec, **env_config)
        self._id_or_spec = id_or_spec
        self._env_config = env_config
        self._first_seed = seed

    def reset(self, seed: int | None = None) -> tuple[str, dict[str, Any]]:
        first, self._first_seed = self._first_seed, None
        return self.env.reset(seed=first if seed is None else seed)

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        return self.env.step(action)

    def sample_random_action(self) -> str:
        """One of the legal actions, drawn from `random` as gem's environments do."""
        return random.choice(self.env.legal_actions())

    def spawn(self, same_state: bool = False, **kwargs: Any) -> TextEnvInGem:
        """Another instance, with `kwargs` over this one's arguments.

        Raises:
            ConfigurationError: The state is asked for, and the environment has no snapshots.
        """
        if same_state and "snapshot" not in self.env.abilities():
            raise ConfigurationError(f"{self._id_or_spec}: has no snapshot(), so its state cannot be copied")
        child = TextEnvInGem(self._id_or_spec, **{**self._env_config, **kwargs})
        if same_state:
            child.env.restore(self.env.snapshot())
        return child

    def close(self) -> None:
        self.env.close()
