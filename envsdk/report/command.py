"""`python -m envsdk.report RUN_DIR`: write the report of a run, finished or not."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from envsdk.failures import EnvsdkError
from envsdk.report.page import write_report


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m envsdk.report",
        description="Write RUN_DIR/report.html: one file, readable offline, of a finished or a running run.",
    )
    parser.add_argument(
        "run_dir", metavar="RUN_DIR", type=Path, help="a run's folder, such as runs/agentic_async"
    )
    arguments = parser.parse_args(argv)
    try:
        path = write_report(arguments.run_dir)
    except EnvsdkError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    print(path)
    return 0
