"""Every key of the YAML file with its type, default and meaning, taken from the models themselves.

`envsdk explain --keys` prints it, and the site has it as a page.
"""

from __future__ import annotations

import ast
import contextlib
import inspect
import itertools
import sys
import types
import typing
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, Literal, Union

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from envsdk.algorithms.args import AlgorithmKeys
from envsdk.algorithms.group_filters import GroupFilterEntry
from envsdk.algorithms.task_samplers.contract import TASK_SAMPLERS, TaskSamplerEntry, sampler_class
from envsdk.algorithms.task_samplers.scored import Gate
from envsdk.base.plugins import plugin_names
from envsdk.base.settings.validation import shown
from envsdk.config import env_models, models, rlvr_models, role_models
from envsdk.config.plugins import SETTINGS
from envsdk.config.section import GeneratingArgs, OwnGeneratingArgs

_Titled = Sequence[tuple[str, type[BaseModel]]]
_SECTIONS: _Titled = (
    ("The run", models.RunConfig),
    ("The algorithm", AlgorithmKeys),
    ("An entry of `group_filters`", GroupFilterEntry),
    ("`task_sampler`", TaskSamplerEntry),
    ("`task_sampler.gate`", Gate),
    ("`custom_envs.TAG`", env_models.CustomEnv),
    ("`train_env_manager`, `val_env_manager`", env_models.EnvManagerArgs),
    ("`val_env_manager.generating_args`", OwnGeneratingArgs),
    ("`actor_train.data_args`, `validation.data_args`", rlvr_models.DataArgs),
    ("`validation`, where it is a section", rlvr_models.ValidationArgs),
    ("`rewards.DOMAIN`", rlvr_models.RewardArgs),
    ("`actor_infer.generating_args`", GeneratingArgs),
    ("`opponents.NAME`", role_models.Opponent),
    ("`teachers.NAME`", role_models.Teacher),
    ("`strategy_args` of a role", role_models.StrategyArgs),
)

_NAMES = {int: "whole number", float: "number", str: "text", bool: "true or false", Path: "path"}
_SINGULAR = {"policy_losses": "policy loss"}


def reference(word: str = "") -> str:
    """As Markdown: sections whose title holds `word`, and of the others the keys whose name holds it."""
    listed = [*_SECTIONS, *_plugin_sections(), *_reward_sections()]
    sections = [
        f"### {title}\n\n" + "\n".join(_line(name, info, meanings(model)) for name, info in keys)
        for title, model in _sections_in(listed, {model for _, model in listed})
        if (keys := [(name, info) for name, info in _own_fields(model) if word in title or word in name])
    ]
    return "\n\n".join(sections)


def _sections_in(listed: _Titled, known: set[type[BaseModel]]) -> Iterator[tuple[str, type[BaseModel]]]:
    """`listed` ones, each with the sections in it that are none of `known`."""
    for title, model in listed:
        yield title, model
        below = [
            (_title_in(title, name), each)
            for name, info in _own_fields(model)
            for each in _models_in(info.annotation)
        ]
        yield from _sections_in([each for each in below if known.isdisjoint(each[1].__mro__)], known)


def _title_in(title: str, name: str) -> str:
    """The title of the section at a key of the section `title`."""
    if title in ("The run", "The algorithm"):
        return f"`{name}`"
    is_path = title[0] == title[-1] == "`" and title.count("`") == 2
    return f"{title[:-1]}.{name}`" if is_path else f"`{name}` in {title}"


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


def meanings(model: type[BaseModel]) -> Mapping[str, str]:
    """The docstrings of its fields. pydantic would read them whenever a process makes the class."""
    found: dict[str, str] = {}
    for each in reversed(model.__mro__):
        found |= _docstrings(each.__module__).get(each.__name__, {})
    return found


@cache
def _docstrings(module: str) -> Mapping[str, Mapping[str, str]]:
    """What the fields of a module's classes mean; nothing where there is no source."""
    try:
        tree = ast.parse(inspect.getsource(sys.modules[module]))
    except (OSError, TypeError):
        return {}
    return {
        each.name: {
            ast.unparse(field.target): " ".join(ast.literal_eval(below.value).split())
            for field, below in itertools.pairwise(each.body)
            if isinstance(field, ast.AnnAssign)
            and isinstance(below, ast.Expr)
            and isinstance(below.value, ast.Constant)
        }
        for each in ast.walk(tree)
        if isinstance(each, ast.ClassDef)
    }


def _line(name: str, info: FieldInfo, meanings: Mapping[str, str]) -> str:
    about = ", ".join(filter(None, (_type(info.annotation), _default(info))))
    return f"- `{name}` ({about}): {meanings.get(name, '')}"


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
