"""ROLL's files, as one of the dialects that are translated."""

import re
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

from envsdk.base.settings.problems import Problem, leaves
from envsdk.config.foreign.dialect import Dialect, has_mark
from envsdk.config.foreign.row import read_data, value_at
from envsdk.config.foreign.table import read_table
from envsdk.config.roll.conversions import REFERENCE_TRAINERS
from envsdk.config.roll.rewards import pending_keys

_KINDS = read_data("envsdk.config.roll", "kinds.toml")
_MEDIA = _KINDS["media"]
_STUDENT = {"student_train": "actor_train", "student_infer": "actor_infer"}
_IN_A_ROLE = ("model_args", "strategy_args", "device_mapping")


def is_roll_file(data: Mapping[str, Any]) -> bool:
    """Whether the file has a key that only ROLL's files have."""
    return has_mark(data, _KINDS["marks"])


def kind_problems(data: Mapping[str, Any]) -> list[Problem]:
    """Why the file as a whole cannot be used: one problem, at the key that shows it; none if it can."""
    for path, value in leaves(data):
        is_media = (
            (
                re.match(_MEDIA["key"], str(path[-1])) is not None
                and path[-2:-1] in (("data_args",), ("limit_mm_per_prompt",))
            )
            or (path[-1] in ("pretrain", "student_pretrain") and _matches(_MEDIA["model"], value))
            or (
                path[-1] in ("worker_cls", "env_manager_cls", "env_type") and _matches(_MEDIA["class"], value)
            )
        )
        if is_media:
            return [Problem(path, _MEDIA["says"])]
    return [Problem((key,), reason) for key, reason in _KINDS["refused"].items() if key in data][:1]


def _matches(pattern: str, value: Any) -> bool:
    return isinstance(value, str) and re.search(pattern, value) is not None


def student_as_policy(data: Mapping[str, Any]) -> Mapping[str, Any]:
    """The file with our names of the roles of on-policy distillation; without these as it is.

    A file with a student distills alone, as `is_pure_opd` says of others.
    """
    if not isinstance(teacher := data.get("teacher"), Mapping):
        return data
    found = {_STUDENT.get(name, name): value for name, value in data.items() if name != "teacher"}
    named = {"teacher": teacher} if any(name in teacher for name in _IN_A_ROLE) else teacher
    found["teachers"] = {
        name: {
            "pretrain": str(value_at(each, ("model_args", "model_name_or_path"), data.get("pretrain"))),
            "coef": float(each.get("opd_kl_coef") or 1.0),
            "strategy_args": _strategy(each.get("strategy_args") or {}),
            "device_mapping": each.get("device_mapping"),
            **({"tags": tags} if (tags := list(_domains(data, each.get("tag_included") or ()))) else {}),
        }
        for name, each in named.items()
    }
    is_pure = bool(data.get("is_pure_opd")) or "student_train" in data
    return {"distill_reward_coef": 0.0 if is_pure else 1.0, **found}


def _strategy(given: Mapping[str, Any]) -> Mapping[str, Any]:
    sizes = {key: size for key, size in (given.get("strategy_config") or {}).items() if key.endswith("_size")}
    name = given.get("strategy_name", "hf_infer")
    return {"strategy_name": REFERENCE_TRAINERS.get(name, name), "strategy_config": sizes}


def _domains(data: Mapping[str, Any], tags: Any) -> Iterator[str]:
    """Domains of prompts that have these tags, and the tags of environments."""
    rewards = data.get("rewards") or {}
    for tag in tags:
        owners = [name for name, each in rewards.items() if tag in (each.get("tag_included") or ())]
        yield from owners or [tag]


ROLL = Dialect(
    name="ROLL",
    is_theirs=is_roll_file,
    table=partial(read_table, "envsdk.config.roll"),
    holds_in_ours=True,
    renamed=student_as_policy,
    kind_problems=kind_problems,
    pending=pending_keys,
    sections=frozenset({"reward_normalization", "env_monitor"}),
)
