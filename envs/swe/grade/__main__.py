"""`python -m envsdk.envs.swe.grade PREDICTIONS --tasks FILE --out DIR`."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Annotated

from pydantic import Field

from envsdk.base.display.model_command import command_of
from envsdk.base.settings.options import Argument, Option, Options


class GradeOptions(Options):
    """What `python -m envsdk.envs.swe.grade` takes."""

    source: Annotated[Path, Argument("PATCHES")]
    """Predictions for SWE-bench (JSONL, or JSON as a list or by instance id), a folder with INSTANCE.patch
    files, one patch, or `gold`."""
    tasks: Annotated[str, Option("--tasks", "-t", metavar="FILE")]
    """JSONL or Parquet; or `shipped`, envsdk's own."""
    out: Annotated[Path, Option("--out", "-o", metavar="DIR")]
    """Reports are written to it; what it has is kept."""
    repositories: Annotated[Path | None, Option(metavar="DIR")] = None
    """Clones named owner__name; beside FILE if absent."""
    instance_ids: Annotated[tuple[str, ...], Option("--instance-id", metavar="ID")] = ()
    """Only this task; the task of one patch. May be given again."""
    workers: Annotated[int | None, Field(ge=1)] = None
    """Patches at once; the number of cores if absent."""
    backend: str = "bubblewrap"
    """The sandbox."""
    validates: Annotated[bool, Option("--validate/--no-validate")] = True
    """First try whether each task's own patch solves it; what was found is kept."""


def command(options: GradeOptions) -> int:
    """Grade patches by the tasks' hidden tests, with reports in the form of SWE-bench's evaluation.

    Killed, the same command goes on where it stopped. It ends with 1 where a patch could not be graded.
    """
    from envsdk.envs.swe.grade.command import run

    return 0 if asyncio.run(run(options)) else 1


app, main = command_of(GradeOptions, command, name="python -m envsdk.envs.swe.grade")

if __name__ == "__main__":
    sys.exit(main())
