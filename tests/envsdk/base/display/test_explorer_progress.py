"""What an explorer says, and that it goes on when nobody listens."""

from __future__ import annotations

import io
import os
import subprocess
import sys

from rich.console import Console

from envsdk.base.display import explorer_progress
from envsdk.base.display.explorer_progress import ExplorerProgress


def test_counts_are_summed_up_now_and_then(monkeypatch) -> None:
    clock = [0.0]
    monkeypatch.setattr(explorer_progress.time, "monotonic", lambda: clock[0])
    out = io.StringIO()
    progress = ExplorerProgress("a", console=Console(file=out, width=200))
    progress.phase("playing")
    progress.phase("playing")
    counts = {"groups": 2, "episodes": 16, "successes": 4, "failed": 0}
    counts |= {"refused": 0, "dropped": 1, "waited_s": 2.0}
    progress.delivered(3, counts)
    clock[0] = 8.0
    progress.delivered(4, counts | {"dropped": 0})
    assert out.getvalue().splitlines() == [
        "a: playing",
        "a: version 4 | 4 groups | 4 episodes/s | success 25% of 32 | waited for places 50% | 1 dropped",
    ]


def test_an_explorer_whose_output_is_closed_goes_on() -> None:
    script = (
        "from envsdk.base.display.explorer_progress import ExplorerProgress\n"
        "import sys\n"
        "progress = ExplorerProgress('a')\n"
        "[progress.note('text') for _ in range(3)]\n"
        "sys.exit(7)\n"
    )
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run([sys.executable, "-c", script], stdout=writing, stderr=subprocess.PIPE, check=False)
    os.close(writing)
    assert done.returncode == 7, done.stderr
