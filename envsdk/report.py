"""`python -m envsdk.report RUN_DIR`: write the report of a run, finished or not."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from envsdk.display.command_line import run_app
from envsdk.display.terminal import say

app = typer.Typer(add_completion=False)


@app.command()
def report(
    run_dir: Annotated[
        Path, typer.Argument(metavar="RUN_DIR", help="A run's folder, such as runs/agentic_async.")
    ],
) -> None:
    """Write RUN_DIR/report.html: one file, readable offline, of a run that is over or still going on."""
    from envsdk.view.export import write_report

    say(write_report(run_dir))


def main(argv: list[str] | None = None) -> int:
    return run_app(app, argv, name="envsdk report")


if __name__ == "__main__":
    sys.exit(main())
