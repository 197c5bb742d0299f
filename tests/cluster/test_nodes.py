"""What a node is made of: it has addresses of its own and ends with whoever made it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tests.cluster.nodes import REPOSITORY, Kind, Space, kind, wait_until

pytestmark = pytest.mark.skipif(kind() is Kind.LOOPBACK, reason="namespaces are refused here")

MAKER = """
import subprocess, time
from tests.cluster.nodes import Space
space = Space()
subprocess.Popen([*space.inside, "sleep", "1000"])
while not space.processes():
    time.sleep(0.01)
print(space.pid, space.processes()[0].pid, flush=True)
time.sleep(1000)
"""


def test_a_space_has_files_links_and_processes_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    space = Space(None, [tmp_path])
    try:
        space.run("ip", "link", "add", "here", "type", "bridge")
        look = ["sh", "-c", f"ls {tmp_path}; ip link show here > /dev/null && echo linked; echo $$"]
        said = subprocess.run(
            [*space.inside, *look], capture_output=True, text=True, check=True
        ).stdout.split()
        assert said[0] == "linked"
        assert int(said[1]) < 20  # processes are counted from 1
        assert not Path("/sys/class/net/here").exists()
    finally:
        space.end()


def test_what_runs_in_a_space_ends_with_a_maker_that_is_killed() -> None:
    maker = subprocess.Popen(
        [sys.executable, "-c", MAKER],
        cwd=REPOSITORY,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
    )
    assert maker.stdout is not None
    pids = [int(word) for word in maker.stdout.readline().split()]
    assert len(pids) == 2
    maker.send_signal(signal.SIGKILL)
    maker.wait()
    wait_until(lambda: not any(psutil.pid_exists(pid) and is_running(pid) for pid in pids))


def is_running(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
