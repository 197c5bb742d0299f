"""Reads a run folder back, whole or in part: what is missing or damaged is named, not an error."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from envsdk import tracking
from envsdk.failures import ConfigurationError, EnvsdkError
from envsdk.tracking import jsonl, timeline
from envsdk.tracking.timeline import TimelineEvent
from envsdk.trajectory import Outcome, Trajectory

CONFIG_FILE = "config.yaml"
TRAJECTORY_FOLDER = "trajectories"
DISCARDED_PREFIX = "discarded"
"""Of files with episodes that no step was trained on; of these only failures are worth reading."""

_NEWEST_FILES = 24
"""Trajectory files looked through for examples; a long run has thousands."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    """One trajectory worth reading."""

    why: str
    """`best`, `worst` or `failed`."""
    trajectory: Trajectory


@dataclass(frozen=True, slots=True, kw_only=True)
class RunData:
    """Everything the report shows, as read from disk."""

    folder: Path
    config: Mapping[str, Any]
    """Empty when there is none."""
    metrics: list[dict[str, float]]
    """One row per step, in order; empty when there are none."""
    timeline: list[TimelineEvent]
    examples: list[Example]
    missing: list[str] = field(default_factory=list)
    """One sentence for each piece that is not there or cannot be read."""

    def series(self, name: str) -> list[tuple[float, float]]:
        """`(step, value)` wherever the metric was logged."""
        return [(row["step"], row[name]) for row in self.metrics if name in row]

    def names(self, prefix: str) -> list[str]:
        """Names of metrics that begin with `prefix`, sorted."""
        return sorted({name for row in self.metrics for name in row if name.startswith(prefix)})

    def total(self, name: str) -> float:
        """Sum over all steps, unknown values left out."""
        return math.fsum(value for _, value in self.series(name) if math.isfinite(value))

    def last(self, name: str) -> float:
        """The newest known value; 0 when there is none."""
        return next((value for _, value in reversed(self.series(name)) if math.isfinite(value)), 0.0)


def read_run(folder: Path) -> RunData:
    """Read what there is. Raises ConfigurationError when `folder` holds nothing of a run."""
    if not folder.is_dir():
        raise ConfigurationError(f"there is no run folder {folder}. {_runs_nearby(folder)}")
    known = (CONFIG_FILE, jsonl.FILE_NAME, timeline.FILE_NAME, TRAJECTORY_FOLDER)
    if not any((folder / name).exists() for name in known):
        raise ConfigurationError(f"{folder} is not a run folder: it has none of {', '.join(known)}")
    missing: list[str] = []
    return RunData(
        folder=folder,
        config=_read_config(folder / CONFIG_FILE, missing),
        metrics=_read_metrics(folder / jsonl.FILE_NAME, missing),
        timeline=_read_timeline(folder / timeline.FILE_NAME, missing),
        examples=_read_examples(folder / TRAJECTORY_FOLDER, missing),
        missing=missing,
    )


def _read_config(path: Path, missing: list[str]) -> dict[str, Any]:
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException
    from yaml import YAMLError

    if not path.exists():
        missing.append(f"{path.name}: the settings are not shown")
        return {}
    try:
        container = OmegaConf.to_container(OmegaConf.load(path), resolve=False)
    except (OSError, ValueError, YAMLError, OmegaConfBaseException) as error:
        missing.append(f"{path.name} cannot be read ({_one_line(error)})")
        return {}
    return {str(key): value for key, value in container.items()} if isinstance(container, dict) else {}


def _read_metrics(path: Path, missing: list[str]) -> list[dict[str, float]]:
    if not path.exists():
        missing.append(f"{path.name}: no step has been logged, so there are no curves")
        return []
    rows = tracking.read_metrics(path)
    if not rows:
        missing.append(f"{path.name} is empty: no step has been logged, so there are no curves")
    return rows


def _read_timeline(path: Path, missing: list[str]) -> list[TimelineEvent]:
    if not path.exists():
        missing.append(f"{path.name}: what ran when is not shown")
        return []
    events = timeline.read_timeline(path)
    if not events:
        missing.append(f"{path.name} holds no events: what ran when is not shown")
    return events


def _read_examples(folder: Path, missing: list[str]) -> list[Example]:
    from envsdk.store.trajectories import read_trajectories

    files = sorted(folder.rglob("*.parquet"), key=_by_number)[-_NEWEST_FILES:]
    if not files:
        missing.append(f"{folder.name}/: there are no trajectories to read")
        return []
    chosen: dict[tuple[str, str], Trajectory] = {}
    for file in files:
        try:
            trajectories = read_trajectories(file)
        except EnvsdkError as error:
            missing.append(f"{folder.name}/{file.name} cannot be read ({_one_line(error)})")
            continue
        if file.name.startswith(DISCARDED_PREFIX):
            trajectories = [t for t in trajectories if t.outcome is Outcome.FAILED]
        _choose(trajectories, chosen)
    order = ("best", "worst", "failed")
    keys = sorted(chosen, key=lambda key: (key[0], order.index(key[1])))
    return [Example(why=why, trajectory=chosen[tag, why]) for tag, why in keys]


def _choose(trajectories: Iterable[Trajectory], chosen: dict[tuple[str, str], Trajectory]) -> None:
    """Keep the best, the worst and the latest failed trajectory of each tag; of equals the latest."""
    for trajectory in trajectories:
        tag = trajectory.task.tag
        if trajectory.outcome is Outcome.FAILED:
            chosen[tag, "failed"] = trajectory
            continue
        best = chosen.get((tag, "best"))
        if best is None or _merit(trajectory) >= _merit(best):
            chosen[tag, "best"] = trajectory
        worst = chosen.get((tag, "worst"))
        if worst is None or _merit(trajectory) <= _merit(worst):
            chosen[tag, "worst"] = trajectory


def _merit(trajectory: Trajectory) -> tuple[bool, float]:
    return trajectory.success, trajectory.total_reward


def _by_number(path: Path) -> tuple[list[int], str]:
    """`step_10` after `val_10` and `step_9`."""
    return [int(digits) for digits in re.findall(r"\d+", path.name)], path.name


def _runs_nearby(folder: Path) -> str:
    if not folder.parent.is_dir():
        return "Name the folder that the run printed when it started."
    runs = sorted(file.parent.name for file in folder.parent.glob(f"*/{CONFIG_FILE}"))
    if not runs:
        return f"There are no runs in {folder.parent.absolute()}."
    return f"Runs in {folder.parent.absolute()}: {', '.join(runs[:10])}"


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())[:200]
