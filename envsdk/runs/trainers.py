"""The trainers of a run: the policy that learns, and the reference model where a KL term asks for one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from envsdk.base.store.travel import DriverFiles
from envsdk.config.models import RunConfig
from envsdk.config.plugins import runs_on_several_ranks
from envsdk.config.role_models import TrainerRole
from envsdk.contracts.trainer import TrainerConfig
from envsdk.runs.trainer_group import TrainerGroup, TrainerSpec


@dataclass(frozen=True, slots=True)
class Trainers:
    """Owner: the pipeline."""

    actor: TrainerGroup
    reference: TrainerGroup | None
    driver_files: DriverFiles = field(default_factory=DriverFiles)
    """Files of the run that other machines may lack."""

    @classmethod
    def of(cls, config: RunConfig, model: Path, driver_files: DriverFiles) -> Self:
        """Those that `config` describes, not started."""
        roles = _trainer_roles(config)
        mappings = [role.device_mapping for role in roles.values()]
        if config.actor_infer.device_mapping is not None:
            mappings.append(config.actor_infer.device_mapping)
        groups = [
            TrainerGroup(_trainer_spec(config, key, role, model, driver_files), all_mappings=mappings)
            for key, role in roles.items()
        ]
        return cls(groups[0], groups[1] if len(groups) > 1 else None, driver_files)

    @property
    def groups(self) -> list[TrainerGroup]:
        """All of them."""
        return [self.actor] if self.reference is None else [self.actor, self.reference]


def trainer_mappings(config: RunConfig) -> list[Sequence[int] | None]:
    """The accelerators of each trainer."""
    return [role.device_mapping for role in _trainer_roles(config).values()]


def _trainer_roles(config: RunConfig) -> dict[str, TrainerRole]:
    roles: dict[str, TrainerRole] = {"actor_train": config.actor_train}
    return roles | {"reference": config.reference} if config.algorithm.needs_reference else roles


def _trainer_spec(
    config: RunConfig, key: str, role: TrainerRole, model: Path, driver_files: DriverFiles
) -> TrainerSpec:
    learns = role is config.actor_train
    strategy = role.strategy_args.strategy_name
    placement = config.ray.placement
    return TrainerSpec(
        key=key,
        driver_files=driver_files,
        role="trainer" if learns else "reference",
        placement=placement.trainer if learns else placement.reference,
        strategy_name=strategy,
        config=TrainerConfig(
            model=model,
            sequence_length=config.sequence_length,
            seed=config.seed,
            algorithm=config.algorithm.model_dump(),
            training_args=config.actor_train.training_args if learns else {},
            strategy_config=role.settings,
            with_value_head=learns and config.algorithm.needs_values,
        ),
        device_mapping=role.device_mapping,
        uses_accelerators=role.device_mapping is not None or runs_on_several_ranks(strategy),
    )
