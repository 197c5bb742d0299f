"""What a run's task sampler is told: its settings, and how many tasks each tag has, and how hard they are."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import chain
from typing import Any

from envsdk.algorithms.task_samplers.contract import UNIFORM, SamplerConfig, TagTasks, sampler_class
from envsdk.algorithms.task_samplers.scored import EasyToHardArgs
from envsdk.base.settings.validation import validated
from envsdk.config.models import RunConfig
from envsdk.config.plugins import arguments, environment_class, environment_spec
from envsdk.config.rlvr import source_of
from envsdk.contracts.failures import ConfigurationError
from envsdk.rewards.prompt_data.opening import open_prompts


def sampler_config(config: RunConfig) -> SamplerConfig | None:
    """`task_sampler` of a run; None where tasks come in order. Reads task lists where the sampler needs
    them."""
    entry = config.task_sampler
    if entry.name == UNIFORM:
        return None
    args = validated(sampler_class(entry.name).settings, entry.args, "task_sampler", owner=entry.name)
    tasks = {tag: TagTasks() for tag in config.train_env_manager.tags}
    if args.returns_to_tasks:
        given = getattr(args, "num_tasks", None)
        tasks = {tag: TagTasks(num_tasks=_num_tasks(config, tag, given)) for tag in tasks}
    if args.returns_to_tasks and isinstance(args, EasyToHardArgs):
        keys = {tag: _keys(config, tag, each.num_tasks or 0, args) for tag, each in tasks.items()}
        ranks = {key: rank for rank, key in enumerate(sorted(set(chain.from_iterable(keys.values()))))}
        tasks = {
            tag: TagTasks(num_tasks=len(own), ranks=[ranks[key] for key in own]) for tag, own in keys.items()
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


def _keys(config: RunConfig, tag: str, number: int, args: EasyToHardArgs) -> list[tuple[float, ...]]:
    """How hard the first rows of a tag's prompts are, in the order in which they are asked: lower is
    easier."""
    given = arguments(config.custom_envs[tag])
    prompts = open_prompts(source_of(given))
    seed = given.get("order_seed", 0) if given.get("shuffle") else None
    keys = []
    for index in range(number):
        row = prompts[prompts.nth(index, seed=seed)]
        try:
            values = tuple(float(row.fields[name]) for name in args.columns)
        except (KeyError, TypeError, ValueError) as error:
            missing: Any = next((name for name in args.columns if name not in row.fields), None)
            what = f"has no column `{missing}`" if missing else f"has no number there ({error})"
            raise ConfigurationError(f"task_sampler.columns: {row.place} {what}") from error
        keys.append(tuple(-value if args.higher_is == "easier" else value for value in values))
    return keys
