"""Copies of hidden tests, and the doors of harnesses, outlive no process for long."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

HOLDS = """
import asyncio, sys
from envsdk.rewards.sandbox.scratch import scratch_folder

async def hold():
    async with scratch_folder() as folder:
        print(folder, flush=True)
        sys.stdin.read()

asyncio.run(hold())
"""


def held(temporary: Path) -> tuple[subprocess.Popen[str], Path]:
    """A process that holds a folder with a file in it."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDS],
        env={**os.environ, "TMPDIR": str(temporary)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    folder = Path(process.stdout.readline().strip())
    (folder / "test_hidden.py").write_text("secret")
    return process, folder


@pytest.mark.system
def test_what_a_killed_process_left_is_swept_by_the_next_and_what_a_living_one_holds_is_not(
    tmp_path: Path,
) -> None:
    killed, left = held(tmp_path)
    killed.send_signal(signal.SIGKILL)
    killed.communicate()
    assert left.is_dir()
    living, kept = held(tmp_path)
    last, other = held(tmp_path)
    assert not left.exists()
    assert kept.is_dir()
    assert other.is_dir()
    for process in (living, last):
        process.communicate()
        assert process.returncode == 0
    assert not list(tmp_path.rglob("*hidden*"))
