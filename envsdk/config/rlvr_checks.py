"""Checks of the keys of prompts with verifiable rewards."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pydantic import ValidationError

from envsdk.base.settings.nearest import suggest
from envsdk.base.settings.problems import KeyPath, Problem
from envsdk.base.settings.validation import problems_in
from envsdk.config.models import RunConfig
from envsdk.config.plugins import arguments
from envsdk.config.rlvr import PROMPTS_ENV
from envsdk.config.rlvr_models import ValidationArgs
from envsdk.contracts.failures import ConfigurationError
from envsdk.rewards.loading import reward_class, settings_of


def prompt_problems(config: RunConfig) -> Iterator[Problem]:
    """What is wrong with prompts, domains and rewards, as far as the file shows it."""
    yield from _domains(config)
    yield from _group_size(config)
    yield from _val_sampling(config)
    for path, reward in reward_sections(config).items():
        yield from _reward(path, reward)


def reward_sections(config: RunConfig) -> dict[KeyPath, dict[str, Any]]:
    """The rewards of all tags that ask prompts, by the key to mend."""
    found: dict[KeyPath, dict[str, Any]] = {}
    for tag, env in config.custom_envs.items():
        reward = arguments(env).get("reward") if env.env_type == PROMPTS_ENV else None
        reward = {"worker_cls": reward} if isinstance(reward, str) else reward
        if isinstance(reward, dict):
            domain = next((name for name in (tag, tag.removesuffix("_val")) if name in config.rewards), None)
            path = ("custom_envs", tag, "env_config", "reward") if domain is None else ("rewards", domain)
            found.setdefault(path, reward)
    return found


def _domains(config: RunConfig) -> Iterator[Problem]:
    files = config.actor_train.data_args
    if files is None:
        return
    path: KeyPath = ("actor_train", "data_args", "domain_interleave_probs")
    shares = files.domain_interleave_probs or {}
    for name in shares:
        if name not in config.rewards:
            hint = suggest(name, config.rewards, known="domains in rewards")
            yield Problem((*path, name), f"no such domain; {hint}")
    if shares and not any(shares.values()):
        yield Problem(path, "leaves no domain any prompts; give one of them a share above 0")


def _val_sampling(config: RunConfig) -> Iterator[Problem]:
    if isinstance(config.validation, ValidationArgs) and config.val_env_manager.generating_args is not None:
        yield Problem(
            ("val_env_manager", "generating_args"),
            "validation.generating_args says how held-out prompts are answered; keep one of the two",
        )


def _group_size(config: RunConfig) -> Iterator[Problem]:
    asked, played = config.num_return_sequences_in_group, config.train_env_manager.group_size
    if asked is not None and asked != played:
        yield Problem(
            ("train_env_manager", "group_size"),
            f"{played} is not num_return_sequences_in_group={asked}, which says the same; leave one out",
        )


def _reward(path: KeyPath, reward: dict[str, Any]) -> Iterator[Problem]:
    try:
        kind = reward_class(str(reward.get("worker_cls")))
    except ConfigurationError as error:
        yield Problem((*path, "worker_cls"), str(error))
        return
    if kind.Args is None:
        return
    try:
        kind.Args.model_validate(settings_of(reward))
    except ValidationError as error:
        for problem in problems_in(error, kind.Args):
            yield Problem((*path, *problem.path), problem.message)
