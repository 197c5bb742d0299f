"""The models that a program loads: its roles', its teachers' and its opponents', each with what runs it; and
checks of the file against them, where they are on this machine.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from envsdk.base.plugins import plugin_names
from envsdk.base.settings.problems import KeyPath, Problem
from envsdk.base.store.hub import known_folder
from envsdk.base.store.model_files import dense_family, is_model_folder, newest_model, stored_model_type
from envsdk.config import plugins
from envsdk.config.models import EMBEDDED_DEFAULT, RunConfig
from envsdk.config.plugins import ENGINES, settings_model
from envsdk.config.role_models import Role, StrategyArgs
from envsdk.config.sampling_support import known_settings
from envsdk.engines.settings import NO_EXPERTS, EngineSettings


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A model, and the trainer or engine that runs it."""

    path: KeyPath
    """Its section: a role's, or that of a teacher or an opponent, which take no turns."""
    pretrain: str
    strategy: StrategyArgs
    settings: Mapping[str, Any]
    """As given."""
    device_mapping: Sequence[int] | None
    num_replies: int
    """Sequences that an engine computes together."""

    @property
    def name(self) -> str:
        """Such as `actor_train` or `teachers.large`."""
        return ".".join(map(str, self.path))

    @property
    def own_settings(self) -> BaseModel | None:
        """The settings, typed; None where the plug-in declares none, or a check reports them as wrong."""
        name = self.strategy.strategy_name
        is_engine = self.path[0] in ("actor_infer", "opponents") or name in plugin_names(ENGINES)
        model = settings_model("engines" if is_engine else "trainers", name, "strategy_config")
        try:
            return None if model is None else model.model_validate(dict(self.settings))
        except ValidationError:
            return None

    @property
    def folder(self) -> Path | None:
        """Where the model is on this machine."""
        found = None if self.pretrain == EMBEDDED_DEFAULT else known_folder(self.pretrain)
        return found and (newest_model(found) or found)


def models_of(config: RunConfig) -> dict[str, LoadedModel]:
    """All of them, by name."""
    infer, found = config.actor_infer, []
    for key, role in roles_of(config).items():
        given = (role.strategy_args, role.settings, role.device_mapping, infer.infer_batch_size)
        found.append(LoadedModel((key,), config.pretrain, *given))
    for key, teacher in config.teachers.items() if config.mode in ("both", "train") else ():
        own = teacher.strategy_args
        given = (own, own.strategy_config, teacher.device_mapping, teacher.infer_batch_size)
        found.append(LoadedModel(("teachers", key), teacher.pretrain, *given))
    for key, each in config.opponents.items() if config.mode != "train" else ():
        settings = infer.settings if each.strategy_args is None else each.strategy_args.strategy_config
        like = each.strategy_args or infer.strategy_args
        given = (like, settings, each.device_mapping, infer.infer_batch_size)
        found.append(LoadedModel(("opponents", key), each.pretrain or config.pretrain, *given))
    return {model.name: model for model in found}


def devices_of(role: Role | LoadedModel) -> list[str]:
    """Numbers of the accelerators that a role names; none where it chooses its own, or runs on a CPU."""
    device = str(role.settings.get("device", ""))
    named = [device.partition(":")[2] or "0"] if device.startswith("cuda") else []
    return [str(number) for number in role.device_mapping or ()] or named


def roles_of(config: RunConfig) -> Mapping[str, Role]:
    """The roles of this program, by key."""
    roles: dict[str, Role] = {} if config.mode == "train" else {"actor_infer": config.actor_infer}
    if config.mode in ("both", "train"):
        roles["actor_train"] = config.actor_train
        if config.needs_reference:
            roles["reference"] = config.reference
    return roles


def model_problems(config: RunConfig) -> Iterator[Problem]:
    """What trainers and engines would refuse when they start."""
    for model in models_of(config).values():
        if problem := _start_problem(config, model):
            yield Problem((*model.path, "strategy_args"), problem)


def _start_problem(config: RunConfig, model: LoadedModel) -> str:
    settings, folder = model.own_settings, model.folder
    if isinstance(settings, EngineSettings):
        return settings.start_problem(
            folder, sequence_length=config.sequence_length, max_running=model.num_replies
        )
    problem_of = getattr(settings, "model_problem", None)
    return problem_of(folder) if problem_of and folder and is_model_folder(folder) else ""


def update_problems(config: RunConfig) -> Iterator[Problem]:
    """Families of which an engine takes no new weights."""
    folder, engine = known_folder(config.pretrain), known_settings(config)
    if folder and engine and (why := engine.update_problem(stored_model_type(folder))):
        yield Problem(("actor_infer", "strategy_args", "strategy_name"), why)


def replay_problems(config: RunConfig) -> Iterator[Problem]:
    """A policy without experts, or an engine or trainer that knows nothing of them."""
    if not config.algorithm.train_infer_correction.routing_replay:
        return
    folder = None if config.pretrain == EMBEDDED_DEFAULT else known_folder(config.pretrain)
    family = "Qwen3" if config.pretrain == EMBEDDED_DEFAULT else folder and dense_family(folder)
    path: KeyPath = ("train_infer_correction", "routing_replay")
    if family:
        yield Problem(path, f"the policy is dense ({family}): leave this out")
        return
    engine = known_settings(config)
    if engine is not None and not engine.may_tell_experts:
        yield Problem(path, f"`{config.actor_infer.strategy_args.strategy_name}` {NO_EXPERTS}")
    trainer = config.actor_train.strategy_args.strategy_name
    if not getattr(plugins.settings_model("trainers", trainer, "strategy_config"), "replays_routing", False):
        yield Problem(
            path,
            f"the trainer `{trainer}` replays no experts: take `torch`, `fsdp2_train` or `megatron_train`",
        )
