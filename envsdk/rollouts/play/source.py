"""What is played: a run's YAML file, or a configuration made for an environment or an evaluation.

source = resolve_source("agentic_async.yaml", ["seed=7"])
source.episodes_by_tag(100, split="val", tags=None)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from pydantic import ValidationError

from envsdk.base.registry import system_prompt
from envsdk.base.settings.nearest import nearest, suggest
from envsdk.base.settings.problems import describe
from envsdk.base.settings.validation import problems_in, shown
from envsdk.config import RunConfig, find_config, load_config
from envsdk.config.checks import check
from envsdk.config.env_arguments import (
    PLAYED_RUN_KEYS,
    env_config_from,
    short_name,
    split_overrides,
    whole_id,
)
from envsdk.config.env_defaults import fill_in, turn_limit
from envsdk.config.plugins import environment_class, environment_ids, environment_spec
from envsdk.config.reading import merged_over, plain_words
from envsdk.config.rlvr import PROMPTS_ENV, count_rows
from envsdk.config.section import split_evenly
from envsdk.config.start_checks import check_start
from envsdk.contracts.failures import ConfigurationError
from envsdk.rollouts.play.eval_spec import EvalSpec

_NUM_TASKS = 100
"""Held-out tasks of an environment, where no number is given."""
DEFAULT_SEED = 42
DEFAULT_SEQUENCE_LENGTH = 2048


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """What ENV_OR_YAML stands for."""

    name: str
    """As given: an environment id or a file."""
    config: RunConfig
    is_environment: bool
    """Whether `config` was made up around a registered environment, or an evaluation."""

    def episodes_by_tag(self, num_episodes: int, *, split: str, tags: Sequence[str] | None) -> dict[str, int]:
        """Divide episodes between tags: evenly where tags are named, else as the YAML's managers do.

        Tags that get none are left out.
        """
        weights = dict.fromkeys(self._known(tags), 1) if tags else self._manager_weights(split)
        counts = split_evenly(num_episodes, list(weights.values()))
        return {tag: count for tag, count in zip(weights, counts, strict=True) if count}

    def _known(self, tags: Sequence[str]) -> Sequence[str]:
        for tag in tags:
            if tag not in self.config.custom_envs:
                hint = suggest(tag, self.config.custom_envs, known="tags in custom_envs")
                raise ConfigurationError(f"--tags: {self.name} has no tag `{tag}`; {hint}")
        return tags

    def _manager_weights(self, split: str) -> Mapping[str, int]:
        config = self.config
        return (config.val_env_manager if split == "val" else config.train_env_manager).groups_per_tag


def resolve_source(
    source: str | Path | RunConfig, overrides: Sequence[str] = (), *, evaluations: Sequence[str] = ()
) -> Source:
    """Find out what `source` means: a run's YAML file, a registered environment id, or a configuration.

    Of an id, the name alone (`Sokoban`) will do where only one environment has it.

    With an environment id, overrides are arguments of its constructor (`size=6`), or else keys of a run
    (`sequence_length=512`). Raises ConfigurationError, which suggests a name of `evaluations`, too.
    """
    if isinstance(source, RunConfig):
        return Source(name=source.exp_name, config=source, is_environment=False)
    name = whole_id(str(source))
    known = environment_ids()
    if name in known:
        config = _around_environment(name, overrides)
        check_start(config, source=name)
        return Source(name=name, config=config, is_environment=True)
    if name.endswith((".yaml", ".yml")) or is_configuration(name):
        loaded = load_config(source, overrides, for_training=False)
        check_start(loaded.config, source=str(source))
        return Source(name=name, config=loaded.config, is_environment=False)
    candidates = {each: each for each in (*evaluations, *known)} | {short_name(id): id for id in known}
    match = nearest(name, candidates)
    hint = (
        f"did you mean `{candidates[match]}`?"
        if match
        else suggest(name, evaluations or known, known="what is registered")
    )
    kind, listing = ("evaluation and no ", "`envsdk eval --list` and ") if evaluations else ("", "")
    raise ConfigurationError(
        f"there is no {kind}environment {name!r}; {hint} "
        f"({listing}`envsdk envs` list what there is; a class of your own is registered by an entry point in "
        "`envsdk.envs`, as `envsdk init` does; a run's configuration is named by its .yaml file)"
    )


def evaluation_source(spec: EvalSpec, overrides: Sequence[str] = ()) -> Source:
    """A run's configuration with the tags of an evaluation; overrides are keys of a run.

    Raises ConfigurationError.
    """
    place = f"evaluation {spec.name}"
    unread = [each for each in overrides if each.partition("=")[0].partition(".")[0] not in PLAYED_RUN_KEYS]
    if unread:
        hint = suggest(unread[0].partition("=")[0].partition(".")[0], PLAYED_RUN_KEYS, known="keys")
        raise ConfigurationError(f"{place} reads no `{unread[0]}`; {hint}")
    own = env_config_from(overrides)
    keys: Any = OmegaConf.to_container(merged_over(OmegaConf.create(spec.run_keys), OmegaConf.create(own)))
    if not isinstance(tags := keys["custom_envs"], Mapping):
        raise ConfigurationError(f"{place}: custom_envs: must be a section of keys, not {shown(tags)}")
    fill_in(keys)
    sizes = {tag: _num_rows(custom) for tag, custom in tags.items()}
    shares = [1] * len(sizes) if spec.num_tasks else list(sizes.values())
    manager = {"tags": list(sizes), "num_env_groups": sum(shares), "num_groups_partition": shares}
    config = _config({"val_batch_size": spec.num_tasks or sum(shares)}, manager, keys, source=place)
    check_start(config, source=place)
    return Source(name=spec.name, config=config, is_environment=True)


def _num_rows(custom: Any) -> int:
    """Tasks of a tag where no number is given: each row of prompt data once."""
    is_prompts = isinstance(custom, Mapping) and custom.get("env_type") == PROMPTS_ENV
    return (count_rows(custom.get("env_config") or {}) if is_prompts else None) or _NUM_TASKS


def is_configuration(name: str) -> bool:
    """Whether a run's YAML file has this name."""
    try:
        find_config(name)
    except ConfigurationError:
        return False
    return True


