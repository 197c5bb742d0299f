"""Ends a program whose Ray died: writes the report of its run, if it has one, and says what died.

    python -m envsdk.runs.lost_runtime REPORT_FOLDER ADVICE SENTENCE        REPORT_FOLDER may be empty

It takes the place of that program (`ray_runtime`), of which nothing can be relied on any more.
"""

from __future__ import annotations

import sys
from pathlib import Path

from envsdk.base.display.command_line import run_command
from envsdk.contracts.failures import EnvsdkError


def lost_runtime(advice: str, *, report_of: Path | None = None) -> list[str]:
    """The command line for `ray_runtime`'s `if_lost`; `advice` says how to go on."""
    folder = "" if report_of is None else str(report_of)
    return [sys.executable, "-m", "envsdk.runs.lost_runtime", folder, advice]


@run_command
def main(argv: list[str]) -> None:
    from envsdk.view.export import write_report_of_job

    folder, advice, what_died = argv
    if folder:
        write_report_of_job(Path(folder))
    raise EnvsdkError(f"{what_died}. {advice}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
