"""Every key of the YAML file with its type, default and meaning, taken from the models themselves.

`envsdk explain --keys` prints it, and the site has it as a page.
"""

from __future__ import annotations

import contextlib
import types
import typing
from collections.abc import Iterator
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, Literal, Union

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from envsdk.algorithms.args import AlgorithmKeys, CorrectionFilter, ISWeightArgs, TrainInferCorrection
from envsdk.algorithms.group_filters import GroupFilterEntry
from envsdk.algorithms.task_samplers.contract import TASK_SAMPLERS, TaskSamplerEntry, sampler_class
from envsdk.algorithms.task_samplers.prefixes import PrefixArgs
from envsdk.algorithms.task_samplers.scored import Gate
from envsdk.base.plugins import plugin_names
from envsdk.base.settings.validation import shown
from envsdk.config import env_models, job_models, models, ray_models, rlvr_models, role_models
from envsdk.config.plugins import SETTINGS
from envsdk.config.prices import Prices
from envsdk.config.section import GeneratingArgs, OwnGeneratingArgs

_SECTIONS: tuple[tuple[str, type[BaseModel]], ...] = (
    ("The run", models.RunConfig),
    ("The algorithm", AlgorithmKeys),
    ("`train_infer_correction`", TrainInferCorrection),
    ("`train_infer_correction.is_weight`", ISWeightArgs),
    ("An entry of `train_infer_correction.filters`", CorrectionFilter),
    ("An entry of `group_filters`", GroupFilterEntry),
    ("`task_sampler`", TaskSamplerEntry),
    ("`task_sampler.gate`", Gate),
    ("`prefix_sampling`", PrefixArgs),
    ("`prices`", Prices),
    ("`custom_envs.TAG`", env_models.CustomEnv),
    ("`custom_envs.TAG.structured_output`", env_models.StructuredOutput),
    ("`custom_envs.TAG.turn_curriculum`", env_models.TurnCurriculumArgs),
    ("`train_env_manager`, `val_env_manager`", env_models.EnvManagerArgs),
    ("`val_env_manager.generating_args`", OwnGeneratingArgs),
    ("`actor_train`", role_models.ActorTrain),
    ("`actor_train.data_args`, `validation.data_args`", rlvr_models.DataArgs),
    ("`validation`, where it is a section", rlvr_models.ValidationArgs),
    ("`rewards.DOMAIN`", rlvr_models.RewardArgs),
    ("`rewards.DOMAIN.query_filter_config`", rlvr_models.QueryFilter),
    ("`actor_infer`", role_models.ActorInfer),
    ("`actor_infer.generating_args`", GeneratingArgs),
    ("`opponents.NAME`", role_models.Opponent),
    ("`teachers.NAME`", role_models.Teacher),
    ("`reference`", role_models.Reference),
    ("`strategy_args` of a role", role_models.StrategyArgs),
    ("`warm_start`", models.WarmStartArgs),
    ("`ray`", ray_models.RayArgs),
    ("`ray.placement`", ray_models.PlacementArgs),
    ("`ray.placement.workers`, `ray.placement.engines`", ray_models.RolePlacement),
    ("`ray.placement.trainer`, `ray.placement.reference`", ray_models.TrainerPlacement),
    ("`buffer`", job_models.BufferArgs),
    ("`buffer.trainer_input`", job_models.TrainerInput),
    ("`buffer.trainer_input.experience_buffer`", job_models.ExperienceBufferArgs),
    ("`explorer`", job_models.ExplorerArgs),
    ("`synchronizer`", job_models.SynchronizerArgs),
    ("`serve`", job_models.ServeArgs),
)

_NAMES = {int: "whole number", float: "number", str: "text", bool: "true or false", Path: "path"}
_SINGULAR = {"policy_losses": "policy loss"}


def reference(word: str = "") -> str:
    """As Markdown: sections whose title holds `word`, and of the others the keys whose name holds it."""
    listed = [*_SECTIONS, *_plugin_sections(), *_reward_sections()]
    sections = [
        f"### {title}\n\n" + "\n".join(_line(name, info) for name, info in keys)
        for title, model in [*listed, *_sections_in(listed)]
        if (keys := [(name, info) for name, info in _own_fields(model) if word in title or word in name])
    ]
    return "\n\n".join(sections)


def _sections_in(listed: list[tuple[str, type[BaseModel]]]) -> Iterator[tuple[str, type[BaseModel]]]:
    """Sections that are keys of `listed` ones and have no title there, and those in them."""
    known = {model for _, model in listed}
    for title, model in listed:
        for name, info in _own_fields(model):
            found = [each for each in _models_in(info.annotation) if known.isdisjoint(each.__mro__)]
            yield from (below := [(f"`{name}` in {title}", each) for each in found])
            yield from _sections_in(below)


def _models_in(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for each in typing.get_args(annotation):
        yield from _models_in(each)


def _plugin_sections() -> Iterator[tuple[str, type[BaseModel]]]:
    """Settings of the installed plug-ins."""
    for entry in sorted(entry_points(group=SETTINGS), key=lambda entry: entry.name):
        kind, plugin, section = entry.name.split(".")
        yield f"`{section}` of the `{plugin}` {_SINGULAR.get(kind, kind.removesuffix('s'))}", entry.load()
    for name in plugin_names(TASK_SAMPLERS):
        yield f"`task_sampler` with the name `{name}`", sampler_class(name).settings


def _reward_sections() -> Iterator[tuple[str, type[BaseModel]]]:
    """Settings of the reward functions whose packages are there."""
    for entry in sorted(entry_points(group="envsdk.rewards"), key=lambda entry: entry.name):
        with contextlib.suppress(ImportError):
            if model := getattr(entry.load(), "Args", None):
                yield f"`rewards.DOMAIN` with the reward `{entry.name}`", model


def _own_fields(model: type[BaseModel]) -> Iterator[tuple[str, FieldInfo]]:
    for name, info in model.model_fields.items():
        if model is not models.RunConfig or name not in AlgorithmKeys.model_fields:
            yield name, info


def _line(name: str, info: FieldInfo) -> str:
    meaning = " ".join((info.description or "").split())
    return f"- `{name}` ({', '.join(filter(None, (_type(info.annotation), _default(info))))}): {meaning}"


def _default(info: FieldInfo) -> str:
    if info.is_required():
        return "required"
    default = info.get_default(call_default_factory=True, validated_data={})
    if isinstance(default, BaseModel) or default == {}:
        return ""
    return f"default `{default}`" if isinstance(default, str) and default else f"default `{shown(default)}`"


def _type(annotation: Any) -> str:
    origin = typing.get_origin(annotation)
    arguments = typing.get_args(annotation)
    if origin is typing.Annotated:
        return _type(arguments[0])
    if origin is Literal:
        return " or ".join(f"`{choice}`" for choice in arguments)
    if origin in (Union, types.UnionType):
        return " or ".join(dict.fromkeys("null" if each is type(None) else _type(each) for each in arguments))
    if origin in (list, tuple):
        return f"list of {_type(arguments[0])}"
    if origin is dict or (isinstance(annotation, type) and issubclass(annotation, BaseModel)):
        return "section"
    return _NAMES.get(annotation, getattr(annotation, "__name__", str(annotation)))
