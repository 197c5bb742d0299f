"""Evaluations by name: what they play, and where they are found.

    evaluations_named("sums")                        # registered under the entry-point group `envsdk.evals`
    evaluations_named("my_evals.yaml")               # all that the file defines under `evals`
    evaluations_named("my_evals.yaml:hard_sums")     # one of them
    evaluations_named("rows.jsonl", reward="math")   # a file of prompts

Other names are environments and files of runs, which `envsdk.rollouts.play.source` resolves.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any

import yaml
from pydantic import Field

from envsdk.base.plugins import load_plugin, plugin_names
from envsdk.base.settings.nearest import suggest
from envsdk.base.settings.options import Count
from envsdk.base.settings.strict import StrictSettings
from envsdk.base.settings.validation import NAME_PATTERN, validated
from envsdk.config.reading import line_of, plain_words
from envsdk.config.rlvr import PROMPTS_ENV
from envsdk.contracts.failures import ConfigurationError

ENTRY_POINT_GROUP = "envsdk.evals"
_PROMPT_FILES = (".jsonl", ".jsonl.gz", ".json", ".parquet")


class EvalSpec(StrictSettings):
    """An evaluation: tags, how many of their tasks are played, and how replies are sampled."""

    name: Annotated[str, Field(pattern=NAME_PATTERN)]
    """That of the entry point, or the key under `evals` in a file."""
    custom_envs: Annotated[dict[str, dict[str, Any]], Field(min_length=1)]
    """Tags by name, with the keys of `custom_envs` in a run's file. `envsdk/Prompts-v1` is the environment of
    a prompt file and its reward."""
    version: int = 1
    """Raised when scores can no longer be compared with earlier ones."""
    about: str = ""
    """One line for the list of evaluations."""
    num_tasks: Count | None = None
    """Tasks, in equal parts of each tag. When absent, each row of prompt files; 100 tasks of other tags."""
    samples_per_task: Count = 1
    """Episodes of each task."""
    solved_at: float | None = None
    """Total reward from which an episode counts as solved. When absent, the environment or reward decides."""
    sequence_length: Count | None = None
    """Longest episode in tokens; 2048 when absent."""
    seed: Annotated[int, Field(ge=0)] = 42
    """Seed of tasks and sampling."""
    max_failed_share: float | None = None
    """Share of the episodes that may fail, as in a run's file."""
    actor_infer: dict[str, Any] = Field(default_factory=dict)
    """How the model plays, as in a run's file; `generating_args` says how replies are sampled."""

    @property
    def run_keys(self) -> dict[str, Any]:
        """The keys of a run's file among these."""
        keys = ("custom_envs", "sequence_length", "seed", "max_failed_share", "actor_infer")
        return {key: value for key, value in self.model_dump(include=set(keys)).items() if value is not None}


def evaluations_named(name: str, *, reward: str | None = None) -> list[EvalSpec]:
    """The evaluations that `name` stands for; none for an environment or a run's file.

    Raises ConfigurationError: a definition is wrong, or `reward` is missing or in the wrong place.
    """
    if name.endswith(_PROMPT_FILES) or (reward is not None and Path(name).is_dir()):
        if reward is None:
            raise ConfigurationError(f"{name} is a file of prompts: say by --reward how replies are scored")
        return [_of_prompts(name, reward)]
    if reward is not None:
        raise ConfigurationError(f"--reward is for files and folders of prompts, and {name} is none")
    if name in plugin_names(ENTRY_POINT_GROUP):
        return [registered_evaluation(name)]
    if not (match := re.fullmatch(r"(.+\.ya?ml)(?::(.+))?", name)):
        return []
    found = {each.name: each for each in evaluations_in(Path(match[1]))}
    if match[2] is None:
        return list(found.values())
    if match[2] not in found:
        raise ConfigurationError(
            f"{match[1]} defines no evaluation {match[2]!r}; {suggest(match[2], found, known='evaluations')}"
        )
    return [found[match[2]]]


def registered_evaluation(name: str) -> EvalSpec:
    """The evaluation of an entry point. Raises ConfigurationError."""
    spec = load_plugin(ENTRY_POINT_GROUP, name)
    if not isinstance(spec, EvalSpec) or spec.name != name:
        raise ConfigurationError(f"entry point {name!r} of {ENTRY_POINT_GROUP}: is no EvalSpec of that name")
    return spec


def _of_prompts(file: str, reward: str) -> EvalSpec:
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", Path(file).name.split(".")[0]).strip("-") or "prompts"
    tag = {"env_type": PROMPTS_ENV, "env_config": {"files": [file], "reward": reward}}
    return EvalSpec(name=name, custom_envs={name: tag})


def evaluations_in(path: Path) -> list[EvalSpec]:
    """The evaluations that a YAML file defines; none where it has no key `evals`."""
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8")) if path.is_file() else None
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ConfigurationError(f"{path}{line_of(error)}: {plain_words(error)}") from error
    if not isinstance(content, dict) or "evals" not in content:
        return []
    evals = validated(_File, content, str(path)).evals
    return [
        validated(EvalSpec, {**keys, "name": name}, f"{path}: evals.{name}") for name, keys in evals.items()
    ]


class _File(StrictSettings):
    evals: Annotated[dict[str, dict[str, Any]], Field(min_length=1)]
