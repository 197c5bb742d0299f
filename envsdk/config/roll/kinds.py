"""Which files are ROLL's, and which of them envsdk has no pipeline for."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from envsdk.base.settings.problems import KeyPath, Problem
from envsdk.config.foreign.dialect import has_mark, read_kinds

_KINDS = read_kinds("envsdk.config.roll")
_MEDIA = _KINDS["media"]


def is_roll_file(data: Mapping[str, Any]) -> bool:
    """Whether the file has a key that only ROLL's files have."""
    return has_mark(data, _KINDS["marks"])


def kind_problems(data: Mapping[str, Any]) -> list[Problem]:
    """Why the file as a whole cannot be used: one problem, at the key that shows it; none if it can."""
    for path, value in _leaves(data):
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


def _leaves(data: Mapping[str, Any], prefix: KeyPath = ()) -> Iterator[tuple[KeyPath, Any]]:
    for name, value in data.items():
        if isinstance(value, Mapping):
            yield from _leaves(value, (*prefix, name))
        else:
            yield (*prefix, name), value
