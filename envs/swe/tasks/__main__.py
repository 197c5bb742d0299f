"""`python -m envsdk.envs.swe.tasks FILE`: validate the tasks of a data set, or those that ship."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from envsdk.base.display.console import TerminalConsole
from envsdk.base.display.model_command import command_of
from envsdk.base.display.terminal import say
from envsdk.base.settings.options import Argument, Option, Options
from envsdk.contracts.failures import ConfigurationError

if TYPE_CHECKING:
    from envsdk.envs.swe.evaluator import Validation
    from envsdk.envs.swe.tasks.task import Task


class TasksOptions(Options):
    """What `python -m envsdk.envs.swe.tasks` takes."""

    data: Annotated[Path | None, Argument("[FILE]")] = None
    """JSONL or Parquet; absent, the tasks that ship."""
    repositories: Annotated[Path | None, Option(metavar="DIR")] = None
    """Clones named owner__name; beside the file if absent."""
    split: str | None = None
    """`train` or `held_out` only."""
    backend: str = "bubblewrap"
    """The sandbox."""
    jobs: Annotated[int | None, Field(ge=1)] = None
    """Tasks at once; the number of cores if absent."""


def command(options: TasksOptions) -> int:
    """Grade the gold patch and an empty one of every task, and look for copies of its solution."""
    from envsdk.envs.swe.evaluator.validation import tasks_by_id
    from envsdk.envs.swe.tasks.loaders import load_tasks
    from envsdk.envs.swe.tasks.shipped import shipped_tasks

    split = options.split
    if split not in (None, "train", "held_out"):
        raise ConfigurationError(f"--split: must be train or held_out, not {split!r}")
    if options.data is None:
        tasks: Sequence[Task] = shipped_tasks(split)
    else:
        tasks = load_tasks(options.data, repositories=options.repositories, split=split)
    tasks_by_id(tasks)
    found = asyncio.run(_validate(tasks, options.backend, options.jobs or os.cpu_count() or 1))
    sound = sum(validation is not None and validation.sound for validation in found)
    weak = sum(validation is not None and validation.sound and validation.weak for validation in found)
    say(f"{sound} of {len(found)} tasks are sound" + (f", {weak} of them weak" if weak else ""))
    return 0 if sound == len(found) else 1


async def _validate(tasks: Sequence[Task], backend: str, jobs: int) -> list[Validation | None]:
    """In order; None where a task could not be judged. Each is said once those before it are."""
    from envsdk.contracts.failures import EnvsdkError
    from envsdk.envs.swe.evaluator import validate
    from envsdk.rewards.sandbox import open_backend

    sandboxes = open_backend(backend)
    slots = asyncio.Semaphore(jobs)
    with TerminalConsole(file=sys.stderr).status(f"0 of {len(tasks)} validated") as status:
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


app, main = command_of(TasksOptions, command, name="python -m envsdk.envs.swe.tasks")

if __name__ == "__main__":
    sys.exit(main())
