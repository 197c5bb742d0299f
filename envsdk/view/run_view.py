"""Pure: the state of a run and its curves, as JSON-ready values."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from envsdk.tracking.timeline import TimelineEvent
from envsdk.view.trajectory_view import finite

MAX_POINTS = 1_000
"""Of one curve; of longer ones, neighbors are averaged."""

QUIET_S = 120.0
_QUIET_STEPS = 5.0
"""A run that wrote nothing for this long, and for as many of its steps, is taken to have been killed."""
_FIRST_QUIET_S = 1800.0
"""The same before its first step is over: how long one takes is not known yet."""

_HEADLINES = {
    "async_generation_ratio": "alpha",
    "rollout_batch_size": "batch",
    "adv_estimator": "advantages",
    "pg_variant": "policy loss",
    "sequence_length": "sequence length",
    "pretrain": "model",
    "seed": "seed",
}
"""Settings shown at the top: key of the YAML and the word for it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFiles:
    """What was read of a run's folder."""

    config: Mapping[str, Any]
    metrics: Sequence[Mapping[str, float]]
    """One row per step, in order."""
    timeline: Sequence[TimelineEvent]
    is_closed: bool
    """Whether the timeline was closed, as a run does however it ends, unless it is killed."""
    written_at: float
    """When anything in the folder was last written, Unix time."""


def progress_view(run: RunFiles, now: float) -> dict[str, Any]:
    """How far a run is: `state` is `running`, `finished`, `stopped` or `silent` (killed, it seems)."""
    trained = [row for row in run.metrics if "reward/mean" in row or "time/step_s" in row]
    max_steps = run.config.get("max_steps")
    max_steps = max_steps if isinstance(max_steps, int) else None
    step_s = _recent_mean([row.get("time/step_s", math.nan) for row in trained])
    done = int(trained[-1]["step"]) + 1 if trained else 0
    quiet_s = max(0.0, now - run.written_at)
    if max_steps is not None and done >= max_steps and run.is_closed:
        state = "finished"
    elif run.is_closed:
        state = "stopped"
    elif quiet_s <= (_FIRST_QUIET_S if step_s is None else max(QUIET_S, _QUIET_STEPS * step_s)):
        state = "running"
    else:
        state = "silent"
    last = max(run.timeline, key=lambda event: event.end_s, default=None)
    left = max_steps - done if max_steps is not None else None
    return {
        "state": state,
        "steps": done,
        "max_steps": max_steps,
        "step_s": step_s,
        "eta_s": left * step_s if state == "running" and left and step_s else None,
        "quiet_s": quiet_s,
        "last_event": None if last is None else {"name": last.name, "ago_s": max(0.0, now - last.end_s)},
        "started_at": min((event.start_s for event in run.timeline), default=None),
        "written_at": run.written_at,
    }


def facts_view(config: Mapping[str, Any]) -> list[tuple[str, str]]:
    """A run's main settings in words."""
    return [
        (word, str(config[name]))
        for name, word in _HEADLINES.items()
        if config.get(name) is not None and not isinstance(config[name], dict | list)
    ]


def curves_view(metrics: Sequence[Mapping[str, float]]) -> dict[str, list[list[float]]]:
    """`{name: [[step, value], ...]}` of every metric, at most `MAX_POINTS` each, unknown values left out."""
    names = sorted({name for row in metrics for name in row} - {"step", "time_unix_s"})
    curves = {}
    for name in names:
        points = [[row["step"], row[name]] for row in metrics if name in row and math.isfinite(row[name])]
        if points:
            curves[name] = thinned(points, MAX_POINTS)
    return curves


def thinned(points: Sequence[Sequence[float]], limit: int) -> list[list[float]]:
    """At most `limit` points: means of equally many neighbors; the last point keeps its own step."""
    if len(points) <= limit:
        return [list(point) for point in points]
    size = math.ceil(len(points) / limit)
    chunks = [points[start : start + size] for start in range(0, len(points), size)]
    return [[chunk[-1][0], math.fsum(value for _, value in chunk) / len(chunk)] for chunk in chunks]


def headline_view(metrics: Sequence[Mapping[str, float]]) -> dict[str, Any]:
    """What a list of runs shows: newest reward and success, held-out success before and after."""
    held_out = [row["val/success/mean"] for row in metrics if "val/success/mean" in row]
    held_out = [value for value in held_out if math.isfinite(value)]
    success = [[row["step"], row["success/mean"]] for row in metrics if "success/mean" in row]
    known = [point for point in success if math.isfinite(point[1])]
    rewards = [row["reward/mean"] for row in metrics if "reward/mean" in row]
    return {
        "success": thinned(known, 60),
        "reward": finite(rewards[-1]) if rewards else None,
        "before": held_out[0] if held_out else None,
        "after": held_out[-1] if len(held_out) > 1 else None,
    }


def _recent_mean(values: Sequence[float], newest: int = 10) -> float | None:
    known = [value for value in values[-newest:] if math.isfinite(value)]
    return math.fsum(known) / len(known) if known else None
