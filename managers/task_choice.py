"""What a run's task sampler is told: its settings, and how many tasks each tag has, and how hard they are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from envsdk.algorithms.task_samplers.contract import UNIFORM, SamplerConfig, TagTasks, sampler_class
from envsdk.base.settings.validation import validated
from envsdk.config.models import RunConfig
from envsdk.config.plugins import arguments, environment_class, environment_spec
from envsdk.config.rlvr import PROMPTS_ENV, source_of
from envsdk.contracts.failures import ConfigurationError
from envsdk.rewards.prompt_data.opening import open_prompts


def sampler_config(config: RunConfig) -> SamplerConfig | None:
    """`task_sampler` of a run; None where tasks come in order. Reads task lists where the sampler needs
    them."""
    entry = config.task_sampler
    if entry.name == UNIFORM:
        return None
    args = validated(sampler_class(entry.name).settings, entry.args, "task_sampler", owner=entry.name)
    tags = config.train_env_manager.tags
    tasks = {tag: TagTasks() for tag in tags}
    if args.returns_to_tasks:
        tasks = {
            tag: TagTasks(num_tasks=_num_tasks(config, tag, getattr(args, "num_tasks", None))) for tag in tags
        }
        if columns := getattr(args, "columns", None):
            is_easy = getattr(args, "higher_is", "harder") == "easier"
            keys = {tag: _keys(config, tag, tasks[tag].num_tasks or 0, columns, is_easy) for tag in tags}
            ranked = {
                key: rank for rank, key in enumerate(sorted({each for own in keys.values() for each in own}))
            }
            tasks = {
                tag: TagTasks(num_tasks=len(own), ranks=[ranked[key] for key in own])
                for tag, own in keys.items()
            }
    return SamplerConfig(name=entry.name, args=dict(entry.args), tasks=tasks, seed=config.seed)


def _num_tasks(config: RunConfig, tag: str, given: int | Mapping[str, int] | None) -> int | None:
    """As given, or the length of the environment's list."""
    custom = config.custom_envs[tag]
    spec = environment_spec(custom.env_type)
    number = given if isinstance(given, int) or given is None else given.get(tag)
    listed = None
    if spec.lists_tasks:
        listed = getattr(environment_class(spec)(**arguments(custom)), "num_tasks", None)
    if number is not None and listed is not None and number > listed:
        raise ConfigurationError(
            f"task_sampler.num_tasks: {number} is more than the {listed} tasks of tag `{tag}`; leave it out "
            "to choose among all"
        )
    return number or listed


def _keys(
    config: RunConfig, tag: str, number: int, columns: Sequence[str], is_easy: bool
) -> list[tuple[float, ...]]:
    """How hard the first rows of a tag's prompts are, in the order in which they are asked: lower is
    easier."""
    custom = config.custom_envs[tag]
    if custom.env_type != PROMPTS_ENV:
        raise ConfigurationError(
            f"task_sampler.columns: tag `{tag}` plays {custom.env_type}, which has no columns; only prompt "
            "data has. Leave columns out, and set choose: tags"
        )
    given = arguments(custom)
    prompts = open_prompts(source_of(given))
    seed = given.get("order_seed", 0) if given.get("shuffle") else None
    keys = []
    for index in range(number):
        row = prompts[prompts.nth(index, seed=seed)]
        try:
            values = tuple(float(row.fields[name]) for name in columns)
        except (KeyError, TypeError, ValueError) as error:
            missing: Any = next((name for name in columns if name not in row.fields), None)
            what = f"has no column `{missing}`" if missing else f"has no number there ({error})"
            raise ConfigurationError(f"task_sampler.columns: {row.place} {what}") from error
        keys.append(tuple(-value if is_easy else value for value in values))
    return keys
