"""Trinity-RFT's files, as one of the dialects that are translated."""

import re
from collections.abc import Mapping
from functools import partial
from typing import Any

from envsdk.base.settings.problems import Problem, leaves
from envsdk.config.foreign.dialect import Dialect, has_mark
from envsdk.config.foreign.row import Place, read_data
from envsdk.config.foreign.table import read_table
from envsdk.config.trinity.tasks import fetch_data_sets, tasksets
from envsdk.config.trinity.workflows import pending_keys, workflow_problem

_KINDS = read_data("envsdk.config.trinity", "kinds.toml")
_MEDIA = _KINDS["media"]
SECTIONS = frozenset(_KINDS["sections"])


def is_trinity_file(data: Mapping[str, Any]) -> bool:
    """Whether a file, before overrides, has a key that only Trinity's files have, and none that shows that it
    is one of ours."""
    return not any(key in data for key in _KINDS["ours"]) and has_mark(data, _KINDS["marks"])


def kind_problems(data: Mapping[str, Any]) -> list[Problem]:
    """Why the file as a whole cannot be used: one problem, at the key that shows it; none if it can."""
    place = Place((), data, True)
    for old in _KINDS["first_release"]["keys"]:
        if place.get(*old.split(".")) is not None:
            return [Problem(tuple(old.split(".")), _KINDS["first_release"]["says"])]
    if data.get("stages"):
        return [Problem(("stages",), _KINDS["stages"]["says"])]
    for path, value in leaves(data, in_lists=True):
        name = path[-1]
        if (
            (name in _MEDIA["keys"] and value)
            or (name == "enable_multimodal" and value is True)
            or (name == "default_workflow_type" and re.search(_MEDIA["workflow"], str(value)))
            or (path == ("model", "model_path") and re.search(_MEDIA["model"], str(value)))
        ):
            return [Problem(path, _MEDIA["says"])]
    kind = place.get("algorithm", "algorithm_type")
    if kind in _KINDS["algorithms"]:
        return [Problem(("algorithm", "algorithm_type"), _KINDS["algorithms"][kind])]
    if (problem := workflow_problem(data)) is not None:
        return [problem]
    for name, reason in _KINDS["enabled"].items():
        if place.get("model", name, "enable"):
            return [Problem(("model", name, "enable"), reason)]
    if not tasksets(place):
        reason = (
            "is missing: the trainer, too, says what is played; copy the section from the explorer's file"
        )
        return [Problem(("buffer", "explorer_input", "taskset"), reason)]
    return []


TRINITY = Dialect(
    name="Trinity-RFT",
    is_theirs=is_trinity_file,
    table=partial(read_table, "envsdk.config.trinity"),
    kind_problems=kind_problems,
    pending=pending_keys,
    fetch=fetch_data_sets,
    sections=SECTIONS,
)
