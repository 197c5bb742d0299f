"""A workload from a run's folder: episodes, engine, trainer and weight updates as they were.

The time of a reply is fitted to its turns, its tokens and the load of the engines while it was sampled; what
the fit leaves over stays with each episode as a factor. The other times are means over the run's steps.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import fmean, median

import numpy as np
from numpy.typing import NDArray

from envsdk.base.store.trajectories import read_trajectories
from envsdk.contracts.failures import ConfigurationError, EnvsdkError
from envsdk.contracts.segments import prompt_lengths
from envsdk.contracts.trajectory import Trajectory
from envsdk.tracking.jsonl import read_run_metrics
from envsdk.view.planning.workload import (
    EngineTime,
    MeasuredEpisode,
    MeasuredEpisodes,
    Timings,
    TrainTime,
    Workload,
)

_TRAJECTORIES = "trajectories"
FIRST_STEPS = 2
"""Left out: they wait for everything to start."""
MAX_FIT_ERROR = 0.5
"""Median relative error of the fitted reply times. Beyond it a prediction would mean nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """What a run's folder says."""

    workload: Workload
    num_episodes: int
    num_steps: int
    step_s: float
    """Mean, for comparison with a prediction."""
    error: float
    """Median of the relative error of the fitted reply times."""


def read_measured(folder: Path, *, num_engines: int, max_running: int, train_devices: int) -> Measured:
    """Read a run's folder. ConfigurationError when it has too little in it."""
    files = sorted((folder / _TRAJECTORIES).glob("step_*.parquet"))
    rows = [row for row in read_run_metrics(folder) if "time/step_s" in row]
    if not files or len(rows) < FIRST_STEPS + 2:
        raise ConfigurationError(
            f"--measured {folder}: it has {len(files)} files of trajectories and {len(rows)} finished steps; "
            f"a plan needs a run with at least {FIRST_STEPS + 2} steps (look for its folder under runs/)"
        )
    discarded = sorted((folder / _TRAJECTORIES).glob("discarded_step_*.parquet"))
    try:
        batches = [read_trajectories(path) for path in files]
        others = [trajectory for path in discarded for trajectory in read_trajectories(path)]
    except (OSError, EnvsdkError) as error:
        raise ConfigurationError(f"--measured {folder}: {error}") from error
    number = min(len(rows), len(batches))
    return measured(
        batches[:number],
        others,
        rows[:number],
        num_engines=num_engines,
        max_running=max_running,
        train_devices=train_devices,
    )


def measured(
    batches: Sequence[Sequence[Trajectory]],
    discarded: Sequence[Trajectory],
    steps: Sequence[Mapping[str, float]],
    *,
    num_engines: int,
    max_running: int,
    train_devices: int,
) -> Measured:
    """The workload of these batches and, for each, its row of metrics.jsonl."""
    batches, steps = batches[FIRST_STEPS:], steps[FIRST_STEPS:]
    between = _between(steps)
    if not between:
        raise ConfigurationError(
            f"the run has too few steps: it needs at least {FIRST_STEPS + 2} without a restart among them"
        )
    delivered = [one for batch in batches for one in batch]
    played = [one for one in (*delivered, *discarded) if one.turns and one.tokens is not None]
    if not played:
        raise ConfigurationError("the run has no episodes with tokens: nothing says how long replies take")
    loads = _loads(played, num_engines)
    engine, factors, error = _fit_engine(played, loads, max_running)
    if error > MAX_FIT_ERROR:
        raise ConfigurationError(
            "the reply times of this run do not follow from turns, tokens and load: their fit is off by "
            f"{error:.0%} (median; at most {MAX_FIT_ERROR:.0%}). Measure a run without kills on a quiet "
            "machine, or state `episodes` and `timings` in a plan (docs/planner.md)"
        )
    groups: dict[int, list[MeasuredEpisode]] = defaultdict(list)
    for one, factor in zip(played, factors, strict=True):
        groups[one.group_id].append(_episode(one, float(factor)))
    overheads = [
        max(0.0, one.ended_at - one.started_at - one.generate_s - one.env_s) / len(one.turns)
        for one in played
    ]
    rest_s = _rest_s(between)
    timings = Timings(
        engine=engine,
        train=_fit_train(steps, len(delivered) / len(batches), train_devices),
        update_s=_mean(steps, "time/publish_s") + rest_s,
        collect_s=_collect_s(batches, steps, rest_s),
        turn_overhead_s=fmean(overheads),
    )
    return Measured(
        workload=Workload(
            episodes=MeasuredEpisodes(
                tuple(map(tuple, groups.values())),
                _filtered(steps, len({one.group_id for one in delivered}) / len(batches)),
            ),
            timings=timings,
        ),
        num_episodes=len(played),
        num_steps=len(steps),
        step_s=fmean(passed for passed, _ in between),
        error=error,
    )


def _episode(one: Trajectory, factor: float) -> MeasuredEpisode:
    assert one.tokens is not None
    return MeasuredEpisode(
        reply_tokens=tuple(turn.response_end - turn.response_start for turn in one.turns),
        prompt_tokens=tuple(prompt_lengths(one.turns)),
        num_tokens=len(one.tokens),
        reply_factor=factor,
        turn_env_s=one.env_s / len(one.turns),
        is_failed=one.failure is not None,
    )


