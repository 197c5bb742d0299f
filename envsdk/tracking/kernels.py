"""`kernels.json` in a run's folder: the kernels that its trainers took, in words."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from envsdk.base.store.atomic import write_json_atomically

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
