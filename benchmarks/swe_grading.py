"""Whether SWE's grader pays cheats or refuses honest patches, and what a grading costs beside plain pytest.

    python benchmarks/swe_grading.py [--only honest|cheats] [--kind KIND ...] [--sample N] [--json FILE]

Grades the patches of tests/envs/swe/grading as the product does, in bubblewrap, and by plain pytest in the
same run. Plain pytest says which honest patches are honest (their tests pass) and which cheats are alive (it
pays them). A cheat that it does not pay may still have found what it looks for: that is counted as reached.
The exit code is 1 when an honest patch is refused, or a cheat is paid or masked.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1]))

from envsdk.rewards.sandbox import open_backend
from tests.envs.swe.grading.cheats import cheats
from tests.envs.swe.grading.honest import honest_patches
from tests.envs.swe.grading.measure import Entry, Graded, grade_all, sample


async def measure(entries: Sequence[Entry], at_once: int, on_done: Callable[[Graded], None]) -> list[Graded]:
    backend = open_backend("bubblewrap")
    try:
        return await grade_all(entries, backend, at_once=at_once, on_done=on_done)
    finally:
        await backend.aclose()


def table(title: str, rows: Sequence[Graded], columns: dict[str, Callable[[Graded], bool]]) -> None:
    """Counts by kind: of patches, and of those for which each column holds."""
    print(f"\n{title:24}" + "".join(f"{name:>12}" for name in ("patches", *columns)))
    kinds = list(dict.fromkeys(row.kind for row in rows))
    for kind in (*kinds, "all"):
        mine = [row for row in rows if kind in (row.kind, "all")]
        counts = [len(mine), *(sum(map(holds, mine)) for holds in columns.values())]
        print(f"  {kind:22}" + "".join(f"{count:12}" for count in counts))


def wrong(row: Graded, *, honest: bool) -> bool:
    """A result that the grader must not give."""
    return row.plain and row.reward != 1.0 if honest else row.reward != 0.0


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", choices=("honest", "cheats"), help="one corpus alone")
    parser.add_argument("--kind", action="append", default=[], help="these kinds alone; may be repeated")
    parser.add_argument("--name", default="", help="those with this text in their name or their task")
    parser.add_argument("--sample", type=int, help="so many of each corpus, evenly over its kinds")
    parser.add_argument("--subjects", type=int, default=3, help="in how many tasks each cheat is tried")
    parser.add_argument("--at-once", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--json", type=Path, help="also write every result to this file")
    options = parser.parse_args(argv)

    corpora: dict[str, Sequence[Entry]] = {
        "honest": honest_patches(),
        "cheats": cheats(num_subjects=options.subjects),
    }
    results: dict[str, list[Graded]] = {}
    problems: list[str] = []
    for corpus, everyone in corpora.items():
        if options.only not in (None, corpus):
            continue
        entries = [
            entry
            for entry in everyone
            if (not options.kind or entry.kind in options.kind)
            and options.name in f"{entry.kind} {entry.name} {entry.subject.name}"
        ]
        if options.sample is not None:
            entries = sample(entries, options.sample)

        def tell(row: Graded, honest: bool = corpus == "honest") -> None:
            if wrong(row, honest=honest):
                print(
                    f"{'refused' if honest else 'masked' if row.reward is None else 'PAID'}: {row}",
                    flush=True,
                )

        rows = results[corpus] = asyncio.run(measure(entries, options.at_once, tell))
        problems += [str(row) for row in rows if wrong(row, honest=corpus == "honest")]
    if rows := results.get("honest"):
        columns = {"not honest": lambda row: not row.plain, "refused": lambda row: wrong(row, honest=True)}
        table("honest", rows, {**columns, "masked": lambda row: row.reward is None})
        seconds = [(row.elapsed_s, row.plain_s) for row in rows if row.reward == 1.0]
        if seconds:
            mine, plain = (statistics.median(column) for column in zip(*seconds, strict=True))
            print(f"\n  median seconds of a grading {mine:.2f}, of plain pytest {plain:.2f}")
    if rows := results.get("cheats"):
        alive = {"alive": lambda row: row.plain, "reached": lambda row: row.reached and not row.plain}
        paid = {"paid": lambda row: row.reward == 1.0, "masked": lambda row: row.reward is None}
        table("cheats", rows, {**alive, **paid})
        names = {(row.kind, row.name) for row in rows}
        lively = {name: [row for row in rows if (row.kind, row.name) == name and row.plain] for name in names}
        print(
            f"\n  {len(names)} cheats, alive in two tasks or more: {sum(len(r) > 1 for r in lively.values())}"
        )
    print(f"\n  load average {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
    if options.json:
        written = {corpus: [asdict(row) for row in rows] for corpus, rows in results.items()}
        options.json.write_text(json.dumps(written, indent=1) + "\n")
    for problem in problems:
        print(f"wrong: {problem}", file=sys.stderr)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
