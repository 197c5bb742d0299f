"""Folders outside the sandboxes, each for one run or episode. The next process sweeps what a killed one left.

first use: sweep, hold a folder -> a run's folder inside it -> deleted ... -> exit: all of it deleted
"""

from __future__ import annotations

import atexit
import contextlib
import os
import tempfile
import threading
from collections.abc import AsyncIterator
from pathlib import Path

from envsdk.rewards.sandbox.bubblewrap import leases
from envsdk.rewards.sandbox.threads import in_thread

_held: tuple[int, leases.Lease] | None = None
_holding = threading.Lock()


@contextlib.asynccontextmanager
async def scratch_folder() -> AsyncIterator[Path]:
    """A new folder, deleted at the end of the block; only this process's user can list it.

    Raises SandboxUnavailable: the folder that holds all of them belongs to another user.
    """
    folder = tempfile.TemporaryDirectory(dir=await in_thread(_folder), prefix="run-")
    try:
        yield Path(folder.name)
    finally:
        await in_thread(folder.cleanup)


def _folder() -> Path:
    """The folder that this process holds; a fork gets one of its own."""
    global _held
    with _holding:
        if _held is None or _held[0] != os.getpid():
            state = Path(tempfile.gettempdir()) / f"envsdk-scratch-{os.geteuid()}"
            leases.sweep(state)
            _held = os.getpid(), leases.Lease(state)
            atexit.register(_release, *_held)
        return _held[1].folder


def _release(holder: int, lease: leases.Lease) -> None:
    if os.getpid() == holder:
        lease.release()
