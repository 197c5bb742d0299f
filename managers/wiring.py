"""Turns the configuration into the setups of workers and ledgers."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from envsdk.base.registry import spec as spec_of
from envsdk.base.store.travel import DriverFiles
from envsdk.config.env_defaults import turn_limit
from envsdk.config.env_models import CustomEnv, EnvManagerArgs, StructuredOutput
from envsdk.config.models import RunConfig
from envsdk.config.sampling_support import keeps_support
from envsdk.config.section import interleave
from envsdk.contracts.env import EnvSpec
from envsdk.contracts.prompts import AgentPrompts
from envsdk.engines.sampling import OutputStructure
from envsdk.managers.env_host import EnvBlueprint
from envsdk.managers.env_worker import WorkerSetup
from envsdk.managers.ledger_types import FRUITLESS_BATCHES, LedgerConfig
from envsdk.managers.task_choice import sampler_config
from envsdk.managers.traj_env_manager import UNLIMITED_TURNS, TagSetup, TurnCurriculum
from envsdk.managers.worker_pool import WorkerDemandConfig, WorkerPoolConfig

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
