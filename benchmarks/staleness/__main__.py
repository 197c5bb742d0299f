"""What staleness costs and what each correction gains: one task under several alphas, losses and seeds.

    python benchmarks/staleness --out /tmp/staleness                 the whole matrix, then figure and table
    python benchmarks/staleness --out /tmp/staleness --only-report   figure and table of what has finished
    python benchmarks/staleness --out /tmp/staleness --docs          ... and into docs/staleness.md

Trains examples/staleness_experiment.yaml once for each variant, alpha and seed, one after the other: 39 runs,
about a minute each on two cores. Stopped and started again, it goes on with the first run that has not
ended. Writes OUT/staleness.svg, OUT/table.md and OUT/results.json. Seconds mean something only on an
otherwise idle machine: say --beside-other-work where it is not. The exit code is 1 when a run failed.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from types import FrameType

os.environ.setdefault("OMP_NUM_THREADS", "1")

from experiment import ALPHAS, SEEDS, VARIANTS, Cell, Experiment, RunFailed, cells, variant
from figure import draw
from results import RunResult, markdown_table, run_result, summaries, with_shared_runs

from envsdk.tracking import read_metrics

DOCS = Path(__file__).parents[2] / "docs"
SVG = "staleness.svg"
RESULTS_BEGIN, RESULTS_END = "<!-- results: begin -->\n", "<!-- results: end -->\n"


def main(argv: Sequence[str] | None = None) -> int:
    options = _options(argv)
    experiment = Experiment(options.out, overrides=options.override, alone=not options.beside_other_work)
    matrix = cells(options.variants, options.alphas, options.seeds)
    signal.signal(signal.SIGTERM, _interrupt)
    failures = [] if options.only_report else run_all(experiment, matrix)
    results = finished(experiment, matrix)
    if not results:
        print("no run has finished, so there is nothing to draw", file=sys.stderr)
        return 1
    report(experiment.folder, results, into_docs=options.docs)
    if len(results) < len(matrix):
        print(f"NOT COMPLETE: {len(results)} of {len(matrix)} runs", file=sys.stderr)
    for failure in failures:
        print(f"FAILED: {failure}", file=sys.stderr)
    return 1 if failures else 0


def run_all(experiment: Experiment, matrix: Sequence[Cell]) -> list[RunFailed]:
    """Train what is missing; the failures, each of which was also told when it happened."""
    failures = []
    for number, cell in enumerate(matrix, start=1):
        try:
            record = experiment.run(cell)
        except RunFailed as failure:
            failures.append(failure)
            print(f"{number:3d}/{len(matrix)}  FAILED  {failure}", flush=True)
            continue
        result = run_result(record, read_metrics(experiment.run_folder(cell) / "metrics.jsonl"))
        print(
            f"{number:3d}/{len(matrix)}  {cell.name:36} {result.before:5.1%} -> {result.after:5.1%}"
            f"  {record.wall_s:4.0f} s  load {record.load_average:.1f} -> {record.load_average_after:.1f}",
            flush=True,
        )
    return failures


def finished(experiment: Experiment, matrix: Sequence[Cell]) -> list[RunResult]:
    """Results of the runs that have ended well."""
    return [
        run_result(record, read_metrics(experiment.run_folder(cell) / "metrics.jsonl"))
        for cell in matrix
        if (record := experiment.record(cell)) is not None
    ]


def report(folder: Path, results: Sequence[RunResult], *, into_docs: bool) -> None:
    """Write and print what the results say."""
    order = [one.name for one in VARIANTS]
    everywhere = with_shared_runs(results, list(dict.fromkeys(one.cell.variant for one in results)))
    rows = sorted(summaries(everywhere), key=lambda row: (order.index(row.variant), row.alpha))
    figure = draw(rows, {row.variant: variant(row.variant).about for row in rows})
    text = f"{markdown_table(rows)}\n{conditions(results)}\n"
    (folder / "table.md").write_text(text)
    (folder / "staleness.svg").write_text(figure)
    (folder / "results.json").write_text(json.dumps([asdict(result) for result in results], indent=1) + "\n")
    print(f"\n{text}\nfigure: {folder / 'staleness.svg'}")
    if into_docs:
        page = DOCS / "staleness.md"
        image = f"![Success over steps for each variant and alpha, with seconds and staleness](images/{SVG})"
        page.write_text(replaced(page.read_text(), f"{image}\n\n{text}"))
        (DOCS / "images" / SVG).write_text(figure)
        print(f"figure and table are in {page}; what the page says about them is yours to write")


def conditions(results: Sequence[RunResult]) -> str:
    """Under what circumstances the times were taken, in a sentence."""
    alone = sum(result.alone for result in results)
    timed = f"; seconds are of the {alone} that had the machine to themselves" if alone else ""
    return f"{len(results)} runs on {os.cpu_count()} cores{timed}."


def replaced(page: str, results: str) -> str:
    """The page with the results between its two marks; ValueError when it has no such place."""
    before, begins, rest = page.partition(RESULTS_BEGIN)
    _, ends, after = rest.partition(RESULTS_END)
    if not begins or not ends:
        raise ValueError(f"the page has no place between {RESULTS_BEGIN!r} and {RESULTS_END!r}")
    return f"{before}{begins}\n{results}\n{ends}{after}"


def _options(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python benchmarks/staleness",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    names = [one.name for one in VARIANTS]
    parser.add_argument("--out", type=Path, required=True, help="folder of the runs; continued if it exists")
    parser.add_argument(
        "--beside-other-work", action="store_true", help="leave the seconds of these runs out of the report"
    )
    parser.add_argument("--variants", nargs="+", choices=names, default=names)
    parser.add_argument("--alphas", type=int, nargs="+", default=ALPHAS)
    parser.add_argument("--seeds", type=int, nargs="+", default=SEEDS)
    parser.add_argument(
        "--override",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="for every run, such as max_steps=2",
    )
    parser.add_argument("--only-report", action="store_true", help="train nothing")
    parser.add_argument("--docs", action="store_true", help="put figure and table into docs/staleness.md")
    return parser.parse_args(argv)


def _words(numbers: Sequence[int]) -> str:
    return " ".join(map(str, numbers))


def _interrupt(signal_number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        print("stopped; the same command goes on with the run that was cut short", file=sys.stderr)
        sys.exit(130)
