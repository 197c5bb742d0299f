"""Folders that a process holds, so that the next one can sweep what a killed one left.

state_dir/                mode 0711, this user's
    LEASE/                one per backend
        .lease            locked (flock) while its holder lives; the kernel unlocks it however it dies
        ...               what the backend keeps, sandboxes included

free -> held -> released (deleted)
             -> orphaned (the holder died) -> swept at the next start
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import secrets
import select
import signal
import stat
import subprocess
from collections.abc import Callable
from pathlib import Path

from envsdk.rewards.sandbox.contract import SandboxUnavailable

log = logging.getLogger(__name__)

LOCK = ".lease"
GONE_TIMEOUT_S = 20.0
"""How long to wait for each killed process."""

MARK = "ENVSDK_SANDBOX_LEASE"
"""Variable in the environment of every process a backend starts, outside its sandboxes: its lease's name."""


class Lease:
    """One held folder."""

    def __init__(self, state_dir: Path) -> None:
        """Make and hold a folder in `state_dir`.

        Raises SandboxUnavailable: `state_dir` cannot be made or belongs to somebody else.
        """
        prepare(state_dir)
        while (held := _new_lock(state_dir)) is None:
            pass
        self.folder, self._lock = held
        self.name = self.folder.name
        self._held = True

    def release(self) -> None:
        """Delete the folder with all that is in it."""
        if self._held:
            self._held = False
            delete(self.folder)
            os.close(self._lock)


def _new_lock(state_dir: Path) -> tuple[Path, int] | None:
    """A new folder and the descriptor that locks it; None: a sweep took it for a dead one's before it was."""
    folder = state_dir / secrets.token_hex(6)
    folder.mkdir(mode=0o711)
    try:
        folder.chmod(0o711)
        lock = os.open(folder / LOCK, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    except FileNotFoundError:
        return None
    fcntl.flock(lock, fcntl.LOCK_EX)
    if os.fstat(lock).st_nlink:
        return folder, lock
    os.close(lock)
    return None


def prepare(state_dir: Path) -> None:
    """Make `state_dir`, passable for other users but not readable.

    Raises SandboxUnavailable: it cannot be made or belongs to somebody else.
    """
    try:
        state_dir.mkdir(mode=0o711, parents=True, exist_ok=True)
        found = state_dir.lstat()
    except OSError as error:
        raise SandboxUnavailable(
            f"the sandboxes' folder {state_dir} cannot be made: {error}; set `state_dir`"
        ) from error
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
        raise SandboxUnavailable(
            f"the sandboxes' folder {state_dir} is no folder of this user's: delete it or set `state_dir`"
        )
    state_dir.chmod(0o711)


def sweep(state_dir: Path, also: Callable[[Path], None] = lambda folder: None) -> int:
    """Kill and delete what dead holders left in `state_dir`; returns how many of their folders there were.

    `also` is called with each folder before it is deleted.
    """
    swept = 0
    for folder in state_dir.iterdir() if state_dir.is_dir() else ():
        try:
            lock = os.open(folder / LOCK, os.O_RDWR | os.O_CLOEXEC)
        except OSError:
            continue
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            kill_marked(folder.name)
            also(folder)
            delete(folder)
            swept += 1
        except BlockingIOError:
            pass
        finally:
            os.close(lock)
    if swept:
        log.info("swept the sandboxes of %d processes that had died", swept)
    return swept


def kill_marked(lease: str) -> int:
    """Kill every process that bears the lease's mark, and wait until they are gone; returns their number.

    The first process of every sandbox bears it too, and all others inside end before it does.
    """
    mark = f"{MARK}={lease}".encode()
    ending = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        with contextlib.suppress(OSError):
            if mark in (entry / "environ").read_bytes().split(b"\0"):
                ending.append(os.pidfd_open(int(entry.name)))
                signal.pidfd_send_signal(ending[-1], signal.SIGKILL)
    for handle in ending:
        select.select([handle], [], [], GONE_TIMEOUT_S)
        os.close(handle)
    return len(ending)


def delete(folder: Path) -> None:
    """Delete a tree, however deep, also where its folders are closed to their owner.

    A lease's own file goes last, so that what could not be deleted is swept another time.
    """
    if folder.exists() and _remove([str(path) for path in folder.iterdir() if path.name != LOCK]):
        _remove([str(folder)])


def _remove(paths: list[str]) -> bool:
    if not paths:
        return True
    removal = ["rm", "-rf", "--one-file-system", "--", *paths]
    done = subprocess.run(removal, check=False, capture_output=True)
    if done.returncode and os.geteuid():
        # Root of a user namespace passes the modes of this user's own files.
        done = subprocess.run(["unshare", "-Ur", "--", *removal], check=False, capture_output=True)
    if done.returncode:
        log.warning("could not delete %s: %s", paths[0], done.stderr.decode(errors="replace").strip()[:500])
    return not done.returncode
