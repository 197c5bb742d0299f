"""Files and folders that other machines need, and that may lie on the driver's machine alone.

    driver_files = DriverFiles.of([model], reader)   # on the driver's machine; for the setups of processes
    driver_files.here(model)                         # anywhere: this path if it holds the same, or a copy

A copy is made once per machine, by the first process that needs it, in `travelled/DIGEST/` of the cache
folder. It is complete or absent. Copies that no process has used for `KEEP_DAYS` are removed when another
one is made.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from envsdk.base.settings.problems import leaves
from envsdk.base.store.atomic import make_folder, remove_folder, replaced_folder
from envsdk.base.store.cache import cache_folder
from envsdk.base.store.file_lock import locked, wait_for_lock
from envsdk.contracts.failures import StorageError

CHUNK_BYTES = 16 * 1024**2
KEEP_DAYS = 14.0
MAX_FILES = 100_000
_END_BYTES = 1 << 20
_PATIENCE_S = 6 * 3600.0
"""For another process of this machine that is fetching the same."""
_held: dict[Path, int] = {}
"""Locks of the copies that this process uses, until it ends."""


class Reader(Protocol):
    """Reads files of the driver's machine, from any other. Picklable."""

    def read(self, path: Path, offset: int, size: int) -> bytes:
        """At most `size` bytes from `offset` on. OSError as `open` and `read` raise it."""
        ...


class FileServer:
    """A `Reader` of what its process may read; the body of an actor on the machine that has the files."""

    def read(self, path: Path, offset: int, size: int) -> bytes:
        """At most `size` bytes from `offset` on."""
        with path.open("rb") as file:
            file.seek(offset)
            return file.read(size)


@dataclass(frozen=True, slots=True)
class PathContents:
    """What a file or a folder on the driver's machine holds."""

    path: Path
    """Absolute."""
    files: tuple[tuple[str, int], ...]
    """Names relative to `path` with their sizes in bytes; the name of a single file is empty."""
    digest: str
    """Digest of names, sizes, and the first and last MiB of each file."""

    @property
    def num_bytes(self) -> int:
        return sum(size for _, size in self.files)

    @classmethod
    def of(cls, path: Path) -> PathContents | None:
        """None when there is no such file or folder, or one of very many files."""
        try:
            files = tuple(_files(path))
            if not files or len(files) > MAX_FILES:
                return None
            digest = hashlib.sha256()
            for name, size in files:
                digest.update(f"{name}\0{size}\0".encode())
                _digest_ends(path / name if name else path, size, digest)
        except OSError:
            return None
        return cls(path, files, digest.hexdigest()[:32])

    def here(self, reader: Reader) -> Path:
        """Where this machine has it: at the same path, or as a copy, which is fetched if need be. Blocks.

        StorageError when it cannot be fetched.
        """
        folder = cache_folder() / "travelled"
        try:
            make_folder(folder)
        except StorageError:
            if self._is_here(None):
                return self.path
            raise
        copy = folder / self.digest
        with locked(folder / f".{self.digest}.lock", patience_s=_PATIENCE_S):
            if self._is_here(folder / f".{self.digest}.same"):
                return self.path
            _use(copy)
            if not copy.is_dir():
                self._fetch(copy, reader)
                _remove_unused(folder)
        os.utime(copy)
        return copy / self.path.name

    def _is_here(self, stamp: Path | None) -> bool:
        """Whether the path holds the same files here; `stamp` spares all processes but one the reading."""
        try:
            if tuple(_files(self.path)) != self.files:
                return False
            times = [(self.path / name if name else self.path).stat().st_mtime_ns for name, _ in self.files]
        except OSError:
            return False
        seen = hashlib.sha256(repr((self.path, times)).encode()).hexdigest()
        if stamp is not None and stamp.is_file() and stamp.read_text() == seen:
            return True
        there = PathContents.of(self.path)
        if there is None or there.digest != self.digest:
            return False
        if stamp is not None:
            stamp.write_text(seen)
        return True

    def _fetch(self, copy: Path, reader: Reader) -> None:
        with replaced_folder(copy, "copy from the driver's machine to") as partial:
            root = partial / self.path.name
            for name, size in self.files:
                source, target = (self.path / name, root / name) if name else (self.path, root)
                target.parent.mkdir(parents=True, exist_ok=True)
                with target.open("wb") as file:
                    for chunk in _chunks(reader, source, size):
                        file.write(chunk)
            fetched = PathContents.of(root)
            if fetched is None or fetched.digest != self.digest:
                raise StorageError(
                    f"{self.path} changed on the driver's machine while it was copied: start the run again"
                )


