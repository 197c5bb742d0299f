"""Why a run has no `checkpoints/best`."""

from __future__ import annotations

import json
from pathlib import Path

import yaml


def why_no_best(path: Path) -> str | None:
    """What to say of a `checkpoints/best` that is absent since step 0 is best; None of every other path."""
    link = path.expanduser()
    if link.exists() or (link.name, link.parent.name) != ("best", "checkpoints"):
        return None
    run = link.parent.parent
    try:
        states = [json.loads(each.read_text()) for each in link.parent.glob("step_*/run.json")]
        newest = max(states, key=lambda state: (state["number"], state["step"]))
        scores = {int(step): value for step, value in newest["selection"]["scores"].items()}
        sign = 1 if yaml.safe_load((run / "config.yaml").read_text()).get("greater_is_better", True) else -1
        model = json.loads((run / "origin.json").read_text())["model"]
    except (OSError, ValueError, KeyError, TypeError, AttributeError, yaml.YAMLError):
        return None
    if max(sorted(scores), key=lambda step: sign * scores[step], default=None) != 0:
        return None
    return f"there is no {path}: step 0, the model that the run began with, is its best; name it: {model}"
