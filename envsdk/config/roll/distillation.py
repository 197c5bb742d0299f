"""On-policy distillation in ROLL's files: the student is the policy, and its teachers are ours."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from envsdk.config.foreign.row import value_at
from envsdk.config.roll.conversions import REFERENCE_TRAINERS

_STUDENT = {"student_train": "actor_train", "student_infer": "actor_infer"}
_IN_A_ROLE = ("model_args", "strategy_args", "device_mapping")


def student_as_policy(data: Mapping[str, Any]) -> Mapping[str, Any]:
    """The file with our names of its roles; without `student_train` and `teacher` as it is.

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
