"""Reward functions by name, with their settings checked."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from envsdk.base.plugins import load_plugin
from envsdk.base.settings.nearest import suggest
from envsdk.base.settings.problems import dotted
from envsdk.base.settings.validation import problems_in
from envsdk.contracts.failures import ConfigurationError, describe_error
from envsdk.rewards.reward import PLUGINS, RewardFunction

WORKER_KEYS = ("world_size", "timeout_s", "infer_batch_size", "memory_mb")
"""Keys of a reward's section in the YAML file that are about its workers."""


def settings_of(section: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of the function itself: what a section of the YAML file has besides."""
    return {name: value for name, value in section.items() if name not in ("worker_cls", *WORKER_KEYS)}


def load_reward(name: str, settings: Mapping[str, Any]) -> RewardFunction:
    """The reward function of this name, constructed with these settings.

    `name` is an entry point in `envsdk.rewards`, or `package.module:Class`. Raises ConfigurationError, which
    names the wrong setting.
    """
    kind = reward_class(name)
    try:
        if kind.Args is not None:
            return kind(kind.Args.model_validate(dict(settings)))  # type: ignore[call-arg]
        return kind(**settings)
    except ValidationError as error:
        assert kind.Args is not None
        problems = "; ".join(f"{dotted(each.path)}: {each.message}" for each in problems_in(error, kind.Args))
        raise ConfigurationError(f"reward {name!r}: {problems}") from error
    except ConfigurationError:
        raise
    except Exception as error:  # boundary: a plug-in's constructor
        takes = [each for each in inspect.signature(kind).parameters if each not in ("args", "kwargs")]
        unknown = [each for each in settings if each not in takes]
        if isinstance(error, TypeError) and unknown and kind.Args is None:
            hint = suggest(unknown[0], [*takes, *WORKER_KEYS, "tag_included"], known="keys")
            raise ConfigurationError(f"reward {name!r} has no setting `{unknown[0]}`; {hint}") from error
        raise ConfigurationError(f"reward {name!r} cannot be constructed: {describe_error(error)}") from error


def reward_class(name: str) -> type[RewardFunction]:
    """The class of this name. Raises ConfigurationError."""
    kind = load_plugin(PLUGINS, name)
    if not (isinstance(kind, type) and issubclass(kind, RewardFunction)):
        raise ConfigurationError(
            f"reward {name!r} is no class derived from envsdk.rewards.RewardFunction; for a plain function, "
            "derive one whose `score(self, sample)` calls it and returns envsdk.rewards.Reward(value=...)"
        )
    return kind
