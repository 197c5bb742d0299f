"""Ending a process with all that it has started."""

from __future__ import annotations

import multiprocessing
import subprocess
import sys
import time

import psutil
import pytest

from envsdk.base.processes.process_tree import kill_tree

NAMESPACE = ("unshare", "--user", "--map-root-user", "--pid", "--fork")
HAS_NAMESPACES = sys.platform == "linux" and not subprocess.run((*NAMESPACE, "true"), check=False).returncode

# A first process of a namespace, and one that joins it: dead, it is left to the process that adopts orphans.
PROGRAM = f"""
import subprocess, time
from envsdk.base.processes.process_tree import adopt_orphans
import psutil
adopt_orphans()
outer = subprocess.Popen([*{NAMESPACE!r}, "sleep", "1000"])
def child_of(pid):
    while [each.name() for each in psutil.Process(pid).children()] != ["sleep"]:
        time.sleep(0.01)
    return psutil.Process(pid).children()[0].pid
first = child_of(outer.pid)
joining = ["nsenter", f"--target={{first}}", "--user", "--pid", "--preserve-credentials"]
joined = subprocess.Popen([*joining, "sleep", "1000"])
child_of(joined.pid)
print(flush=True)
time.sleep(1000)
"""


@pytest.mark.skipif(not HAS_NAMESPACES, reason="no namespaces of one's own")
def test_a_namespace_that_waits_for_its_dead_holds_nothing_up() -> None:
    program = subprocess.Popen([sys.executable, "-c", PROGRAM], stdout=subprocess.PIPE)
    assert program.stdout is not None
    program.stdout.readline()
    below = psutil.Process(program.pid).children(recursive=True)
    assert len(below) == 4
    killer = multiprocessing.get_context("fork").Process(target=kill_tree, args=(program.pid,))
    killer.start()
    killer.join(20)
    is_over = killer.exitcode == 0
    killer.kill()
    program.kill()
    program.wait()
    assert is_over
    until = time.monotonic() + 20
    while any(each.is_running() and each.status() != psutil.STATUS_ZOMBIE for each in below):
        assert time.monotonic() < until
        time.sleep(0.01)
