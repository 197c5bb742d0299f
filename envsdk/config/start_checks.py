"""What must be there when a run starts, and need not be to read its file: `--explain` works without it."""

from __future__ import annotations

from collections.abc import Iterator

from envsdk.config.models import RunConfig
from envsdk.config.rlvr import PROMPTS_ENV, source_of
from envsdk.config.rlvr_checks import reward_sections
from envsdk.failures import ConfigurationError
from envsdk.prompt_data.opening import open_prompts
from envsdk.rewards.loading import load_reward, settings_of
from envsdk.settings.problems import KeyPath, Problem, describe


def check_start(config: RunConfig) -> None:
    """Raises ConfigurationError, which lists every problem."""
    problems = [*_prompts(config), *_rewards(config)]
    if problems:
        raise ConfigurationError(describe(problems, source=config.exp_name, origin=lambda path: ""))


def _prompts(config: RunConfig) -> Iterator[Problem]:
    for tag, env in config.custom_envs.items():
        if env.env_type == PROMPTS_ENV:
            path: KeyPath = ("custom_envs", tag, "env_config", "files")
            if tag in config.rewards:
                path = ("actor_train", "data_args", "file_name")
            try:
                open_prompts(source_of(env.env_config))
            except ConfigurationError as error:
                yield Problem(path, f"{tag}: {error}")


def _rewards(config: RunConfig) -> Iterator[Problem]:
    for path, reward in reward_sections(config).items():
        try:
            load_reward(str(reward.get("worker_cls")), settings_of(reward))
        except ConfigurationError as error:
            yield Problem(path, str(error))
