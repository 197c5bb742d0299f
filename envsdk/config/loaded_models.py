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
from envsdk.base.store.model_files import (
    config_problem,
    dense_family,
    is_model_folder,
    newest_model,
    stored_model_type,
)
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
    """As given; those that are not in `strategy` are in `model_args`."""
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
    """What trainers and engines would refuse when they start, at the keys that are to blame."""
    models = models_of(config)
    for model in models.values():
        infer = models.get("actor_infer", model)
        settings_of = infer if model.strategy is infer.strategy else model
        for problem in _start_problems(config, model):
            yield _at_the_users_key(problem, model, settings_of)
    if {"actor_train", "actor_infer"} <= models.keys() and (engine := known_settings(config)):
        infer, adapter = models["actor_infer"], getattr(models["actor_train"].own_settings, "lora", None)
        kind = stored_model_type(infer.folder) if infer.folder else "unknown"
        if found := engine.update_problem(kind, getattr(adapter, "rank", None)):
            yield _at_the_users_key(found, infer, infer)


def _start_problems(config: RunConfig, model: LoadedModel) -> Iterator[Problem]:
    settings, folder = model.own_settings, model.folder
    is_here = folder if folder and is_model_folder(folder) else None
    if is_here and (why := config_problem(is_here)):
        yield Problem(("pretrain",), why)
    elif isinstance(settings, EngineSettings):
        if problem := settings.start_problem(folder, config.sequence_length, model.num_replies):
            yield problem
    elif is_here and (problems_of := getattr(settings, "model_problems", None)):
        yield from problems_of(is_here)


def _at_the_users_key(problem: Problem, of: LoadedModel, model: LoadedModel) -> Problem:
    """A plug-in's problem, whose path is within `strategy_args` of `model`, or that of a key of the run."""
    section, *keys = problem.path
    if section == "pretrain" and of.path[0] in ("teachers", "opponents"):
        return Problem((*of.path, section), problem.message)
    if section not in StrategyArgs.model_fields:
        return problem
    is_elsewhere = keys and keys[0] in model.settings and keys[0] not in model.strategy.strategy_config
    written = ("model_args", *keys) if is_elsewhere else ("strategy_args", *problem.path)
    return Problem((*model.path, *written), problem.message)


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
