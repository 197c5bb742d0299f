"""Ray's folder of logs and sockets on this machine, one per start, below Ray's temporary folder.

made by Ray -> held -> removed (the run ended well, or was interrupted)
                    -> left (the run failed, or was killed) -> swept by a later start
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

from envsdk.base.store.file_lock import locked
from envsdk.contracts.failures import Interrupted

LOCK = "envsdk.lock"
"""In the folder of a Ray that this package started; locked while the program lives that started it."""
KEPT_FOLDERS = 3
"""How many of the folders that are left stay, the newest: their logs may still be read."""


@contextmanager
def held_session(folder: Path) -> Iterator[None]:
    """Hold Ray's folder during the block, and remove it afterwards unless the block fails.

    Also removes the older folders that failed and killed programs left.
    """
    with locked(folder / LOCK, patience_s=0):
        sweep(folder.parent)
        try:
            yield
        except Interrupted:
            remove(folder)
            raise
        remove(folder)


def sweep(sessions: Path) -> None:
    """Remove the folders that dead programs left, except the newest."""
    left = [lock for lock in sessions.glob(f"session_*/{LOCK}") if _is_left(lock)]
    for lock in sorted(left, key=lambda lock: lock.parent.name, reverse=True)[KEPT_FOLDERS:]:
        shutil.rmtree(lock.parent, ignore_errors=True)


def _is_left(lock: Path) -> bool:
    """Whether the program is gone: by its pid, which Ray puts into the name, and by its lock.

    The lock tells of programs in containers with pids of their own; some file systems have no locks.
    """
    pid = lock.parent.name.rpartition("_")[2]
    if lock.parent.is_symlink() or (pid.isdigit() and psutil.pid_exists(int(pid))):
        return False
    with suppress(OSError), locked(lock, patience_s=0):
        return True
    return False


def remove(folder: Path) -> None:
    """Remove Ray's folder, and the link to the newest one if it leads there."""
    latest = folder.parent / "session_latest"
    with suppress(OSError):
        if latest.resolve() == folder.resolve():
            latest.unlink()
    shutil.rmtree(folder, ignore_errors=True)
