"""ROLL's files, as one of the dialects that are translated."""

import re
from collections.abc import Mapping
from functools import partial
from typing import Any

from envsdk.base.settings.problems import Problem
from envsdk.config.foreign.dialect import Dialect, has_mark
from envsdk.config.foreign.row import read_data
from envsdk.config.foreign.table import read_table
from envsdk.config.loading import leaves
from envsdk.config.roll.distillation import student_as_policy
from envsdk.config.roll.rewards import pending_keys

_KINDS = read_data("envsdk.config.roll", "kinds.toml")
_MEDIA = _KINDS["media"]


def is_roll_file(data: Mapping[str, Any]) -> bool:
    """Whether the file has a key that only ROLL's files have."""
    return has_mark(data, _KINDS["marks"])


def kind_problems(data: Mapping[str, Any]) -> list[Problem]:
    """Why the file as a whole cannot be used: one problem, at the key that shows it; none if it can."""
    for path, value in leaves(data).items():
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
