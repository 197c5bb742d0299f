"""The trainers of a run: the policy that learns, the reference model of KL terms, and teachers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from envsdk.base.plugins import plugin_names
from envsdk.base.store.model_files import other_tokens
from envsdk.base.store.travel import DriverFiles
from envsdk.config.models import RunConfig
from envsdk.config.plugins import ENGINES, runs_on_several_ranks
from envsdk.config.role_models import TrainerRole
from envsdk.contracts.failures import ConfigurationError
from envsdk.contracts.trainer import TrainerConfig
from envsdk.rollouts.play.model import find_model_folder
from envsdk.runs.teacher_engine import NAME as TEACHER_ENGINE
from envsdk.runs.trainer_group import TrainerGroup, TrainerSpec


@dataclass(frozen=True, slots=True)
class Trainers:
    """Owner: the pipeline."""

    actor: TrainerGroup
    reference: TrainerGroup | None
    teachers: Mapping[str, TrainerGroup] = field(default_factory=dict)
    driver_files: DriverFiles = field(default_factory=DriverFiles)
    """Files of the run that other machines may lack."""

    @classmethod
    def of(cls, config: RunConfig, model: Path, driver_files: DriverFiles) -> Self:
        """Those that `config` describes, not started."""
        roles = _trainer_roles(config)
        mappings = [role.device_mapping for role in roles.values()]
        if config.actor_infer.device_mapping is not None:
            mappings.append(config.actor_infer.device_mapping)
        mappings += [each.device_mapping for each in config.teachers.values()]
        groups = [
            TrainerGroup(_trainer_spec(config, key, role, model, driver_files), all_mappings=mappings)
            for key, role in roles.items()
        ]
        teachers = {
            name: TrainerGroup(_teacher_spec(config, name, model, driver_files), all_mappings=mappings)
            for name in config.teachers
        }
        return cls(groups[0], groups[1] if len(groups) > 1 else None, teachers, driver_files)

    @property
    def groups(self) -> list[TrainerGroup]:
        """All of them."""
        others = [] if self.reference is None else [self.reference]
        return [self.actor, *others, *self.teachers.values()]


def trainer_mappings(config: RunConfig) -> list[Sequence[int] | None]:
    """The accelerators of each trainer."""
    return [role.device_mapping for role in _trainer_roles(config).values()]


def _trainer_roles(config: RunConfig) -> dict[str, TrainerRole]:
    roles: dict[str, TrainerRole] = {"actor_train": config.actor_train}
    return roles | {"reference": config.reference} if config.algorithm.needs_reference else roles


def _teacher_spec(config: RunConfig, name: str, model: Path, driver_files: DriverFiles) -> TrainerSpec:
    teacher, option = config.teachers[name], f"teachers.{name}.pretrain"
    folder = find_model_folder(Path(teacher.pretrain), option=option)
    if problem := other_tokens(model, folder):
        raise ConfigurationError(f"{option}: {problem}")
    strategy, own = teacher.strategy_args.strategy_name, teacher.strategy_args.strategy_config
    is_engine = strategy in plugin_names(ENGINES)
    if is_engine:
        own = {"engine": strategy, "settings": own, "max_running": teacher.infer_batch_size}
    return TrainerSpec(
        key=f"teachers.{name}",
        driver_files=driver_files,
        role="reference",
        placement=config.ray.placement.reference,
        strategy_name=TEACHER_ENGINE if is_engine else strategy,
        config=TrainerConfig(
            model=folder,
            sequence_length=config.sequence_length,
            seed=config.seed,
            strategy_config=own,
        ),
        device_mapping=teacher.device_mapping,
        uses_accelerators=runs_on_several_ranks(strategy, "engines" if is_engine else "trainers"),
    )


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
