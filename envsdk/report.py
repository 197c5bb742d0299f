"""`envsdk report RUN_DIR`: write the report of a run, finished or not."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

from envsdk.base.display.model_command import command_of
from envsdk.base.display.terminal import say
from envsdk.base.settings.options import Argument, Options


class ReportOptions(Options):
    """What `envsdk report` takes."""

    run_dir: Annotated[Path, Argument("RUN_DIR")]
    """A run's folder, such as runs/agentic_async."""


def report(options: ReportOptions) -> None:
    """Write RUN_DIR/report.html: one file, readable offline, of a run that is over or still going on."""
    from envsdk.view.export import write_report

    say(write_report(options.run_dir))


app, main = command_of(ReportOptions, report, name="envsdk report")

if __name__ == "__main__":
    sys.exit(main())
