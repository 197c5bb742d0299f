"""What must be there when a run starts, and need not be to read its file: `--explain` works without it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import ValidationError

from envsdk.base.plugins import load_plugin
from envsdk.base.processes.cards import has_gpus
from envsdk.base.settings.extras import require
from envsdk.base.settings.problems import KeyPath, Problem, describe
from envsdk.base.settings.validation import problems_in
from envsdk.config import plugins
from envsdk.config.loaded_models import models_of
from envsdk.config.models import RunConfig
from envsdk.config.rlvr import PROMPTS_ENV, VAL_SUFFIX, source_of
from envsdk.config.section_checks import reward_sections
from envsdk.contracts.failures import ConfigurationError, describe_error
from envsdk.rewards.loading import load_reward, settings_of
from envsdk.rewards.prompt_data.opening import Prompts, open_prompts
from envsdk.rewards.prompt_data.prompts import PromptRow, PromptSource
from envsdk.rewards.reward import RewardFunction

_MAX_NAMED = 5
"""Rows that cannot be used and are shown."""
_MAX_SCORED = 100
"""Rows whose reference answers are looked at."""


def check_start(config: RunConfig, *, source: str = "") -> None:
    """Raises ConfigurationError, which lists every problem of `source`, or of the run's name."""
    problems = [*_prompts(config), *_rewards(config)]
    if problems:
        raise ConfigurationError(describe(problems, source=source or config.exp_name, origin=lambda path: ""))


def check_packages(config: RunConfig) -> None:
    """Raises ConfigurationError where something is not here that every run needs, or that settings and
    trackers of this one declare."""
    settings = [
        section.model.model_validate(dict(section.values))
        for section in plugins.settings_sections(config)
        if section.path[0] != "reference" or config.needs_reference
    ]
    declaring = [*settings, *(load_plugin(plugins.TRACKERS, name) for name in config.trackers)]
    more = {module for each in declaring for module in getattr(each, "needs", ())}
    if config.mode != "both":
        more |= {"sqlalchemy", *(("starlette", "uvicorn") if config.mode == "serve" else ())}
    missing = [getattr(each, "lacks", "") for each in settings]
    if config.ray.address is None and not has_gpus():
        missing += {
            f"{model.strategy.strategy_name} needs a CUDA GPU for each rank, and this machine has none; on "
            "CPUs train with fsdp2_train or torch"
            for model in models_of(config).values()
            if getattr(model.own_settings, "needs_gpu", False)
        }
    try:
        require("this run", "ray", "torch", "transformers", "safetensors", *sorted(more))
    except ConfigurationError as error:
        missing.insert(0, str(error))
    if any(missing):
        raise ConfigurationError("; ".join(filter(None, missing)))


def start_problems(config: RunConfig) -> Iterator[str]:
    """What would end the run as it starts: packages that are missing, and rewards that cannot be made."""
    try:
        check_packages(config)
    except ConfigurationError as error:
        yield str(error)
    yield from map(str, _rewards(config))


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
                share = f"{prompts.num_unusable} of {prompts.num_unusable + prompts.counts.total()} rows"
                notes.append(f"{share} of {', '.join(files)} cannot be used or asked: {named}{more}")
        number, among, example = _unscorable(prompts, env_config.get("reward"))
        if number:
            notes.append(
                f"{number} of {among} rows of {', '.join(files)} cannot be scored, such as {example}"
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
    return {tag: plugins.arguments(env) for tag, env in envs.items() if env.env_type == PROMPTS_ENV}


def _prompts(config: RunConfig) -> Iterator[Problem]:
    for tag, env_config in _asked(config).items():
        path: KeyPath = ("custom_envs", tag, "env_config", "files")
        if tag in config.rewards:
            path = ("actor_train", "data_args", "file_name")
        elif tag.removesuffix(VAL_SUFFIX) in config.rewards:
            path = ("validation", "data_args", "file_name")
        try:
            prompts = open_prompts(source_of(env_config))
            number, among, example = _unscorable(prompts, env_config.get("reward"))
            if number == among:
                files = ", ".join(prompts.source.files)
                yield Problem(path, f"{tag}: no row of {files} can be scored; {example}")
        except ConfigurationError as error:
            yield Problem(path, f"{tag}: {error}")
        except ValidationError as error:
            for problem in problems_in(error, PromptSource):
                yield Problem((*path[:-1], *problem.path), problem.message)
        if "reward" not in env_config:
            yield Problem((*path[:-1], "reward"), "is required and missing: the name of a reward function")


def _unscorable(prompts: Prompts, section: Any) -> tuple[int, int, str]:
    """How many rows no response can be scored for, among how many that were looked at, and one of them.

    All where there are few, otherwise some from everywhere: parsing a reference answer takes a while.
    """
    reward = section if isinstance(section, Mapping) else {"worker_cls": section}
    rows = [prompts[index] for index in range(0, len(prompts), -(-len(prompts) // _MAX_SCORED))]
    try:
        function = load_reward(str(reward.get("worker_cls")), settings_of(reward))
    except ConfigurationError:  # reported where the reward is checked
        return 0, len(rows), ""
    problems = [(row.place, problem) for row in rows if (problem := _row_problem(function, row))]
    place, why = problems[0] if problems else ("", "")
    return len(problems), len(rows), f"{place}: {why}"


def _row_problem(function: RewardFunction, row: PromptRow) -> str | None:
    try:
        return function.problem(row.fields)
    except Exception as error:  # noqa: BLE001 - boundary: a reward function
        return describe_error(error)


def _rewards(config: RunConfig) -> Iterator[Problem]:
    for path, reward in reward_sections(config).items():
        try:
            load_reward(str(reward.get("worker_cls")), settings_of(reward))
        except ConfigurationError as error:
            yield Problem(path, str(error))
