"""What trackers know of a run: name, settings, the service's run that it continues, and its kernels."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from envsdk.base.settings.problems import leaves
from envsdk.base.store.atomic import make_folder, write_atomically, write_json_atomically

FOLDER = "trackers"
_SECRET = re.compile(r"(api_?key|token|password|secret)s?$", re.IGNORECASE)


def name_of(run_dir: Path) -> str:
    """The run's name."""
    return run_dir.resolve().name


def settings_of(run_dir: Path) -> dict[str, Any]:
    """The run's settings, resolved; values of keys that name a secret read `***`."""
    file = run_dir / "config.yaml"
    values = yaml.safe_load(file.read_text()) if file.is_file() else {}
    return _masked(values) if isinstance(values, dict) else {}


def flat(values: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Settings with dotted names; sections without keys are left out."""
    return ((".".join(map(str, path)), value) for path, value in leaves(values) if value != {})


def known_run(run_dir: Path, tracker: str) -> str | None:
    """Id of the run at the service that an earlier process of this run began; None when there was none."""
    try:
        found = json.loads((run_dir / FOLDER / f"{tracker}.json").read_text())["id"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return found if isinstance(found, str) else None


def keep_run(run_dir: Path, tracker: str, run_id: str) -> None:
    """Remember the id for processes that continue the run."""
    make_folder(run_dir / FOLDER)
    write_atomically(run_dir / FOLDER / f"{tracker}.json", json.dumps({"id": run_id}).encode() + b"\n")


def _masked(values: Mapping[str, Any]) -> dict[str, Any]:
    return {
        key: _masked(value)
        if isinstance(value, Mapping)
        else "***"
        if isinstance(value, str) and value and _SECRET.search(str(key))
        else value
        for key, value in values.items()
    }


FILE_NAME = "kernels.json"


def write_kernels(run_dir: Path, kernels: Mapping[str, Mapping[str, str]]) -> None:
    """Kernels by trainer (`actor_train`), then by computation (`attention`)."""
    write_json_atomically(run_dir / FILE_NAME, {role: dict(found) for role, found in kernels.items()})


def read_kernels(run_dir: Path) -> dict[str, dict[str, str]]:
    """What was written; nothing where the run is older, or has not started its trainers."""
    try:
        found = json.loads((run_dir / FILE_NAME).read_text())
        return {str(role): {str(k): str(v) for k, v in kernels.items()} for role, kernels in found.items()}
    except (OSError, ValueError, AttributeError):
        return {}
