"""A lock that is released when its process ends, for whatever reason."""

from __future__ import annotations

import errno
import fcntl
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_NO_LOCKS = {errno.ENOSYS, errno.ENOTSUP, errno.ENOLCK}
"""Errors of file systems without locks; there, nothing is locked."""
_LOOK_EVERY_S = 0.05


@contextmanager
def locked(path: Path, *, patience_s: float) -> Iterator[None]:
    """Hold the lock file `path`, created if needed; BlockingIOError when another process holds it."""
    with path.open("w") as file:
        wait_for_lock(file.fileno(), fcntl.LOCK_EX, patience_s)
        yield


def wait_for_lock(descriptor: int, kind: int, patience_s: float) -> None:
    """`fcntl.flock`, retried for some seconds; then BlockingIOError."""
    deadline = time.monotonic() + patience_s
    while True:
        try:
            fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if time.monotonic() > deadline:
                raise
            time.sleep(_LOOK_EVERY_S)
        except OSError as error:
            if error.errno not in _NO_LOCKS:
                raise
            return
