"""How command lines name an environment: `ENV_ID key=value ...`."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Annotated, Any

from pydantic import Field

from envsdk.base import registry
from envsdk.base.plugins import find_modules_here
from envsdk.base.settings.nearest import suggest
from envsdk.base.settings.options import Argument
from envsdk.contracts.env import EnvSpec
from envsdk.contracts.failures import ConfigurationError

EnvArguments = Annotated[
    tuple[str, ...],
    Argument("KEY=VALUE"),
    Field(description="Arguments of the environment, such as size=6."),
]


def env_config_from(items: Sequence[str], *, called: str = "argument") -> dict[str, Any]:
    """`["size=6", "dim=[8,8]"]` as keyword arguments. Raises ConfigurationError.

    `called` names an item in the message.
    """
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    from envsdk.config.reading import apply_item, plain_words

    parsed = OmegaConf.create()
    for item in items:
        if not item.partition("=")[0] or "=" not in item:
            raise ConfigurationError(f"{item!r} is no {called}; write key=value, such as size=6")
        apply_item(parsed, item, called=called)
    try:
        config = OmegaConf.to_container(parsed, resolve=True)
    except OmegaConfBaseException as error:
        raise ConfigurationError(f"{' '.join(items)}: {plain_words(error)}") from error
    assert isinstance(config, dict)
    return {str(key): value for key, value in config.items()}


PLAYED_RUN_KEYS = frozenset(
    {
        "actor_infer",
        "custom_envs",
        "max_failed_share",
        "pretrain",
        "seed",
        "sequence_length",
        "train_env_manager",
        "val_batch_size",
        "val_env_manager",
    }
)
"""A run's keys that matter where nothing is trained."""


def split_overrides(
    overrides: Sequence[str], env_id: str, constructor: Callable[..., Any]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Keys of a run, and arguments of the environment, of `ENV_ID key=value ...`.

    What the constructor takes is the environment's, as in every command; the rest are keys of a run. Where it
    takes any keyword, keys of a run that plays are the run's.

    Raises:
        ConfigurationError: Nobody reads a key.
    """
    from envsdk.config import RunConfig

    parameters = inspect.signature(constructor).parameters.values()
    named = {each.name for each in parameters if each.kind in (each.KEYWORD_ONLY, each.POSITIONAL_OR_KEYWORD)}
    takes_any = any(each.kind is each.VAR_KEYWORD for each in parameters)
    run_keys, arguments = [], []
    for override in overrides:
        if "=" not in override:
            raise ConfigurationError(f"{override!r} is no override; write key=value, such as size=6")
        name = override.partition("=")[0].partition(".")[0]
        if name in named or (takes_any and name not in PLAYED_RUN_KEYS):
            arguments.append(override)
        elif name in PLAYED_RUN_KEYS:
            run_keys.append(override)
        elif name in RunConfig.model_fields:
            instead = f"; `custom_envs.{env_id}.max_steps` limits turns" if name == "max_steps" else ""
            raise ConfigurationError(
                f"{env_id} takes no `{name}`, and of a run only training reads it{instead}"
            )
        else:
            hint = suggest(name, sorted(named | PLAYED_RUN_KEYS), known="keys")
            raise ConfigurationError(f"{env_id} takes no `{name}`, and a run has no such key; {hint}")
    return env_config_from(run_keys), env_config_from(arguments)


def whole_id(name: str) -> str:
    """The id that `name` is short for, as `Sokoban` is for `envsdk/Sokoban-v1`; `name` itself if for none."""
    known = registry.known_ids()
    whole = [id for id in known if short_name(id) == name]
    return whole[0] if len(whole) == 1 and name not in known else name


def short_name(id: str) -> str:
    """The name alone, without namespace and version: `Sokoban` of `envsdk/Sokoban-v1`."""
    return id.partition("/")[2].rpartition("-v")[0]


def spec_named(name: str) -> EnvSpec:
    """The spec of an id, of a short one, or of `package.module:Class`. Raises ConfigurationError."""
    if ":" not in name:
        return registry.spec(whole_id(name))
    find_modules_here()
    spec = EnvSpec(id=f"dotted/{name.rpartition(':')[2]}-v0", entry_point=name)
    registry.load_entry_point(spec)
    return spec
