"""`python -m envsdk.envs.swe.grade PREDICTIONS --tasks FILE --out DIR`."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from envsdk.display.command_line import run_app

app = typer.Typer(add_completion=False)


@app.command()
def command(
    source: Annotated[
        Path,
        typer.Argument(
            metavar="PATCHES",
            help="Predictions for SWE-bench (JSONL, or JSON as a list or by instance id), a folder with "
            "INSTANCE.patch files, one patch, or `gold`.",
        ),
    ],
    tasks: Annotated[
        str,
        typer.Option("--tasks", "-t", metavar="FILE", help="JSONL or Parquet; or `shipped`, envsdk's own."),
    ],
    out: Annotated[
        Path,
        typer.Option("--out", "-o", metavar="DIR", help="Reports are written to it; what it has is kept."),
    ],
    repositories: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Clones named owner__name; beside FILE if absent.")
    ] = None,
    instance_id: Annotated[
        list[str] | None,
        typer.Option(metavar="ID", help="Only this task; the task of one patch. May be given again."),
    ] = None,
    workers: Annotated[
        int | None, typer.Option(min=1, help="Patches at once; the number of cores if absent.")
    ] = None,
    backend: Annotated[str, typer.Option(help="The sandbox.")] = "bubblewrap",
    validate: Annotated[
        bool, typer.Option(help="First try whether each task's own patch solves it; what was found is kept.")
    ] = True,
) -> None:
    """Grade patches by the tasks' hidden tests, with reports in the form of SWE-bench's evaluation.

    Killed, the same command goes on where it stopped. It ends with 1 where a patch could not be graded.
    """
    import asyncio

    from envsdk.envs.swe.grade.command import SHIPPED, Arguments, run

    arguments = Arguments(
        source=source,
        tasks=tasks,
        out=out,
        repositories=repositories,
        instance_ids=tuple(instance_id or ()),
        workers=workers or os.cpu_count() or 1,
        backend=backend,
        validates=validate and tasks != SHIPPED,
    )
    if not asyncio.run(run(arguments)):
        raise typer.Exit(1)


def main(argv: list[str] | None = None) -> int:
    return run_app(app, argv, name="python -m envsdk.envs.swe.grade")


if __name__ == "__main__":
    sys.exit(main())
