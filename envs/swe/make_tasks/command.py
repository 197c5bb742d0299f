"""What `python -m envsdk.envs.swe.make_tasks` does: package by package, with progress on standard error."""

from __future__ import annotations

import asyncio
import sys
import time
from collections import Counter
from pathlib import Path

from envsdk.base.display.console import TerminalConsole
from envsdk.base.display.terminal import say
from envsdk.base.store.atomic import make_folder
from envsdk.envs.swe.make_tasks.baseline import plan_of
from envsdk.envs.swe.make_tasks.commits import Clone
from envsdk.envs.swe.make_tasks.from_commits import make_of_commits
from envsdk.envs.swe.make_tasks.maker import Progress, make
from envsdk.envs.swe.make_tasks.options import MakeTasksOptions
from envsdk.envs.swe.make_tasks.package import fetch
from envsdk.rewards.sandbox import open_backend


async def run(options: MakeTasksOptions) -> None:
    """Make the tasks and say what was made."""
    out = options.out.absolute()
    make_folder(out)
    console = TerminalConsole(file=sys.stderr)
    backend = open_backend(options.backend)
    try:
        await backend.probe()
        for requirement in options.packages:
            with console.status(f"{requirement}: download") as status:
                package = await asyncio.to_thread(
                    fetch,
                    requirement,
                    out,
                    needs=options.needs,
                    source=options.source,
                    tests=options.tests,
                )
                status.update(f"{requirement}: tests of the unchanged package")
                plan = plan_of(package, plugins=options.plugins, options=options.pytest_options)

                def show(progress: Progress, label: str = package.label) -> None:
                    status.update(_line(label, progress, options.num_tasks))

                progress = await make(package, plan, out, backend, options, show)
            say(_summary(package.label, progress))
    finally:
        await backend.aclose()
    say(f"{out / 'tasks.jsonl'}")


async def run_of_commits(clone: Path, options: MakeTasksOptions) -> None:
    """Make tasks of the commits of `clone`; say what becomes of each, and what was made."""
    out = options.out.absolute()
    make_folder(out)
    sandboxes = open_backend(options.backend)
    started = time.monotonic()
    with TerminalConsole(file=sys.stderr).status(f"{clone}: reads the log") as status:
        try:
            await sandboxes.probe()
            found = await make_of_commits(
                Clone(clone),
                out,
                sandboxes,
                options,
                lambda decision: say(decision.told(), flush=True),
                status.update,
            )
        finally:
            await sandboxes.aclose()
    made = [decision for decision in found if not decision.problem]
    weak = sum(decision.weak for decision in made)
    say(
        f"{len(made)} tasks of {len(found)} commits, {weak} of them weak, in "
        f"{time.monotonic() - started:.0f} s: {out / 'tasks.jsonl'}"
    )


def _line(label: str, progress: Progress, wanted: int) -> str:
    tried = sum(progress.outcomes.values())
    return (
        f"{label}: {progress.num_valid} of {wanted} tasks, {tried:,} of {progress.num_candidates:,} "
        f"candidates tried ({_counts(progress.outcomes)})"
    )


def _counts(outcomes: Counter[str]) -> str:
    return ", ".join(f"{name} {count}" for name, count in sorted(outcomes.items()))


def _summary(label: str, progress: Progress) -> str:
    tried = sum(progress.fresh.values())
    rate = f", {60 * progress.fresh['valid'] / progress.search_s:.1f} tasks a minute" if tried else ""
    return (
        f"{label}: {progress.num_valid} tasks; tried {tried} of {progress.num_candidates:,} candidates "
        f"({_counts(progress.fresh)}) in {progress.search_s:.0f} s{rate}"
    )