@dataclass(frozen=True, slots=True)
class DriverFiles:
    """What may have to travel in one run, by the path on the driver's machine. Empty: nothing."""

    by_path: Mapping[str, PathContents] = field(default_factory=dict)
    """Contents by the path as it is written."""
    reader: Reader | None = None

    @classmethod
    def of(cls, paths: Iterable[str | Path], reader: Reader) -> DriverFiles:
        """Those of the paths that lead to files or folders; relative ones count from here."""
        found = {str(path): PathContents.of(Path(path).expanduser().absolute()) for path in paths}
        return cls({path: contents for path, contents in found.items() if contents is not None}, reader)

    def here(self, path: Path) -> Path:
        """The path on this machine; as it is when nothing is known of it. Blocks. StorageError."""
        contents = self.by_path.get(str(path))
        if contents is None or self.reader is None:
            return path
        return contents.here(self.reader)

    def here_in(self, value: Any) -> Any:
        """The same settings with paths on this machine. Blocks. StorageError."""
        if isinstance(value, str) and value in self.by_path:
            return str(self.here(Path(value)))
        if isinstance(value, Mapping):
            return {key: self.here_in(each) for key, each in value.items()}
        if isinstance(value, list | tuple):
            return type(value)(self.here_in(each) for each in value)
        return value


def paths_in(value: Any) -> Iterator[str]:
    """Texts in settings that look like paths: they have a `/` or a suffix."""
    for _, text in leaves(value, in_lists=True):
        if not isinstance(text, str) or "\n" in text or len(text) >= 4096:
            continue
        if "/" in text.strip("/") or Path(text).suffix:
            yield text


def _files(path: Path) -> Iterator[tuple[str, int]]:
    if path.is_file():
        yield "", path.stat().st_size
        return
    number = 0
    for folder, names, files in os.walk(path, onerror=_raise):
        names.sort()
        for name in sorted(files):
            file = Path(folder) / name
            if file.is_file():
                yield str(file.relative_to(path)), file.stat().st_size
                if (number := number + 1) > MAX_FILES:
                    return


def _raise(error: OSError) -> None:
    raise error


def _digest_ends(path: Path, size: int, digest: Any) -> None:
    with path.open("rb") as file:
        digest.update(file.read(_END_BYTES))
        if size > _END_BYTES:
            file.seek(max(size - _END_BYTES, _END_BYTES))
            digest.update(file.read(_END_BYTES))


def _chunks(reader: Reader, path: Path, size: int) -> Iterator[bytes]:
    offset = 0
    while offset < size:
        chunk = reader.read(path, offset, min(CHUNK_BYTES, size - offset))
        if not chunk:
            raise OSError(f"{path} became shorter")
        offset += len(chunk)
        yield chunk


def _use(copy: Path) -> None:
    """Keep others from removing the copy while this process lives."""
    if copy not in _held:
        descriptor = os.open(_use_lock(copy), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        wait_for_lock(descriptor, fcntl.LOCK_SH, _PATIENCE_S)
        _held[copy] = descriptor


def _use_lock(copy: Path) -> Path:
    return copy.with_name(f".{copy.name}.used")


def _remove_unused(folder: Path) -> None:
    oldest = time.time() - KEEP_DAYS * 24 * 3600
    for copy in folder.iterdir():
        if copy.name.startswith(".") or copy.stat().st_mtime > oldest:
            continue
        with suppress(BlockingIOError), locked(_use_lock(copy), patience_s=0.0):
            remove_folder(copy)
