"""Copies of the planner's library, each of which holds one loaded game.

They are never unloaded, since unloading one breaks the others: one that no game needs is kept for the next.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import tempfile
from contextlib import suppress
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

import fast_downward.interface


class LibraryPool:
    """Copies that are not in use."""

    def __init__(self) -> None:
        self._unused: list[Any] = []

    def take(self) -> Any:
        return self._unused.pop() if self._unused else self._load()

    def put_back(self, library: Any) -> None:
        library.cleanup()
        self._unused.append(library)

    def _load(self) -> Any:
        """A copy of its own: the loader shares those of one file. The file can go at once."""
        library = fast_downward.load_lib()
        library.get_state_id.restype = ctypes.c_int
        library.get_state_id.argtypes = []
        library.set_state_id.restype = None
        library.set_state_id.argtypes = [ctypes.c_int]
        return library


def strip_library(folder: Path) -> None:
    """Have copies made of a library without debugging symbols, made in `folder` if need be: 1 MB, not 34."""
    original = Path(fast_downward.interface.DOWNWARD_LIB_PATH)
    status = original.stat()
    stripped = folder / f"libdownward-{engine_version()}-{status.st_size}-{int(status.st_mtime)}.so"
    if not stripped.exists():
        strip = shutil.which("strip")
        if strip is None:
            return
        folder.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=folder, prefix=".", suffix=".tmp")
        os.close(handle)
        try:
            subprocess.run([strip, "-o", temporary, original], check=True, capture_output=True)
            os.replace(temporary, stripped)
        except (OSError, subprocess.CalledProcessError):
            with suppress(OSError):
                os.unlink(temporary)
            return
    fast_downward.interface.DOWNWARD_LIB_PATH = str(stripped)


@cache
def engine_version() -> str:
    return "-".join(version(name) for name in ("fast_downward_textworld", "textworld", "alfworld"))
