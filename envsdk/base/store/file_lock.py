"""A lock that is released when its process ends, for whatever reason."""

from __future__ import annotations

import errno
import fcntl
import math
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from envsdk.base.store.atomic import storage_error
from envsdk.contracts.failures import EnvsdkError

_NO_LOCKS = {errno.ENOSYS, errno.ENOTSUP, errno.ENOLCK}
"""Errors of file systems without locks; there, nothing is locked."""
_LOOK_EVERY_S = 0.05


@contextmanager
def locked(path: Path, *, patience_s: float, taken: EnvsdkError | None = None) -> Iterator[None]:
    """Hold the lock file `path`, created if needed.

    Raises `taken`, or else BlockingIOError, when another process holds it.
    """
    with path.open("w") as file:
        try:
            wait_for_lock(file.fileno(), fcntl.LOCK_EX, patience_s)
        except BlockingIOError:
            if taken is None:
                raise
            raise taken from None
        yield


@contextmanager
def held_to_make(path: Path, on_wait: Callable[[], None]) -> Iterator[None]:
    """Hold the lock file `path` while making what other processes may want too. StorageError.

    `on_wait` is called first where another process is making it.
    """
    with ExitStack() as stack:
        try:
            file = stack.enter_context(path.open("w"))
            try:
                wait_for_lock(file.fileno(), fcntl.LOCK_EX, 0.0)
            except BlockingIOError:
                on_wait()
                wait_for_lock(file.fileno(), fcntl.LOCK_EX, math.inf)
        except OSError as error:
            raise storage_error("lock", path, error) from error
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
