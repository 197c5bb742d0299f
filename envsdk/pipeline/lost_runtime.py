"""Ends a run whose Ray died: writes the report and says what died.

    python -m envsdk.pipeline.lost_runtime RUN_FOLDER SENTENCE

It takes the place of the process that trained (`ray_runtime`), of which nothing can be relied on any more.
"""

from __future__ import annotations

import sys
from pathlib import Path

from envsdk.display.command_line import run_command
from envsdk.failures import EnvsdkError


@run_command
def main(argv: list[str]) -> None:
    from envsdk.view.export import write_report_of_job

    folder, what_died = Path(argv[0]), argv[1]
    write_report_of_job(folder)
    raise EnvsdkError(
        f"{what_died}. The checkpoints and batches in {folder} are whole: the same command continues from "
        "them, here or wherever that folder is"
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
