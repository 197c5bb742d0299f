"""What a tag leaves out and its environment knows: the limit of turns, the system prompt, who plays."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any

from envsdk.base import registry
from envsdk.base.settings.problems import KeyPath
from envsdk.config.plugins import environment_class, environment_spec, own_turn_limit
from envsdk.contracts.env import EnvSpec
from envsdk.contracts.failures import ConfigurationError

ORIGIN = "the environment's own"
PLAYS_INSIDE = "HarnessEnvManager"
"""The env manager of a tag whose environment runs a program of its own."""


def fill_in(data: Mapping[str, Any]) -> dict[KeyPath, str]:
    """Give each tag of a run's `data` the keys that it leaves out; returns where they come from.

    What is wrong with a tag is left to the checks.
    """
    tags = data.get("custom_envs")
    origins: dict[KeyPath, str] = {}
    for tag, custom in tags.items() if isinstance(tags, Mapping) else ():
        if not isinstance(custom, dict):
            continue
        for key, value in _known(custom):
            custom[key] = value
            origins["custom_envs", tag, key] = ORIGIN
    return origins


def _known(custom: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """The keys that `custom` leaves out, as far as its environment knows them."""
    env_config = custom.get("env_config") or {}
    wants_limit = custom.get("max_steps") is None
    wants_prompt = "agent_system_template" not in custom
    if not isinstance(env_config, Mapping):
        return
    with suppress(ConfigurationError):
        spec = environment_spec(str(custom.get("env_type")))
        if custom.get("env_manager_cls") is None and env_config.get(spec.program_argument) is not None:
            yield "env_manager_cls", PLAYS_INSIDE
        if wants_limit and (limit := turn_limit(spec, env_config)) is not None:
            yield "max_steps", limit
        if wants_prompt:
            yield "agent_system_template", registry.system_prompt(spec, env_config)


def turn_limit(spec: EnvSpec, env_config: Mapping[str, Any]) -> int | None:
    """Turns after which an episode of the environment so configured ends; None when there is no limit.

    An inline environment is made and asked. Of others it is the argument `max_steps`, its default or
    the class's attribute; and the spec's where there is none of these.

    Raises ConfigurationError when its module cannot be imported.
    """
    limits = [{**spec.kwargs, **env_config}.get("max_steps")]
    if not registry.missing(spec):
        constructor = environment_class(spec)
        argument = inspect.signature(constructor).parameters.get("max_steps")
        limits.insert(0, own_turn_limit(spec, env_config))
        limits.append(argument.default if argument is not None else None)
        limits.append(getattr(constructor, "max_steps", None))
    limits.append(spec.max_steps)
    return next((each for each in limits if isinstance(each, int) and not isinstance(each, bool)), None)
