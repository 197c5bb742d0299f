"""An append-only file that stays readable when the process dies at any moment.

    open -> append* -> close

The owner decides what a complete record is and removes a torn one before it appends (`truncate`).
"""

from __future__ import annotations

import os
from pathlib import Path
from threading import Lock

from envsdk.base.store.atomic import storage_error


class AppendFile:
    """Appends records; either all bytes of a record reach the file or none. Thread-safe."""

    def __init__(self, path: Path, *, durable: bool = False) -> None:
        """`durable`: fsync after each record, so that it survives a power cut and not only a kill."""
        self.path = path
        self._durable = durable
        self._lock = Lock()
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._descriptor: int | None = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
        except OSError as error:
            raise storage_error("write", path, error) from error

    def append(self, record: bytes) -> None:
        """Write one record. On a full disk, removes what it wrote and raises StorageError."""
        with self._lock:
            descriptor = self._open_descriptor()
            size = os.fstat(descriptor).st_size
            view = memoryview(record)
            try:
                while view:
                    view = view[os.write(descriptor, view) :]
                if self._durable:
                    os.fsync(descriptor)
            except OSError as error:
                os.ftruncate(descriptor, size)
                raise storage_error("write", self.path, error) from error

    def read(self) -> bytes:
        """The content of the file."""
        with self._lock:
            descriptor = self._open_descriptor()
            return os.pread(descriptor, os.fstat(descriptor).st_size, 0)

    def truncate(self, size: int) -> None:
        """Cut the file to its first `size` bytes."""
        with self._lock:
            os.ftruncate(self._open_descriptor(), size)

    def close(self) -> None:
        """Idempotent."""
        with self._lock:
            if self._descriptor is not None:
                os.close(self._descriptor)
                self._descriptor = None

    def _open_descriptor(self) -> int:
        if self._descriptor is None:
            raise ValueError(f"{self.path} is closed")
        return self._descriptor
