"""From the runs' metrics to the figures of the table. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from experiment import Cell, Record

Row = Mapping[str, float]
"""Metrics of one step, as in metrics.jsonl."""

SUCCESS = "val/success/mean"


class Spread(NamedTuple):
    """Of one number over the seeds."""

    mean: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Iterable[float]) -> Spread:
        """ValueError when there is none."""
        known = list(values)
        if not known:
            raise ValueError("a spread needs at least one value")
        return cls(statistics.fmean(known), min(known), max(known))


@dataclass(frozen=True, slots=True, kw_only=True)
class RunResult:
    """One run in a few numbers."""

    cell: Cell
    curve: dict[int, float]
    """Held-out success by step; step 0 is the warm-started policy."""
    training_s: float
    """From the end of the first step to that of the last, evaluations left out; per step."""
    wall_s: float
    """The whole process."""
    alone: bool
    """Whether it had the machine to itself, so that its seconds mean something."""
    staleness: float
    """Weight updates between sampling and training; mean over the trajectories of all steps but the first
    alpha + 1, which have nothing older to learn from."""
    off_policy: float
    """Share of the tokens trained on whose probability had moved by more than 1%; same steps."""

    @property
    def before(self) -> float:
        return self.curve[min(self.curve)]

    @property
    def after(self) -> float:
        return self.curve[max(self.curve)]

    @property
    def late(self) -> float:
        """Mean over the second half of the evaluations: less noisy than the last alone."""
        steps = sorted(self.curve)[1:]
        return statistics.fmean(self.curve[step] for step in steps[len(steps) // 2 :])


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """One variant under one alpha, over its seeds."""

    variant: str
    alpha: int
    num_seeds: int
    before: Spread
    after: Spread
    late: Spread
    lowest: Spread
    """Of each run's evaluations after the first."""
    training_s: Spread | None
    """None when none of the runs had the machine to itself."""
    wall_s: Spread | None
    staleness: float
    off_policy: float
    curve: dict[int, Spread]


def run_result(record: Record, rows: Sequence[Row]) -> RunResult:
    """ValueError names what the metrics lack: a run that ended well has all of it."""
    name = record.cell.name
    curve = {int(row["step"]): row[SUCCESS] for row in rows if SUCCESS in row}
    trained = [row for row in rows if "actor/loss" in row]
    if len(curve) < 2 or len(trained) < 2:
        raise ValueError(f"{name}: {len(curve)} evaluations and {len(trained)} steps in its metrics")
    settled = [row for row in trained if row["step"] > record.cell.alpha]
    if not any("actor/off_policy_fraction" in row for row in settled):
        raise ValueError(f"{name}: no step after the first {record.cell.alpha + 1} trained a token")
    return RunResult(
        cell=record.cell,
        curve=curve,
        training_s=statistics.fmean(
            row["time/step_s"] - row.get("time/validate_s", 0.0) for row in trained[1:]
        ),
        wall_s=record.wall_s,
        alone=record.alone,
        staleness=statistics.fmean(row["staleness/mean"] for row in settled),
        # A batch in which every group agrees trains no token and has no such share.
        off_policy=statistics.fmean(
            row["actor/off_policy_fraction"] for row in settled if "actor/off_policy_fraction" in row
        ),
    )


def with_shared_runs(results: Sequence[RunResult], variants: Sequence[str]) -> list[RunResult]:
    """Runs under alpha 0 also as those of the other variants, which were not repeated (see `cells`)."""
    known = {result.cell for result in results}
    shared = [
        replace(result, cell=replace(result.cell, variant=name))
        for result in results
        for name in variants
        if result.cell.alpha == 0
    ]
    return [*results, *(result for result in shared if result.cell not in known)]


def summaries(results: Iterable[RunResult]) -> list[Summary]:
    """One for each variant and alpha, in the order of their first results.

    ValueError when the runs of one cell were not evaluated at the same steps.
    """
    by_setting: dict[tuple[str, int], list[RunResult]] = {}
    for result in results:
        by_setting.setdefault((result.cell.variant, result.cell.alpha), []).append(result)
    return [_summary(name, alpha, runs) for (name, alpha), runs in by_setting.items()]


def _summary(name: str, alpha: int, runs: Sequence[RunResult]) -> Summary:
    steps = sorted(runs[0].curve)
    for run in runs:
        if sorted(run.curve) != steps:
            raise ValueError(f"{run.cell.name} was not evaluated at the steps of {runs[0].cell.name}")
    timed = [run for run in runs if run.alone]
    return Summary(
        variant=name,
        alpha=alpha,
        num_seeds=len(runs),
        before=Spread.of(run.before for run in runs),
        after=Spread.of(run.after for run in runs),
        late=Spread.of(run.late for run in runs),
        lowest=Spread.of(min(run.curve[step] for step in steps[1:]) for run in runs),
        training_s=Spread.of(run.training_s for run in timed) if timed else None,
        wall_s=Spread.of(run.wall_s for run in timed) if timed else None,
        staleness=statistics.fmean(run.staleness for run in runs),
        off_policy=statistics.fmean(run.off_policy for run in runs),
        curve={step: Spread.of(run.curve[step] for run in runs) for step in steps},
    )


def markdown_table(rows: Sequence[Summary]) -> str:
    """One line per variant and alpha; held-out success as mean (lowest to highest seed).

    Under alpha 0 the first variant stands for all. Times are left out where no run was timed.
    """
    most = max(row.num_seeds for row in rows)
    is_timed = any(row.training_s is not None for row in rows)
    names = ["variant", "alpha", "start", "end", "second half", "lowest", "staleness", "off-policy tokens"]
    names += ["s/step", "s, all"] if is_timed else []
    lines = [f"| {' | '.join(names)} |", "| --- " * len(names) + "|"]
    for row in rows:
        if row.alpha == 0 and row.variant != rows[0].variant:
            continue
        alpha = f"{row.alpha}" if row.num_seeds == most else f"{row.alpha} (seeds: {row.num_seeds} of {most})"
        times = f" {_seconds(row.training_s, 2)} | {_seconds(row.wall_s, 0)} |" if is_timed else ""
        lines.append(
            f"| `{row.variant}` | {alpha} | {row.before.mean:.1%} "
            f"| {_percent(row.after)} | {_percent(row.late)} | {_percent(row.lowest)} "
            f"| {row.staleness:.2f} | {row.off_policy:.0%} |{times}"
        )
    return "\n".join(lines) + "\n"


def _seconds(spread: Spread | None, digits: int) -> str:
    return "not timed" if spread is None else f"{spread.mean:.{digits}f}"


def _percent(spread: Spread) -> str:
    return f"{spread.mean:.1%} ({spread.low:.0%} to {spread.high:.0%})"