def _loads(played: Sequence[Trajectory], num_engines: int) -> NDArray[np.float64]:
    """Replies that each engine sampled at once, on average while each episode was played. [num_episodes]"""
    starts = np.array([one.started_at for one in played])
    ends = np.maximum(np.array([one.ended_at for one in played]), starts + 1e-6)
    weights = np.array([one.generate_s for one in played]) / (ends - starts)
    times = np.concatenate([starts, ends])
    order = np.argsort(times, kind="stable")
    times, changes = times[order], np.concatenate([weights, -weights])[order]
    load = np.cumsum(changes)
    area = np.concatenate([[0.0], np.cumsum(load[:-1] * np.diff(times))])
    found: NDArray[np.float64] = (np.interp(ends, times, area) - np.interp(starts, times, area)) / (
        ends - starts
    )
    return np.maximum(found / num_engines, 1.0)


def _fit_engine(
    played: Sequence[Trajectory], loads: NDArray[np.float64], max_running: int
) -> tuple[EngineTime, NDArray[np.float64], float]:
    """Seconds = (turns x first_token_s + tokens x token_s) x (1 + slope x (load - 1)): least squares."""
    seconds = np.array([one.generate_s for one in played])
    turns = np.array([float(len(one.turns)) for one in played])
    tokens = np.array([float(sum(t.response_end - t.response_start for t in one.turns)) for one in played])
    load = np.minimum(loads, max_running) - 1.0
    base, slope = _base_times(seconds, turns, tokens, 1.0 + 0.0 * load), 0.0
    spread = float(load.max() - load.min())
    for _ in range(20):
        alone = turns * base[0] + tokens * base[1]
        if spread > 0.2 * (1.0 + float(load.mean())) and float(alone.max()) > 0:
            x = alone * load
            slope = max(0.0, float(x @ (seconds - alone)) / max(1e-12, float(x @ x)))
        base = _base_times(seconds, turns, tokens, 1.0 + slope * load)
    predicted = np.maximum((turns * base[0] + tokens * base[1]) * (1.0 + slope * load), 1e-9)
    factors = seconds / predicted
    engine = EngineTime(
        first_token_s=base[0],
        token_s=base[1],
        slowdown={1: 1.0, max(2, max_running): 1.0 + slope * max(1, max_running - 1)},
    )
    return engine, factors, float(median(np.abs(predicted - seconds) / np.maximum(seconds, 1e-9)))


def _base_times(
    seconds: NDArray[np.float64],
    turns: NDArray[np.float64],
    tokens: NDArray[np.float64],
    slow: NDArray[np.float64],
) -> tuple[float, float]:
    """Seconds per turn and per token, neither negative."""
    columns = np.stack([turns * slow, tokens * slow], axis=1)
    first, each = np.linalg.lstsq(columns, seconds, rcond=None)[0]
    if first < 0 or each < 0:
        alone = [float(column @ seconds) / max(1e-12, float(column @ column)) for column in columns.T]
        errors = [float(np.square(columns[:, i] * alone[i] - seconds).sum()) for i in (0, 1)]
        return (alone[0], 0.0) if errors[0] < errors[1] else (0.0, alone[1])
    return float(first), float(each)


def _fit_train(steps: Sequence[Mapping[str, float]], num_episodes: float, devices: int) -> TrainTime:
    """Seconds in proportion to tokens: the median of the steps' ratios."""
    known = [
        (row["rollout/sequence_tokens_mean"] * num_episodes, row["time/train_s"])
        for row in steps
        if "time/train_s" in row and row.get("rollout/sequence_tokens_mean", 0.0) > 0
    ]
    if not known:
        return TrainTime()
    return TrainTime(token_s=median(seconds / tokens for tokens, seconds in known) * devices)


def _between(steps: Sequence[Mapping[str, float]]) -> list[tuple[float, Mapping[str, float]]]:
    """Seconds from the step before, and the step; without evaluations, and without restarts of the run."""
    return [
        (after["time_unix_s"] - before["time_unix_s"] - after.get("time/validate_s", 0.0), after)
        for before, after in pairwise(steps)
        if "time/start_s" not in after
    ]


def _rest_s(between: Sequence[tuple[float, Mapping[str, float]]]) -> float:
    """What of a step is neither waiting, training nor a weight update: metrics, checkpoints."""
    parts = ("time/wait_batch_s", "time/train_s", "time/publish_s")
    return max(0.0, median(passed - sum(row.get(part, 0.0) for part in parts) for passed, row in between))


def _collect_s(
    batches: Sequence[Sequence[Trajectory]], steps: Sequence[Mapping[str, float]], rest_s: float
) -> float:
    """Seconds from the end of a batch's last episode to its training step, where the trainer waited."""
    found = []
    for batch, row in zip(batches, steps, strict=True):
        trained_from = row["time_unix_s"] - rest_s - row.get("time/train_s", 0.0)
        late_s = trained_from - max(one.ended_at for one in batch)
        if 0.0 <= late_s < row.get("time/wait_batch_s", 0.0):
            found.append(late_s)
    return median(found) if found else 0.0


def _filtered(steps: Sequence[Mapping[str, float]], num_delivered: float) -> float:
    """Share of the completed groups that filters dropped; `num_delivered` groups are in a batch."""
    dropped = sum(value for row in steps for name, value in row.items() if name.startswith("filter/"))
    return min(0.99, dropped / max(1.0, dropped + num_delivered * len(steps)))


def _mean(steps: Iterable[Mapping[str, float]], name: str) -> float:
    found = [row[name] for row in steps if name in row]
    return fmean(found) if found else 0.0
