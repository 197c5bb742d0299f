"""Ends processes together with their descendants."""

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
    """Kill a process and its descendants. It is stopped first, so that it cannot start more."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGSTOP)
        kill_descendants(pid)
        os.kill(pid, signal.SIGKILL)


def kill_descendants(pid: int) -> None:
    """Kill the descendants of a process until none is left."""
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
    """Whether it has memory: zombies have none, nor has a namespace's first process that waits for them."""
    try:
        return bool(process.memory_info().vms)
    except psutil.NoSuchProcess:
        return False


def adopt_orphans() -> None:
    """Make orphaned descendants children of this process. Linux only; elsewhere they are lost."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def die_with_parent() -> None:
    """End this process when its parent ends, even in the middle of a call."""
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    parent = multiprocessing.parent_process()
    if parent is not None:

        def wait() -> None:
            parent.join()
            os._exit(1)

        # For systems whose kernel cannot do it, and in case the parent has already ended.
        threading.Thread(target=wait, name="envsdk-parent", daemon=True).start()


def _prctl(option: int, value: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)