def _num_tasks(env_id: str, env_config: Mapping[str, Any]) -> int:
    """Held-out tasks where no number is given: each row of prompt data once, where there are few."""
    given = {**environment_spec(env_id).kwargs, **env_config}
    rows = count_rows(given) if env_id == PROMPTS_ENV else None
    return min(_NUM_TASKS, rows or _NUM_TASKS)


def _around_environment(env_id: str, overrides: Sequence[str]) -> RunConfig:
    """A run's configuration whose only tag is `env_id`, with the environment's own system prompt."""
    spec = environment_spec(env_id)
    run_keys, env_config = split_overrides(overrides, env_id, environment_class(spec))
    data = {
        "val_batch_size": _num_tasks(env_id, env_config),
        "custom_envs": {
            env_id: {
                "env_type": env_id,
                "env_config": env_config,
                "max_steps": turn_limit(spec, env_config),
                "agent_system_template": system_prompt(spec, env_config),
            }
        },
    }
    return _config(data, {"num_env_groups": 1, "tags": [env_id]}, run_keys, source=env_id)


def _config(
    data: Mapping[str, Any], manager: Mapping[str, Any], over: Mapping[str, Any], *, source: str
) -> RunConfig:
    """A run's configuration that plays `data` and trains nothing, with the keys of `over` over it."""
    base = {
        "exp_name": "adhoc",
        "seed": DEFAULT_SEED,
        "rollout_batch_size": 1,
        "sequence_length": DEFAULT_SEQUENCE_LENGTH,
        "max_steps": 1,
        "adv_estimator": "reinforce",
        "train_env_manager": manager,
        "val_env_manager": manager,
        **data,
    }
    try:
        merged = OmegaConf.to_container(
            merged_over(OmegaConf.create(base), OmegaConf.create(dict(over))), resolve=True
        )
        config = RunConfig.model_validate(merged)
        problems = check(config, for_training=False)
    except ValidationError as error:
        problems = list(problems_in(error, RunConfig))
    except OmegaConfBaseException as error:
        raise ConfigurationError(f"{source}: {plain_words(error)}") from error
    if problems:
        raise ConfigurationError(describe(problems, source=source, origin=lambda path: ""))
    return config
