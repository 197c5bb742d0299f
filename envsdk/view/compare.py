"""`envsdk compare RUN RUN ...`: curves side by side in the terminal and as one HTML file."""

from __future__ import annotations

import statistics
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from envsdk.base.display.model_command import command_of
from envsdk.base.display.terminal import say
from envsdk.base.settings.nearest import suggest
from envsdk.base.settings.options import Argument, Option, Options
from envsdk.base.store.atomic import write_atomically
from envsdk.base.store.trajectories import read_columns
from envsdk.contracts.failures import ConfigurationError
from envsdk.tracking import read_run_metrics
from envsdk.view import comparison
from envsdk.view.comparison import Difference, Group, Run
from envsdk.view.page import COMPARISON_SCRIPTS, exported_page
from envsdk.view.run_view import number, thinned
from envsdk.view.sources import CONFIG_FILE, TRAJECTORY_FOLDER, read_config, run_source

_CHARTS = ("val/success/", "val/reward/", "success/", "reward/", "actor/entropy", "rollout/num_turns")
_MAX_POINTS = 300
_UNTRAINED = "Nothing is judged: these runs share only step 0, the models that they began with."


class CompareOptions(Options):
    """What `envsdk compare` takes."""

    runs: Annotated[tuple[Path, ...], Argument("RUN_DIR"), Field(min_length=2)]
    """Folders of runs, two or more, such as runs/a runs/b; the first is what the others are compared with."""
    metric: str = "val/success/mean"
    """Metric of evaluations that decides."""
    out: Annotated[Path, Option("--out", "-o", metavar="FILE.html")] = Path("comparison.html")
    """File for the curves."""


def compare(options: CompareOptions) -> None:
    """Compare runs: curves side by side, seeds as bands, and whether the difference is significant.

    Runs that differ in their seed alone are one group. The last step that all runs evaluated decides.
    """
    folders = {run_source(folder).folder: folder for folder in options.runs}
    runs = [
        Run(name=str(shown), config=read_config(folder / CONFIG_FILE)[0], metrics=read_run_metrics(folder))
        for folder, shown in folders.items()
    ]
    step = max(comparison.common_steps(runs, options.metric), default=None)
    if step is None:
        raise ConfigurationError(_nothing_shared(runs, options.metric))
    groups = comparison.grouped(runs)
    lines = [f"{options.metric} at step {step:,}", *_scores(groups, options.metric, step)]
    if step == 0:
        lines += ["", _UNTRAINED, *_steps(runs, options.metric, after=0)]
    for group in groups[1:] if step else ():
        lines += ["", f"{group.label} against {groups[0].label}"]
        lines += _verdict(group, groups[0], options.metric, step)
    data = {"lines": lines, "charts": list(_charts(groups, options.metric))}
    page = exported_page(data, name="Comparison of runs", scripts=COMPARISON_SCRIPTS)
    write_atomically(options.out, page.encode("utf-8", "replace"))
    say("\n".join(lines))
    say(f"\nCurves: {options.out}")


def _nothing_shared(runs: Sequence[Run], metric: str) -> str:
    """Why no step can be compared."""
    for run in runs:
        known = sorted(name for name in set().union(*run.metrics) if name.startswith("val/"))
        if not known:
            return f"{run.name} has no evaluations (eval_steps), so it cannot be compared by `{metric}`"
        if not run.curve(metric):
            hint = suggest(metric, known, known="metrics of evaluations")
            return f"--metric: no step of {run.name} has `{metric}`; {hint}"
    return "\n".join([f"--metric: no step has `{metric}` in all of these runs:", *_steps(runs, metric)])


def _steps(runs: Sequence[Run], metric: str, *, after: int = -1) -> Iterator[str]:
    for run in runs:
        steps = [f"{step:,}" for step in sorted(run.curve(metric)) if step > after]
        yield f"  {run.name}: {'later ' * (after >= 0)}steps {', '.join(steps) or 'none'}"


def _scores(groups: Sequence[Group], metric: str, step: int) -> Iterator[str]:
    bands = [[point for point in group.band(metric) if point[0] <= step] for group in groups]
    means = [mean for band in bands for _, mean, _, _ in band]
    width = max(len(group.label) for group in groups)
    for group, band in zip(groups, bands, strict=True):
        _, mean, low, high = band[-1]
        curve = comparison.sparkline([point[1] for point in band], min(means), max(means))
        between = f" ({_shown(low, metric)} to {_shown(high, metric)})" if len(group.runs) > 1 else ""
        yield f"  {group.label:<{width}}  runs: {len(group.runs)}  {curve}  {_shown(mean, metric)}{between}"


def _verdict(group: Group, baseline: Group, metric: str, step: int) -> Iterator[str]:
    ours, theirs = ({r.seed: r.curve(metric)[step] for r in each.runs} for each in (group, baseline))
    seeds = comparison.over_seeds(ours, theirs)
    tasks = comparison.over_tasks(*(_held_out(each, metric, step) for each in (group, baseline)))
    if seeds is not None:
        yield f"  {_words(seeds, metric)}"
    if tasks is not None:
        scope = "These runs alone: " if seeds is not None else "Of these runs, not of other seeds: "
        yield f"  {scope}{_words(tasks, metric)}"
    if seeds is None and tasks is None:
        yield "  One run of a configuration, and no held-out episodes on disk: no interval can be given."


def _words(found: Difference, metric: str) -> str:
    mean, low, high = (_shown(each, metric, signed=True) for each in (found.mean, *found.interval))
    unit, negated = " points" * ("success/" in metric), "not " * (not found.is_significant)
    return f"{mean}{unit}, {negated}significant (95% interval {low} to {high}, {found.method})"


def _held_out(group: Group, metric: str, step: int) -> comparison.Values:
    """Means per task, of what the metric is about, where the runs' files have it."""
    what, _, tag = metric.removeprefix("val/").partition("/")
    column = {"success": "success", "reward": "total_reward"}.get(what)
    found: dict[tuple[str, int], list[float]] = defaultdict(list)
    for run in group.runs if column else ():
        path = Path(run.name) / TRAJECTORY_FOLDER / f"val_{step:06d}.parquet"
        if not path.is_file():
            return {}
        columns = read_columns(path, ["tag", "seed", "failure", str(column)])
        for of_tag, seed, failure, value in zip(*columns.values(), strict=True):
            if failure is None and tag in ("mean", of_tag):
                found[of_tag, seed].append(float(value))
    return {task: statistics.fmean(values) for task, values in found.items()}


def _charts(groups: Sequence[Group], first: str) -> Iterator[dict[str, Any]]:
    names = {name for group in groups for run in group.runs for row in run.metrics for name in row}
    wanted = [each for prefix in (first, *_CHARTS) for each in sorted(names) if each.startswith(prefix)]
    for name in dict.fromkeys(wanted):
        series = []
        for group in groups:
            band = group.band(name)
            lines = [thinned([(point[0], point[at]) for point in band], _MAX_POINTS) for at in (1, 2, 3)]
            edges = [[*low, high] for low, (_, high) in zip(*lines[1:], strict=True)]
            series.append({"name": group.title, "points": lines[0], "band": edges * (len(group.runs) > 1)})
        yield {"title": name, "percent": "success/" in name, "series": series}


def _shown(value: float, metric: str, *, signed: bool = False) -> str:
    sign = "+" if signed and value >= 0 else ""
    if "success/" not in metric:
        return f"{sign}{number(value)}"
    return f"{sign}{100 * value:.1f}" if signed else f"{value:.1%}"


app, main = command_of(CompareOptions, compare, name="envsdk compare")

if __name__ == "__main__":
    sys.exit(main())
