"""Episodes that do not fit `sequence_length`: what `append`, `window` and `compact` learn from one policy.

    python benchmarks/contexts.py --out /tmp/contexts                  nine runs, then figure and table
    python benchmarks/contexts.py --out /tmp/contexts --only-report    of the runs that have ended
    python benchmarks/contexts.py --out /tmp/contexts --docs           ... and the figure into docs/images

Trains benchmarks/contexts.yaml for each context and seed, one run after the other, some three minutes each
on a core. Stopped and started again, it goes on with the first run that has not ended. The exit code is 1
when a run failed.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "staleness"))
from figure import draw_curves
from results import SUCCESS, Spread

from envsdk.config import load_config
from envsdk.tracking import read_metrics
from envsdk.trainers.warm_start.prepare import prepare_policy

CONFIG = Path(__file__).with_suffix(".yaml")
FIGURE = Path(__file__).parents[1] / "docs" / "images" / "contexts.svg"
CONTEXTS = ("append", "window", "compact")
SEEDS = (1, 2, 3)
Row = dict[str, float]


def run_folder(out: Path, context: str, seed: int) -> Path:
    return out / "runs" / f"{context}-seed{seed}"


def train(out: Path, context: str, seed: int, policy: Path) -> int:
    """The exit code of one run, which is continued where it was stopped."""
    folder, tag = run_folder(out, context, seed), f"[{context.capitalize()}]"
    command = [sys.executable, "-m", "envsdk.train", str(CONFIG)]
    command += [
        f"output_dir={folder.parent}",
        f"exp_name={folder.name}",
        f"pretrain={policy}",
        f"seed={seed}",
    ]
    command += [f"train_env_manager.tags={tag}", f"val_env_manager.tags={tag}"]
    return subprocess.run(command, env=os.environ | {"OMP_NUM_THREADS": "1"}, check=False).returncode


def metrics_of(out: Path, context: str, seed: int, last_step: int) -> list[Row]:
    """Those of a run that was evaluated behind its last step; none of another."""
    file = run_folder(out, context, seed) / "metrics.jsonl"
    rows = [dict(row) for row in read_metrics(file) if row["step"] <= last_step] if file.is_file() else []
    return rows if any(row["step"] == last_step and SUCCESS in row for row in rows) else []


def curve_of(runs: Sequence[Sequence[Row]]) -> dict[int, Spread]:
    """Held-out success by step, over the seeds."""
    curves = [{int(row["step"]): row[SUCCESS] for row in rows if SUCCESS in row} for rows in runs]
    return {step: Spread.of(curve[step] for curve in curves) for step in sorted(curves[0])}


def table(runs: dict[str, list[list[Row]]]) -> str:
    lines = ["| context | seeds | start | end | segments per episode |", "| --- " * 5 + "|"]
    for context, each in runs.items():
        curve = list(curve_of(each).values())
        name = "rollout/num_segments_mean"
        segments = statistics.fmean([row[name] for rows in each for row in rows if name in row] or [1.0])
        start, end = (
            f"{spread.mean:.1%} ({spread.low:.0%} to {spread.high:.0%})" for spread in (curve[0], curve[-1])
        )
        lines.append(f"| `{context}` | {len(each)} | {start} | {end} | {segments:.1f} |")
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
    config = load_config(CONFIG).config
    codes = []
    if not options.only_report:
        os.environ["ENVSDK_CACHE"] = str(out / "cache")
        policy = prepare_policy(config)
        codes = [
            train(out, context, seed, policy)
            for seed in SEEDS
            for context in CONTEXTS
            if not metrics_of(out, context, seed, config.max_steps)
        ]
    found = {
        context: [rows for seed in SEEDS if (rows := metrics_of(out, context, seed, config.max_steps))]
        for context in CONTEXTS
    }
    runs = {context: each for context, each in found.items() if each}
    if not runs:
        print("no run has finished, so there is nothing to draw", file=sys.stderr)
        return 1
    picture = draw_curves(
        {context: curve_of(each) for context, each in runs.items()},
        title="Sokoban, 12 turns, three of which fit the sequence length",
        subtitle=f"{config.val_batch_size} held-out rooms, one warm-started policy",
        num_seeds=max(len(each) for each in runs.values()),
    )
    for file in [out / FIGURE.name, *([FIGURE] if options.docs else [])]:
        file.write_text(picture)
    print(table(runs))
    return int(any(codes))


if __name__ == "__main__":
    sys.exit(main())
