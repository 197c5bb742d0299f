"""`defaults:` lists of Hydra: files whose keys are merged below the file's own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

DEFAULTS = "defaults"
_HERE = ("_here_", "_global_")


def files_of(entries: Any) -> Sequence[str]:
    """Names of the files of a `defaults:` list, `.yaml` included, in the order they are merged in.

    >>> files_of(["../config/traj_envs@_here_", "_self_"])
    ['../config/traj_envs.yaml']

    Raises:
        ValueError: The list asks for another of Hydra's features.
    """
    if not isinstance(entries, list):
        raise ValueError("takes a list of files, such as `- ../config/envs@_here_`")
    names = []
    for entry in entries:
        if entry == "_self_":
            continue
        if not isinstance(entry, str):
            raise ValueError(f"{entry}: groups and options of Hydra's are not there; name the file itself")
        name, _, package = entry.partition("@")
        if package and package not in _HERE:
            raise ValueError(f"{entry}: only the package _here_ is there; write `{name}@_here_`")
        names.append(name if name.endswith((".yaml", ".yml")) else f"{name}.yaml")
    return names
