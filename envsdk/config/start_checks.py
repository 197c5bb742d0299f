"""What must be there when a run starts, and need not be to read its file: `--explain` works without it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import ValidationError

from envsdk.config.models import RunConfig
from envsdk.config.rlvr import PROMPTS_ENV, VAL_SUFFIX, source_of
from envsdk.config.rlvr_checks import reward_sections
from envsdk.failures import ConfigurationError
from envsdk.prompt_data.opening import open_prompts
from envsdk.prompt_data.prompts import PromptSource
from envsdk.rewards.loading import load_reward, settings_of
from envsdk.settings.problems import KeyPath, Problem, describe
from envsdk.settings.validation import problems_in

_MAX_NAMED = 5
"""Rows that cannot be used and are shown."""


def check_start(config: RunConfig) -> None:
    """Raises ConfigurationError, which lists every problem."""
    problems = [*_prompts(config), *_rewards(config)]
    if problems:
        raise ConfigurationError(describe(problems, source=config.exp_name, origin=lambda path: ""))


def prompt_notes(config: RunConfig) -> list[str]:
    """What of the files of prompts is not asked: rows that cannot be used, and rows of no domain."""
    notes: list[str] = []
    unclaimed: dict[tuple[str, ...], Counter[str]] = {}
    for env_config in _asked(config).values():
        prompts = open_prompts(source_of(env_config))
        files = tuple(prompts.source.files)
        if files not in unclaimed:
            unclaimed[files] = prompts.counts.copy()
            if prompts.num_unusable:
                named = "; ".join(f"{each.place} {each.reason}" for each in prompts.unusable[:_MAX_NAMED])
                more = ", ..." if prompts.num_unusable > _MAX_NAMED else ""
                notes.append(
                    f"{prompts.num_unusable} rows of {', '.join(files)} cannot be used and are not asked: "
                    f"{named}{more}"
                )
        for name in prompts.counts:
            if prompts.is_asked(name):
                unclaimed[files].pop(name, None)
    for files, counts in unclaimed.items():
        if counts:
            names = ", ".join(f"{name or 'none'} ({count})" for name, count in counts.most_common(10))
            notes.append(f"rows of {', '.join(files)} belong to no domain that is asked: {names}")
    return notes


def _asked(config: RunConfig) -> dict[str, Mapping[str, Any]]:
    """The `env_config` of each tag that plays and asks prompts."""
    managers = [config.train_env_manager, *([config.val_env_manager] if config.val_batch_size else [])]
    tags = dict.fromkeys(tag for manager in managers for tag in manager.tags)
    envs = {tag: config.custom_envs[tag] for tag in tags}
    return {tag: env.env_config for tag, env in envs.items() if env.env_type == PROMPTS_ENV}


def _prompts(config: RunConfig) -> Iterator[Problem]:
    for tag, env_config in _asked(config).items():
        path: KeyPath = ("custom_envs", tag, "env_config", "files")
        if tag in config.rewards:
            path = ("actor_train", "data_args", "file_name")
        elif tag.removesuffix(VAL_SUFFIX) in config.rewards:
            path = ("validation", "data_args", "file_name")
        try:
            open_prompts(source_of(env_config))
        except ConfigurationError as error:
            yield Problem(path, f"{tag}: {error}")
        except ValidationError as error:
            for problem in problems_in(error, PromptSource):
                yield Problem((*path[:-1], *problem.path), problem.message)
        if "reward" not in env_config:
            yield Problem((*path[:-1], "reward"), "is required and missing: the name of a reward function")


def _rewards(config: RunConfig) -> Iterator[Problem]:
    for path, reward in reward_sections(config).items():
        try:
            load_reward(str(reward.get("worker_cls")), settings_of(reward))
        except ConfigurationError as error:
            yield Problem(path, str(error))
