"""Runs side by side: those that differ in their seed alone are one group, and groups are compared. Pure.

An interval over seeds speaks about the configurations: Student's t of the paired differences of common seeds,
or Welch's t (Biometrika 34, 1947). One over tasks speaks about these runs: a percentile bootstrap of the
held-out tasks of each tag, as pairs where both played them.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from envsdk.base.settings.problems import dotted, leaves

Values = Mapping[tuple[str, int], float]
"""Mean of what was reached in each held-out task, by the task's tag and seed."""

_OF_ONE_RUN = (
    *("exp_name", "output_dir", "resume", "seed", "warm_start.seed"),
    *("max_steps", "save_steps", "max_ckpt_to_keep", "logging_steps"),
)
"""Keys that do not tell one configuration from another."""
_MAX_NAMED = 3
_NUM_DRAWS = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """What was read of one run."""

    name: str
    config: Mapping[str, Any]
    metrics: Sequence[Mapping[str, float]]
    """One row per step, in order."""

    @property
    def seed(self) -> str:
        """The run's own; its name where none is known."""
        return str(self.config.get("seed", self.name))

    def curve(self, metric: str) -> dict[int, float]:
        """The metric's finite values by step."""
        return {int(r["step"]): r[metric] for r in self.metrics if math.isfinite(r.get(metric, math.nan))}


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Runs of one configuration."""

    label: str
    """What sets it apart from the other groups."""
    runs: Sequence[Run]

    @property
    def title(self) -> str:
        """The label with the names of the runs."""
        names = ", ".join(run.name for run in self.runs)
        return names if self.label == names else f"{self.label} ({names})"

    def band(self, metric: str) -> list[tuple[int, float, float, float]]:
        """Step, mean, lowest and highest value over the runs, at the steps that all of them have."""
        curves = [run.curve(metric) for run in self.runs]
        at = {step: [curve[step] for curve in curves] for step in sorted(common_steps(self.runs, metric))}
        return [(step, statistics.fmean(found), min(found), max(found)) for step, found in at.items()]


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """The difference of two groups, and the interval in which it lies."""

    mean: float
    interval: tuple[float, float]
    """95% confidence."""
    method: str

    @property
    def is_significant(self) -> bool:
        """Whether the interval leaves out 0."""
        return self.interval[0] > 0 or self.interval[1] < 0


def grouped(runs: Sequence[Run]) -> list[Group]:
    """Groups in the order of their first runs, labeled by the keys that differ, or by runs where many do."""
    flat = [
        {name: repr(value) for path, value in leaves(run.config) if (name := dotted(path)) not in _OF_ONE_RUN}
        for run in runs
    ]
    firsts = [each for number, each in enumerate(flat) if each not in flat[:number]]
    names = sorted({name for each in firsts for name in each})
    differing = [name for name in names if len({each.get(name) for each in firsts}) > 1]
    groups = []
    for first in firsts:
        members = [run for run, each in zip(runs, flat, strict=True) if each == first]
        named = ", ".join(f"{name.rpartition('.')[2]} {first.get(name, '-')}" for name in differing)
        label = (
            named.replace("'", "")
            if 0 < len(differing) <= _MAX_NAMED
            else ", ".join(run.name for run in members)
        )
        groups.append(Group(label=label, runs=members))
    return groups


def common_steps(runs: Sequence[Run], metric: str) -> set[int]:
    """Steps at which all runs have the metric."""
    return set.intersection(*(set(run.curve(metric)) for run in runs))


def over_seeds(ours: Mapping[str, float], theirs: Mapping[str, float]) -> Difference | None:
    """The difference of the means over runs, by seed; None where there are too few for a spread."""
    shared = [seed for seed in ours if seed in theirs]
    if len(shared) > 1:
        pairs = [ours[seed] - theirs[seed] for seed in shared]
        mean, variance, freedom = statistics.fmean(pairs), _squared_error(pairs), len(pairs) - 1.0
        method = f"paired t over {len(shared)} seeds"
    elif min(len(ours), len(theirs)) > 1:
        parts = [_squared_error([*each.values()]) for each in (ours, theirs)]
        mean, variance = statistics.fmean(ours.values()) - statistics.fmean(theirs.values()), sum(parts)
        counted = zip(parts, (ours, theirs), strict=True)
        scale = sum(part**2 / (len(each) - 1) for part, each in counted)
        freedom = variance**2 / scale if scale else 1.0
        method = f"Welch's t over {len(ours)} and {len(theirs)} seeds"
    else:
        return None
    spread = t_quantile(freedom) * math.sqrt(variance)
    return Difference(mean=mean, interval=(mean - spread, mean + spread), method=method)


def over_tasks(ours: Values, theirs: Values) -> Difference | None:
    """The difference over held-out tasks, each tag weighing the same; None without tasks of a common tag."""
    shared = sorted(ours.keys() & theirs.keys())
    tags = sorted({tag for tag, _ in ours} & {tag for tag, _ in theirs})
    if not tags:
        return None
    rng = np.random.default_rng(0)
    means, draws = [], []
    for tag in tags:
        if shared:
            parts = [[ours[task] - theirs[task] for task in shared if task[0] == tag]]
        else:
            parts = [[value for task, value in each.items() if task[0] == tag] for each in (ours, theirs)]
        if all(parts):
            signed = list(zip((1, -1), map(np.array, parts), strict=False))
            means.append(sum(sign * float(values.mean()) for sign, values in signed))
            draws.append(np.sum([sign * _redrawn(rng, values) for sign, values in signed], axis=0))
    low, high = np.percentile(np.mean(draws, axis=0), [2.5, 97.5])
    method = f"paired bootstrap over {len(shared):,} tasks" if shared else "bootstrap over unpaired tasks"
    return Difference(mean=statistics.fmean(means), interval=(float(low), float(high)), method=method)


def t_quantile(freedom: float) -> float:
    """The 97.5th percentile of Student's t with so many degrees of freedom, 1 or more, to four digits.

    With t = sqrt(freedom) tan(a), the density of a is proportional to cos(a)^(freedom - 1).
    """
    angles = np.linspace(-math.pi / 2, math.pi / 2, 200_001)
    mass = np.cumsum(np.cos(angles).clip(0) ** (freedom - 1))
    return math.sqrt(freedom) * math.tan(float(np.interp(0.975, mass / mass[-1], angles)))


def sparkline(values: Sequence[float], low: float, high: float) -> str:
    """One block per value, the higher the larger."""
    scale = 7 / (high - low) if high > low else 0.0
    return "".join("▁▂▃▄▅▆▇█"[round((value - low) * scale)] for value in values)


def _squared_error(values: Sequence[float]) -> float:
    """Variance of the mean of `values`."""
    return statistics.variance(values) / len(values)


def _redrawn(rng: np.random.Generator, values: NDArray[np.float64]) -> NDArray[np.float64]:
    means: NDArray[np.float64] = values[rng.integers(len(values), size=(_NUM_DRAWS, len(values)))].mean(
        axis=1
    )
    return means
