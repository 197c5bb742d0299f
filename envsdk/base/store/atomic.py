"""Files that are complete or absent, also after a crash or on a full disk.

    write a temporary file -> flush -> fsync(file) -> rename over the target -> fsync(folder)

A reader never sees a part of a file. A writer that is killed leaves at most a hidden
`.NAME.*.tmp` in the target's folder, which `remove_leftovers` deletes.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO
from uuid import uuid4

from envsdk.contracts.failures import ConfigurationError, StorageError

_ADVICE = {
    errno.ENOSPC: "The disk is full: free some space, or write to another disk.",
    errno.EDQUOT: "The disk quota is used up: free some space, or write to another disk.",
    errno.EFBIG: "The file is larger than the file system or the process limit allows: write smaller files.",
    errno.EACCES: "Permission denied: change the folder's permissions or choose another one.",
    errno.EPERM: "Permission denied: change the folder's permissions or choose another one.",
    errno.EROFS: "The file system is read-only: choose another folder.",
    errno.ENOTDIR: "A part of the path is a file, not a folder: choose another folder.",
    errno.ENAMETOOLONG: "The path is too long: choose a shorter one.",
    errno.EISDIR: "The path is a folder: choose another file name.",
}


def storage_error(action: str, path: Path, error: OSError) -> StorageError:
    """What went wrong with `path` and what to do, for example `storage_error("write", path, error)`."""
    reason = error.strerror or str(error)
    advice = _ADVICE.get(error.errno or 0, "Check the disk and the path.")
    return StorageError(f"Cannot {action} {path}: {reason}. {advice}")


def make_folder(path: Path) -> None:
    """Create `path` and its parents and make sure files can be written there; StorageError otherwise."""
    try:
        path.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=path, prefix=".probe.", suffix=".tmp"):
            pass
    except FileExistsError:
        raise StorageError(
            f"Cannot write into {path}: it is a file, not a folder. Choose another folder."
        ) from None
    except OSError as error:
        raise storage_error("write into", path, error) from error


@contextmanager
def atomic_file(path: Path) -> Iterator[BinaryIO]:
    """A binary file that takes the place of `path` when the block ends well, and vanishes otherwise.

    An OSError in the block or while finishing becomes a StorageError naming `path`. When this
    returns, the content is on the disk.
    """
    temporary: Path | None = None
    try:
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".tmp")
        temporary = Path(name)
        with os.fdopen(handle, "wb") as file:
            yield file
            file.flush()
            os.fchmod(file.fileno(), 0o666 & ~_umask())
            os.fsync(file.fileno())
        os.replace(temporary, path)
        temporary = None
        fsync_path(path.parent)
    except OSError as error:
        raise storage_error("write", path, error) from error
    finally:
        if temporary is not None:
            with suppress(OSError):
                temporary.unlink()


@contextmanager
def new_folder(path: Path) -> Iterator[Path]:
    """A folder to fill that becomes `path` when the block ends well, and vanishes otherwise.

    ConfigurationError where `path` holds something already: nothing is overwritten.
    """
    path = path.resolve()
    taken = ConfigurationError(f"{path} is there already: choose another name, or delete it first")
    if path.exists() and not (path.is_dir() and next(path.iterdir(), None) is None):
        raise taken
    make_folder(path.parent)
    unfinished = path.parent / f".{path.name}.{uuid4().hex[:8]}.tmp"
    try:
        unfinished.mkdir()
        yield unfinished
        fsync_path(unfinished)
        os.rename(unfinished, path)
        fsync_path(path.parent)
    except OSError as error:
        if error.errno in (errno.ENOTEMPTY, errno.EEXIST):
            raise taken from error
        raise storage_error("write", path, error) from error
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


@contextmanager
def replaced_folder(path: Path, action: str = "write") -> Iterator[Path]:
    """A folder to fill that takes the place of `path` when the block ends well, and vanishes otherwise.

    One process writes `path`; the block forces its files onto the disk. An OSError becomes the StorageError
    of `action`.
    """
    partial = path.with_name(f".{path.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    try:
        partial.mkdir()
        yield partial
        remove_folder(path)
        partial.rename(path)
        fsync_path(path.parent)
    except OSError as error:
        raise storage_error(action, path, error) from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)


@contextmanager
def made_once(path: Path) -> Iterator[Path]:
    """A folder to fill that becomes `path` when the block ends well. What lies beside it vanishes.

    Where several processes make the same one, the first stays. An OSError becomes a StorageError.
    """
    make_folder(path.parent)
    try:
        with tempfile.TemporaryDirectory(dir=path.parent, prefix=f".{path.name}.") as temporary:
            made = Path(temporary) / "made"
            made.mkdir()
            yield made
            move_once(made, path)
    except OSError as error:
        raise storage_error("write", path, error) from error


def move_once(made: Path, path: Path) -> None:
    """Move the folder `made` to `path`, unless another process has put one there meanwhile."""
    made.chmod(0o755)
    try:
        os.rename(made, path)
    except OSError:
        if not path.is_dir():
            raise


def remove_folder(path: Path) -> None:
    """Remove a folder that may be there; never leaves a part of it under its name."""
    removed = path.with_name(f".{path.name}.removed")
    with suppress(FileNotFoundError):
        path.rename(removed)
        shutil.rmtree(removed, ignore_errors=True)


def write_atomically(path: Path, data: bytes) -> None:
    """Put `data` in the place of `path`, atomically."""
    with atomic_file(path) as file:
        file.write(data)


def write_json_atomically(path: Path, value: Any) -> None:
    """Put `value` as readable JSON in the place of `path`, atomically."""
    write_atomically(path, (json.dumps(value, indent=2, ensure_ascii=False) + "\n").encode())


def fsync_tree(folder: Path) -> None:
    """Force a folder and all below it onto the disk. OSError when the disk is full."""
    for path in folder.rglob("*"):
        fsync_path(path)
    fsync_path(folder)


def fsync_path(path: Path) -> None:
    """Force a file, or a folder's list of names, onto the disk. OSError when the disk is full."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def remove_leftovers(folder: Path, names: str = "*") -> None:
    """Delete what killed writers left of files with such names; call it only while nobody writes those."""
    for path in folder.glob(f".{names}.tmp"):
        with suppress(OSError):
            path.unlink()


_reading_mask = threading.Lock()


def _umask() -> int:
    # mkstemp makes private files; reading the mask means setting it, so it is put back at once.
    with _reading_mask:
        mask = os.umask(0o022)
        os.umask(mask)
    return mask
