"""The tables of keys in docs/configuration.md, from the models themselves.

    python -m tests.docs.configuration_reference docs/configuration.md

rewrites what stands between the markers; a test compares.
"""

from __future__ import annotations

import sys
import types
import typing
from collections.abc import Iterator
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, Literal, Union

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from envsdk.algorithms.args import AlgorithmKeys
from envsdk.algorithms.correction_args import CorrectionFilter, ISWeightArgs
from envsdk.algorithms.group_filters import GroupFilterEntry
from envsdk.config import env_models, job_models, models, ray_models, rlvr_models, role_models
from envsdk.config.plugins import SETTINGS
from envsdk.config.section import GeneratingArgs, OwnGeneratingArgs
from envsdk.settings.validation import shown

BEGIN = "<!-- keys: begin -->"
END = "<!-- keys: end -->"

_SECTIONS: tuple[tuple[str, type[BaseModel]], ...] = (
    ("The run", models.RunConfig),
    ("The algorithm", AlgorithmKeys),
    ("`train_infer_correction.is_weight`", ISWeightArgs),
    ("An entry of `train_infer_correction.filters`", CorrectionFilter),
    ("An entry of `group_filters`", GroupFilterEntry),
    ("`custom_envs.TAG`", env_models.CustomEnv),
    ("`custom_envs.TAG.structured_output`", env_models.StructuredOutput),
    ("`train_env_manager`, `val_env_manager`", env_models.EnvManagerArgs),
    ("`val_env_manager.generating_args`", OwnGeneratingArgs),
    ("`actor_train`", role_models.ActorTrain),
    ("`actor_train.data_args`, `validation.data_args`", rlvr_models.DataArgs),
    ("`validation`, where it is a section", rlvr_models.ValidationArgs),
    ("`rewards.DOMAIN`", rlvr_models.RewardArgs),
    ("`rewards.DOMAIN.query_filter_config`", rlvr_models.QueryFilter),
    ("`actor_infer`", role_models.ActorInfer),
    ("`actor_infer.generating_args`", GeneratingArgs),
    ("`reference`", role_models.Reference),
    ("`strategy_args` of a role", role_models.StrategyArgs),
    ("`warm_start`", models.WarmStartArgs),
    ("`ray`", ray_models.RayArgs),
    ("`ray.placement.workers`, `ray.placement.engines`", ray_models.RolePlacement),
    ("`ray.placement.trainer`, `ray.placement.reference`", ray_models.TrainerPlacement),
    ("`buffer`", job_models.BufferArgs),
    ("`buffer.trainer_input.experience_buffer`", job_models.ExperienceBufferArgs),
    ("`explorer`", job_models.ExplorerArgs),
    ("`synchronizer`", job_models.SynchronizerArgs),
    ("`serve`", job_models.ServeArgs),
)

_SINGULAR = {"policy_losses": "policy loss"}


def reference() -> str:
    """All tables, as Markdown."""
    sections = [*_SECTIONS, *_plugin_sections()]
    return "\n\n".join(f"### {title}\n\n{_table(model)}" for title, model in sections)


def with_reference(page: str) -> str:
    """The page with its tables brought up to date."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n\n{reference()}\n\n{END}{after}"


def _plugin_sections() -> Iterator[tuple[str, type[BaseModel]]]:
    """Settings of the plug-ins that ship."""
    for entry in sorted(entry_points(group=SETTINGS), key=lambda entry: entry.name):
        kind, plugin, section = entry.name.split(".")
        if not entry.module.startswith("envsdk."):
            continue
        model = entry.load()
        if model.model_fields:
            what = _SINGULAR.get(kind, kind.removesuffix("s"))
            yield f"`{section}` of the `{plugin}` {what}", model


def _table(model: type[BaseModel]) -> str:
    rows = ["| key | type | default | meaning |", "| --- | --- | --- | --- |"]
    for name, info in _own_fields(model):
        meaning = " ".join((info.description or "").split()).replace("|", r"\|")
        rows.append(f"| `{name}` | {_type(info.annotation)} | {_default(info)} | {meaning} |")
    return "\n".join(rows)


def _own_fields(model: type[BaseModel]) -> Iterator[tuple[str, FieldInfo]]:
    for name, info in model.model_fields.items():
        if model is not models.RunConfig or name not in AlgorithmKeys.model_fields:
            yield name, info


def _default(info: FieldInfo) -> str:
    if info.is_required():
        return "required"
    default = info.get_default(call_default_factory=True, validated_data={})
    if isinstance(default, BaseModel) or default == {}:
        return ""
    return f"`{default}`" if isinstance(default, str) and default else f"`{shown(default)}`"


def _type(annotation: Any) -> str:
    origin = typing.get_origin(annotation)
    arguments = typing.get_args(annotation)
    if origin is typing.Annotated:
        return _type(arguments[0])
    if origin is Literal:
        return ", ".join(f"`{choice}`" for choice in arguments)
    if origin in (Union, types.UnionType):
        return " or ".join(dict.fromkeys("null" if each is type(None) else _type(each) for each in arguments))
    if origin in (list, tuple):
        return f"list of {_type(arguments[0])}"
    if origin is dict or (isinstance(annotation, type) and issubclass(annotation, BaseModel)):
        return "section"
    return {int: "whole number", float: "number", str: "text", bool: "true, false", Path: "path"}[annotation]


if __name__ == "__main__":
    page = Path(sys.argv[1])
    page.write_text(with_reference(page.read_text(encoding="utf-8")), encoding="utf-8")
