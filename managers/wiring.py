"""Turns the configuration into the setups of workers and ledgers."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

from envsdk.algorithms.task_samplers.contract import UNIFORM, SamplerConfig, TagTasks, sampler_class
from envsdk.algorithms.task_samplers.scored import EasyToHardArgs
from envsdk.base.registry import spec as spec_of
from envsdk.base.settings.validation import validated
from envsdk.base.store.travel import DriverFiles
from envsdk.config.env_defaults import turn_limit
from envsdk.config.env_models import CustomEnv, EnvManagerArgs, StructuredOutput
from envsdk.config.models import RunConfig
from envsdk.config.plugins import arguments, environment_class, environment_spec
from envsdk.config.rlvr import source_of
from envsdk.config.sampling_support import keeps_support
from envsdk.config.section import interleave
from envsdk.contracts.env import EnvSpec
from envsdk.contracts.failures import ConfigurationError
from envsdk.contracts.prompts import AgentPrompts
from envsdk.engines.sampling import OutputStructure
from envsdk.managers.env_host import EnvBlueprint
from envsdk.managers.env_worker import WorkerSetup
from envsdk.managers.ledger_types import FRUITLESS_BATCHES, LedgerConfig
from envsdk.managers.traj_env_manager import UNLIMITED_TURNS, TagSetup, TurnCurriculum
from envsdk.managers.worker_pool import WorkerDemandConfig, WorkerPoolConfig
from envsdk.rewards.prompt_data.opening import open_prompts

VAL_SPLIT = "val"


def tag_setup(tag: str, custom: CustomEnv, spec: EnvSpec, *, max_new_tokens: int) -> TagSetup:
    """The setup of one tag: settings of the YAML file, with the environment's own defaults."""
    max_turns = custom.max_steps or turn_limit(spec, custom.env_config) or UNLIMITED_TURNS
    return TagSetup(
        tag=tag,
        blueprint=EnvBlueprint.of(spec, custom.env_config, custom),
        prompts=AgentPrompts(system=custom.agent_system_template, template=custom.agent_template),
        max_turns=max_turns,
        max_new_tokens=max_new_tokens,
        structure=output_structure(custom.structured_output),
        window=custom.shown_turns,
        players=custom.players or (),
        compact_at=custom.compact_at or 0,
        compact_prompt=custom.compact_prompt,
        max_episode_tokens=custom.max_episode_tokens or 0,
    )


def output_structure(args: StructuredOutput | None) -> OutputStructure | None:
    """The `structured_output` of the YAML file in the form that engines use."""
    if args is None:
        return None
    schema = args.json_schema
    return OutputStructure(
        regex=args.regex,
        json_schema=None if schema is None else json.dumps(schema),
        choices=tuple(args.choices or ()),
    )


def tag_setups(config: RunConfig, manager: EnvManagerArgs) -> dict[str, TagSetup]:
    """The setup of each tag that a manager plays."""
    return {
        tag: tag_setup(
            tag,
            config.custom_envs[tag],
            spec_of(config.custom_envs[tag].env_type),
            max_new_tokens=config.max_response_tokens(tag, val=manager is config.val_env_manager),
        )
        for tag in manager.tags
    }


