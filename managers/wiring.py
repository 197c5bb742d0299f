"""From the configuration to what workers and schedulers are told. Pure."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from envsdk.config.models import CustomEnv, EnvManagerArgs, RunConfig, StructuredOutput
from envsdk.env import EnvSpec, Isolation
from envsdk.inference.engine import OutputStructure
from envsdk.managers.env_host import EnvBlueprint
from envsdk.managers.env_worker import WorkerSetup
from envsdk.managers.ledger_types import LedgerConfig
from envsdk.managers.traj_env_manager import UNLIMITED_TURNS, TagSetup
from envsdk.prompts import AgentPrompts

VAL_SPLIT = "val"
FRUITLESS_BATCHES = 10
"""Batches' worth of trajectories that may be thrown away in a row before the run ends with an error."""


def tag_setup(tag: str, custom: CustomEnv, spec: EnvSpec, *, max_new_tokens: int) -> TagSetup:
    """One tag: what the YAML says, and the environment's own defaults for what it leaves out."""
    max_turns = custom.max_steps or spec.max_steps or UNLIMITED_TURNS
    return TagSetup(
        tag=tag,
        blueprint=EnvBlueprint(
            spec=spec,
            env_config=custom.env_config,
            isolation=Isolation(custom.isolation) if custom.isolation else spec.isolation,
            start_timeout_s=custom.start_timeout_s or spec.start_timeout_s,
            reset_timeout_s=custom.reset_timeout_s or spec.reset_timeout_s,
            step_timeout_s=custom.step_timeout_s or spec.step_timeout_s,
        ),
        prompts=AgentPrompts(system=custom.agent_system_template, template=custom.agent_template),
        max_turns=max_turns,
        max_new_tokens=max_new_tokens,
        structure=output_structure(custom.structured_output),
    )


def output_structure(args: StructuredOutput | None) -> OutputStructure | None:
    """As engines know it."""
    if args is None:
        return None
    schema = args.json_schema
    return OutputStructure(
        regex=args.regex,
        json_schema=None if schema is None else json.dumps(schema),
        choices=tuple(args.choices or ()),
    )


def tag_setups(config: RunConfig, manager: EnvManagerArgs) -> dict[str, TagSetup]:
    """The tags a manager plays."""
    from envsdk.registry import spec

    return {
        tag: tag_setup(
            tag,
            config.custom_envs[tag],
            spec(config.custom_envs[tag].env_type),
            max_new_tokens=config.max_response_tokens(tag),
        )
        for tag in manager.tags
    }


def worker_setups(
    config: RunConfig, manager: EnvManagerArgs, *, split: str, model: Path, engines: Mapping[str, Any]
) -> dict[str, WorkerSetup]:
    """Every worker with its slots; the slots of a tag are dealt out evenly.

    State hashes are recorded where training needs them, never in an evaluation.
    """
    with_state_hashes = config.needs_state_hashes and split != VAL_SPLIT
    setups = {
        tag: replace(setup, with_state_hashes=with_state_hashes)
        for tag, setup in tag_setups(config, manager).items()
    }
    slots: list[dict[str, str]] = [{} for _ in range(manager.num_workers)]
    for number, tag in enumerate(_slot_tags(manager)):
        slots[number % len(slots)][f"{split}/{tag}/{number}"] = tag
    return {
        f"{split}-{index}": WorkerSetup(
            slots=worker_slots,
            setups={tag: setups[tag] for tag in dict.fromkeys(worker_slots.values())},
            model=model,
            generating=config.actor_infer.generating_args.sampling,
            sequence_length=config.sequence_length,
            turn_timeout_s=manager.turn_timeout_s,
            engines=engines,
            engines_return=True,
            manager_classes={
                tag: config.custom_envs[tag].env_manager_cls or manager.env_manager_cls for tag in setups
            },
        )
        for index, worker_slots in enumerate(slots)
    }


def _slot_tags(manager: EnvManagerArgs) -> Iterator[str]:
    for tag, count in manager.envs_per_tag.items():
        yield from [tag] * count


def train_ledger(config: RunConfig) -> LedgerConfig:
    """The ledger of training episodes."""
    manager = config.train_env_manager
    # What the group filters drop has a limit of its own, which is to be reached first.
    filtered_batches = math.ceil(config.filtered_groups_limit / config.num_train_groups)
    return LedgerConfig(
        batch_size=config.rollout_batch_size,
        group_size=manager.group_size,
        alpha=config.async_generation_ratio,
        tag_weights=manager.groups_per_tag,
        group_size_redundancy=manager.group_size_redundancy,
        num_groups_redundancy=manager.num_groups_redundancy,
        min_group_size=manager.min_group_size,
        episode_deadline_s=manager.episode_deadline_s,
        max_group_attempts=manager.max_group_attempts,
        max_fruitless_batches=max(FRUITLESS_BATCHES, 1 + filtered_batches),
    )


def validation_ledger(config: RunConfig) -> LedgerConfig:
    """The ledger of one evaluation: exactly the first tasks of the held-out split, whatever comes of them."""
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
