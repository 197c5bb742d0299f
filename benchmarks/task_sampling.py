"""Which tasks are played: what samplers, and prefixes, do to the same policy in the same number of episodes.

    python benchmarks/task_sampling.py --out /tmp/sampling                  the runs, then figure and table
    python benchmarks/task_sampling.py --out /tmp/sampling --only-report    of the runs that have ended
    python benchmarks/task_sampling.py --out /tmp/sampling --docs           ... and the figure into
    docs/images

Trains task_sampling.yaml and prefix_sampling.yaml for each variant and seed, one run after the other, some
three minutes each on a core. Stopped and started again, it goes on with the first run that has not ended.
The exit code is 1 when a run failed.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).parent / "staleness"))
from figure import draw_curves
from results import SUCCESS, Spread

from envsdk.base.store.trajectories import read_columns
from envsdk.config import load_config
from envsdk.tracking import read_metrics
from envsdk.trainers.warm_start.prepare import prepare_policy

HERE = Path(__file__).parent
IMAGES = HERE.parent / "docs" / "images"


class Experiment(NamedTuple):
    """Variants of one configuration."""

    title: str
    variants: Mapping[str, Sequence[str]]
    """Keys by name."""


EXPERIMENTS: Mapping[str, Experiment] = {
    "task_sampling": Experiment(
        "Sokoban, 128 rooms chosen by each sampler",
        {
            "uniform": ("task_sampler={name: weighted, choose: tasks, num_tasks: 128}",),
            "difficulty": ("task_sampler={name: difficulty, num_tasks: 128}",),
            "learnability": (
                "task_sampler={name: learnability, num_tasks: 128, gate: {after: 8, look_again: 100}}",
            ),
        },
    ),
    "prefix_sampling": Experiment(
        "Sokoban rooms that are nearly never solved",
        {"beginning": (), "prefix": ("prefix_sampling={source: oracle}",)},
    ),
}
SEEDS = (1, 2, 3)
Row = dict[str, float]


def run_folder(out: Path, variant: str, seed: int) -> Path:
    return out / "runs" / f"{variant}-seed{seed}"


def train(out: Path, name: str, variant: str, seed: int, policy: Path) -> int:
    """The exit code of one run, which is continued where it was stopped."""
    folder, keys = run_folder(out, variant, seed), EXPERIMENTS[name].variants[variant]
    command = [sys.executable, "-m", "envsdk.train", str(HERE / f"{name}.yaml")]
    command += [f"output_dir={folder.parent}", f"exp_name={folder.name}", f"pretrain={policy}"]
    command += [f"seed={seed}", *keys]
    return subprocess.run(command, env=os.environ | {"OMP_NUM_THREADS": "1"}, check=False).returncode


def metrics_of(out: Path, variant: str, seed: int, last_step: int) -> list[Row]:
    """Those of a run that was evaluated behind its last step; none of another."""
    file = run_folder(out, variant, seed) / "metrics.jsonl"
    rows = [dict(row) for row in read_metrics(file) if row["step"] <= last_step] if file.is_file() else []
    return rows if any(row["step"] == last_step and SUCCESS in row for row in rows) else []


def informative_share(out: Path, variant: str, seed: int) -> float:
    """Share of the groups that were solved sometimes: all others have no advantage."""
    groups: dict[int, list[bool]] = defaultdict(list)
    for file in sorted((run_folder(out, variant, seed) / "trajectories").glob("step_*.parquet")):
        columns = read_columns(file, ["group_id", "success"])
        for group, success in zip(columns["group_id"], columns["success"], strict=True):
            groups[group].append(success)
    return statistics.fmean(0 < sum(each) < len(each) for each in groups.values())


def curve_of(runs: Sequence[Sequence[Row]]) -> dict[int, Spread]:
    """Held-out success by step, over the seeds."""
    curves = [{int(row["step"]): row[SUCCESS] for row in rows if SUCCESS in row} for rows in runs]
    return {step: Spread.of(curve[step] for curve in curves) for step in sorted(curves[0])}


def table(out: Path, runs: Mapping[str, Mapping[int, list[Row]]]) -> str:
    lines = ["| variant | seeds | start | end | groups solved sometimes |", "| --- " * 5 + "|"]
    for variant, each in runs.items():
        curve = list(curve_of(list(each.values())).values())
        share = statistics.fmean(informative_share(out, variant, seed) for seed in each)
        start, end = (
            f"{spread.mean:.1%} ({spread.low:.0%} to {spread.high:.0%})" for spread in (curve[0], curve[-1])
        )
        lines.append(f"| `{variant}` | {len(each)} | {start} | {end} | {share:.0%} |")
    return "\n".join(lines) + "\n"


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True, help="folder of the runs; continued if it exists")
    parser.add_argument("--only-report", action="store_true", help="train nothing")
    parser.add_argument("--docs", action="store_true", help="put the figure into docs/images")
    options = parser.parse_args(argv)
    out = options.out.resolve()
    config = load_config(HERE / "task_sampling.yaml").config
    last, codes = config.max_steps, []
    if not options.only_report:
        os.environ["ENVSDK_CACHE"] = str(out / "cache")
        policy = prepare_policy(config)
        codes = [
            train(out, name, variant, seed, policy)
            for seed in SEEDS
            for name, experiment in EXPERIMENTS.items()
            for variant in experiment.variants
            if not metrics_of(out, variant, seed, last)
        ]
    for name, experiment in EXPERIMENTS.items():
        found = {
            variant: {seed: rows for seed in SEEDS if (rows := metrics_of(out, variant, seed, last))}
            for variant in experiment.variants
        }
        runs = {variant: each for variant, each in found.items() if each}
        if not runs:
            print(f"no run of {name} has finished, so there is nothing to draw", file=sys.stderr)
            continue
        picture = draw_curves(
            {variant: curve_of(list(each.values())) for variant, each in runs.items()},
            title=experiment.title,
            subtitle=f"{config.val_batch_size} held-out rooms, one warm-started policy",
            num_seeds=max(len(each) for each in runs.values()),
        )
        file_name = f"{name.replace('_', '-')}.svg"
        for file in [out / file_name, *([IMAGES / file_name] if options.docs else [])]:
            file.write_text(picture)
        print(table(out, runs))
    return int(any(codes))


if __name__ == "__main__":
    sys.exit(main())
