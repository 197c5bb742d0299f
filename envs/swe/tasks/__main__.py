"""`python -m envsdk.envs.swe.tasks FILE`: validate the tasks of a data set, or those that ship."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from envsdk.display.command_line import run_app
from envsdk.display.console import TerminalConsole
from envsdk.display.terminal import say

if TYPE_CHECKING:
    from envsdk.envs.swe.evaluator import Validation
    from envsdk.envs.swe.tasks import Task

app = typer.Typer(add_completion=False)


@app.command()
def command(
    data: Annotated[
        Path | None, typer.Argument(metavar="[FILE]", help="JSONL or Parquet; absent, the tasks that ship.")
    ] = None,
    repositories: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Clones named owner__name; beside the file if absent.")
    ] = None,
    split: Annotated[str | None, typer.Option(help="`train` or `held_out` only.")] = None,
    backend: Annotated[str, typer.Option(help="The sandbox.")] = "bubblewrap",
    jobs: Annotated[
        int | None, typer.Option(min=1, help="Tasks at once; the number of cores if absent.")
    ] = None,
) -> None:
    """Grade the gold patch and an empty one of every task, and look for copies of its solution."""
    from envsdk.envs.swe.evaluator.validation import tasks_by_id
    from envsdk.envs.swe.tasks.loaders import load_tasks
    from envsdk.envs.swe.tasks.shipped import shipped_tasks
    from envsdk.failures import ConfigurationError

    if split not in (None, "train", "held_out"):
        raise ConfigurationError(f"--split: must be train or held_out, not {split!r}")
    tasks = shipped_tasks(split) if data is None else load_tasks(data, repositories=repositories, split=split)

    tasks_by_id(tasks)
    found = asyncio.run(_validate(tasks, backend, jobs or os.cpu_count() or 1))
    sound = sum(validation is not None and validation.sound for validation in found)
    weak = sum(validation is not None and validation.sound and validation.weak for validation in found)
    say(f"{sound} of {len(found)} tasks are sound" + (f", {weak} of them weak" if weak else ""))
    if sound < len(found):
        raise typer.Exit(1)


async def _validate(tasks: Sequence[Task], backend: str, jobs: int) -> list[Validation | None]:
    """In order; None where a task could not be judged. Each is said once those before it are."""
    from envsdk.envs.swe.evaluator import validate
    from envsdk.failures import EnvsdkError
    from envsdk.sandbox import open_backend

    sandboxes = open_backend(backend)
    slots = asyncio.Semaphore(jobs)
    console = TerminalConsole(file=sys.stderr)
    with console.status(f"0 of {len(tasks)} validated") as status:
        running: list[asyncio.Task[tuple[Validation | None, str]]] = []

        async def one(task: Task) -> tuple[Validation | None, str]:
            async with slots:
                started = time.monotonic()
                try:
                    (validation,) = await validate([task], sandboxes)
                    told = _told(validation)
                except EnvsdkError as error:
                    validation, told = None, f"could not be judged: {error}"
                elapsed_s = time.monotonic() - started
            done = 1 + sum(other.done() for other in running)
            status.update(f"{done} of {len(tasks)} validated; {task.instance_id} took {elapsed_s:.0f} s")
            return validation, f"{task.instance_id}: {told} ({elapsed_s:.0f} s)"

        found = []
        try:
            await sandboxes.probe()
            running += [asyncio.create_task(one(task)) for task in tasks]
            for task in running:
                validation, told = await task
                say(told, flush=True)
                found.append(validation)
        finally:
            await sandboxes.aclose()
    return found


def _told(validation: Validation) -> str:
    hidden = f"sound, {validation.hidden_bits:.1f} bits hidden"
    if validation.weak:
        hidden += ": weak, a rewarded patch may have forged its verdict"
    return validation.problem or hidden


def main(argv: list[str] | None = None) -> int:
    return run_app(app, argv, name="python -m envsdk.envs.swe.tasks")


if __name__ == "__main__":
    sys.exit(main())