def worker_setups(
    config: RunConfig,
    manager: EnvManagerArgs,
    *,
    split: str,
    model: Path,
    engines: Mapping[str, Any],
    opponents: Mapping[str, Path] | None = None,
    driver_files: DriverFiles | None = None,
) -> dict[str, WorkerSetup]:
    """The setup of each worker there may be, by name. The slots of a tag are spread evenly over the workers.

    Where the number of workers has a range, the first workers together have slots of every tag. State hashes
    are recorded if training needs them, and never in an evaluation.
    """
    with_state_hashes = config.needs_state_hashes and split != VAL_SPLIT
    setups = {
        tag: replace(
            setup,
            with_state_hashes=with_state_hashes,
            blueprint=replace(setup.blueprint, trains=split != VAL_SPLIT),
            turn_curriculum=None if split == VAL_SPLIT else _turn_curriculum(config, tag),
        )
        for tag, setup in tag_setups(config, manager).items()
    }
    generating = config.val_generating_args if split == VAL_SPLIT else config.actor_infer.generating_args
    tells_support = split != VAL_SPLIT and keeps_support(config)
    slots = _slots(manager, split)
    return {
        f"{split}-{index}": WorkerSetup(
            slots=worker_slots,
            setups={tag: setups[tag] for tag in dict.fromkeys(worker_slots.values())},
            model=model,
            generating=replace(generating.sampling, support=tells_support),
            sequence_length=config.sequence_length,
            turn_timeout_s=manager.turn_timeout_s,
            engines=engines,
            opponents=opponents or {},
            engines_return=True,
            driver_files=driver_files or DriverFiles(),
            shares_prompts=config.shares_prompts,
            records_experts=split != VAL_SPLIT and config.algorithm.train_infer_correction.routing_replay,
            manager_classes={
                tag: config.custom_envs[tag].env_manager_cls or manager.env_manager_cls for tag in setups
            },
        )
        for index, worker_slots in enumerate(slots)
    }


def _turn_curriculum(config: RunConfig, tag: str) -> TurnCurriculum | None:
    given = config.custom_envs[tag].turn_curriculum
    if given is None:
        return None
    return TurnCurriculum(start=given.start, add=given.add, every=given.every * config.num_train_groups)


def _slots(manager: EnvManagerArgs, split: str) -> list[dict[str, str]]:
    """The slots of each worker there may be: slot id -> tag."""
    slots: list[dict[str, str]] = [{} for _ in range(manager.workers_between[1])]
    if manager.has_worker_range:
        for index, tag in enumerate(interleave(manager.groups_per_tag, manager.max_envs)):
            slots[index // manager.envs_per_worker][f"{split}/{tag}/{index}"] = tag
    else:
        tags = [tag for tag, count in manager.envs_per_tag.items() for _ in range(count)]
        for index, tag in enumerate(tags):
            slots[index % len(slots)][f"{split}/{tag}/{index}"] = tag
    return slots


def worker_pool(manager: EnvManagerArgs) -> WorkerPoolConfig:
    """Between which numbers the workers of this manager follow the load."""
    fewest, most = manager.workers_between
    return WorkerPoolConfig(
        min_workers=fewest,
        max_workers=most,
        num_workers=manager.num_workers,
        demand=WorkerDemandConfig(
            slots_per_worker=manager.envs_per_worker,
            max_node_cpu=manager.max_node_cpu,
            idle_s=manager.worker_idle_s,
        ),
    )


def train_ledger(config: RunConfig) -> LedgerConfig:
    """The configuration of the ledger of training episodes."""
    manager = config.train_env_manager
    # Groups dropped by filters have a limit of their own, which must be reached first.
    filtered_batches = math.ceil(config.filtered_groups_limit / config.num_train_groups)
    return LedgerConfig(
        batch_size=config.train_batch_size,
        group_size=manager.group_size,
        alpha=config.first_depth,
        max_staleness=config.staleness_bound,
        max_wait_share=config.wait_share,
        tag_weights=manager.groups_per_tag,
        group_size_redundancy=manager.group_size_redundancy,
        num_groups_redundancy=manager.num_groups_redundancy,
        min_group_size=manager.min_group_size,
        episode_deadline_s=manager.episode_deadline_s,
        max_group_attempts=manager.max_group_attempts,
        max_fruitless_batches=max(FRUITLESS_BATCHES, 1 + filtered_batches),
        task_sampler=sampler_config(config),
        keeps_shares=config.batch_mixture == "stratified",
    )


def validation_ledger(config: RunConfig) -> LedgerConfig:
    """The configuration of an evaluation's ledger: the first tasks of the held-out split, failed or not."""
    manager = config.val_env_manager
    return LedgerConfig(
        batch_size=config.val_batch_size,
        group_size=manager.group_size,
        alpha=0,
        tag_weights=config.val_groups_per_tag,
        split=VAL_SPLIT,
        min_group_size=0,
        episode_deadline_s=manager.episode_deadline_s,
        max_group_attempts=manager.max_group_attempts,
    )


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
