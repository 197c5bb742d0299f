"""Ends processes with everything that they started."""

from __future__ import annotations

import contextlib
import ctypes
import multiprocessing
import os
import signal
import sys
import threading

import psutil

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36


def kill_tree(pid: int) -> None:
    """Kill a process and its descendants. It is stopped first, so that it starts nothing more."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGSTOP)
        kill_descendants(pid)
        os.kill(pid, signal.SIGKILL)


def kill_descendants(pid: int) -> None:
    """Kill what a process started, and what came of that, until nothing is left."""
    while alive := _living_descendants(pid):
        for each in alive:
            with contextlib.suppress(ProcessLookupError):
                os.kill(each, signal.SIGKILL)


def _living_descendants(pid: int) -> list[int]:
    try:
        children = psutil.Process(pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return []
    return [child.pid for child in children if _is_alive(child)]


def _is_alive(process: psutil.Process) -> bool:
    try:
        return bool(process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def adopt_orphans() -> None:
    """Make the orphans of this process's descendants its children (Linux; elsewhere they are lost)."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def die_with_parent() -> None:
    """Let this process end when the one that started it does, whatever runs in it then."""
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    parent = multiprocessing.parent_process()
    if parent is not None:

        def wait() -> None:
            parent.join()
            os._exit(1)

        # Where the kernel does not do it, or the parent has ended already.
        threading.Thread(target=wait, name="envsdk-parent", daemon=True).start()


def _prctl(option: int, value: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)
