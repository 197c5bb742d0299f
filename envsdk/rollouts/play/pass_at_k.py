"""pass@k over tasks that are played several times, and differences between policies on the same tasks. Pure.

    per_task = outcomes_by_task(trajectories)            # solved or not, by task
    pass_at_k(per_task, 4).rate

With n samples of a task of which c solved it, 1 - C(n - c, k) / C(n, k) is an unbiased estimate of the chance
that at least one of k samples does: Chen et al., arXiv:2107.03374, eq. 1. The rate is its mean over tasks.

Samples of a task are correlated, so the interval takes tasks, not samples, for what was drawn (Miller,
arXiv:2411.00640, section 2.2): it is Wilson's, with as many trials as independent ones would have to be for
the same standard error (Korn and Graubard, Survey Methodology 24, 1998).
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from envsdk.base.store.tally import Z_95, wilson_interval
from envsdk.contracts.trajectory import Task, Trajectory

Outcomes = Mapping[Task, Sequence[bool]]


@dataclass(frozen=True, slots=True, kw_only=True)
class PassAtK:
    """Chance that at least one of `k` samples solves a task."""

    k: int
    rate: float | None
    """None without a task that has `k` samples with an outcome."""
    interval: tuple[float, float]
    """95% confidence."""
    num_tasks: int
    """Tasks with at least `k` samples with an outcome."""
    num_left_out: int
    """Tasks with fewer: episodes failed."""

    def to_json(self) -> dict[str, Any]:
        return {
            "rate": self.rate,
            "rate_95": list(self.interval),
            "tasks": self.num_tasks,
            "left_out": self.num_left_out,
        }


def outcomes_by_task(trajectories: Iterable[Trajectory]) -> dict[Task, list[bool]]:
    """Whether each sample of a task solved it; failed episodes have no outcome and are left out."""
    found: dict[Task, list[bool]] = {}
    for trajectory in trajectories:
        samples = found.setdefault(trajectory.task, [])
        if trajectory.failure is None:
            samples.append(trajectory.success)
    return found


def pass_at_k(outcomes: Outcomes, k: int) -> PassAtK:
    """The estimate and its interval. ValueError unless `k` is positive."""
    if k < 1:
        raise ValueError(f"k: must be at least 1, not {k}")
    chances = [
        1.0 - math.comb(len(samples) - sum(samples), k) / math.comb(len(samples), k)
        for samples in outcomes.values()
        if len(samples) >= k
    ]
    num_samples = sum(len(samples) for samples in outcomes.values() if len(samples) >= k)
    return PassAtK(
        k=k,
        rate=statistics.fmean(chances) if chances else None,
        interval=_interval(chances, num_samples),
        num_tasks=len(chances),
        num_left_out=len(outcomes) - len(chances),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class PairedDifference:
    """How much more often one policy solves the same tasks than another, -1 to 1."""

    mean: float
    interval: tuple[float, float]
    """95% confidence."""
    num_tasks: int
    """Tasks with an outcome under both."""

    def __str__(self) -> str:
        low, high = self.interval
        return f"{100 * self.mean:+.1f} ({100 * low:+.1f} to {100 * high:+.1f})"

    def to_json(self) -> dict[str, Any]:
        return {"mean": self.mean, "mean_95": list(self.interval), "tasks": self.num_tasks}


def paired_difference(outcomes: Outcomes, baseline: Outcomes) -> PairedDifference | None:
    """The mean over the tasks that both have of the difference of their rates; None without such a task.

    Tasks are easy or hard for both, so this is narrower than the two intervals are (Miller, section 4.2). The
    interval is the normal one with half an observation of +1 and of -1 and one of 0 added (Agresti and Min,
    Statistics in Medicine 24, 2005): it has a width where all tasks agree.
    """
    differences = [
        statistics.fmean(samples) - statistics.fmean(baseline[task])
        for task, samples in outcomes.items()
        if samples and baseline.get(task)
    ]
    if not differences:
        return None
    num_all = len(differences) + 2
    center = sum(differences) / num_all
    variance = (sum(each * each for each in differences) + 1) / num_all - center**2
    spread = Z_95 * math.sqrt(variance / num_all)
    return PairedDifference(
        mean=statistics.fmean(differences),
        interval=(max(-1.0, center - spread), min(1.0, center + spread)),
        num_tasks=len(differences),
    )


def shown_ks(samples_per_task: int) -> list[int]:
    """Powers of two up to the number of samples, and that number."""
    powers = [2**power for power in range(samples_per_task.bit_length())]
    return sorted({*powers, samples_per_task})


def _interval(chances: Sequence[float], num_samples: int) -> tuple[float, float]:
    """Wilson's for as many independent trials as have the standard error of the mean over tasks."""
    if not chances:
        return 0.0, 1.0
    rate = statistics.fmean(chances)
    trials = float(len(chances))
    if len(chances) > 1 and 0 < rate < 1:
        variance = statistics.variance(chances) / len(chances)
        # Never more than there are samples, however alike the tasks are.
        trials = min(rate * (1 - rate) / variance, num_samples) if variance else float(num_samples)
    return wilson_interval(rate * trials, trials)
