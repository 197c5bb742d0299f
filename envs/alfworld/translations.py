"""What the planner's translator makes of a game, kept on disk by content: the slow part of loading one.

    store = TranslationStore(folder, translate)
    translation = store.get(domain, problem)     # from disk, or by `translate` and then on disk

Files are compressed JSON, written to a temporary file and renamed; any number of processes share a folder. A
damaged file is made again. When the folder passes its limit, the files used longest ago go.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import zlib
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from envsdk.base.store.atomic import write_atomically
from envsdk.contracts.failures import StorageError

_FORMAT = 1
_TRIM_EVERY_WRITES = 200
_TRIM_TO = 0.8
_COMPRESSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Translation:
    """A PDDL task as far as TextWorld looks at it, and its translation for the planner's library."""

    sas: str
    actions: Sequence[tuple[str, Sequence[tuple[str, str]]]]
    """Name, and name and type of each parameter."""
    types: Sequence[tuple[str, Sequence[str]]]
    """Name and supertypes."""
    objects: Sequence[tuple[str, str]]
    """Name and type."""
    facts: Sequence[tuple[str, Sequence[str]]]
    """What holds at first: predicate and arguments."""

    def encode(self) -> bytes:
        return zlib.compress(json.dumps(asdict(self), separators=(",", ":")).encode(), _COMPRESSION)

    @classmethod
    def decode(cls, data: bytes) -> Translation:
        """Raises ValueError (or a subclass) when `data` is no translation."""
        try:
            fields = json.loads(zlib.decompress(data))
            return cls(**fields)
        except (zlib.error, TypeError) as error:
            raise ValueError(f"no translation: {error}") from error


Translate = Callable[[str, str], Translation]


class TranslationStore:
    """Translations by the content of what they are made from."""

    def __init__(self, folder: Path | None, translate: Translate, *, version: str, limit_mb: int) -> None:
        """
        Args:
            folder: Where files are kept; None keeps none.
            translate: Makes a translation from the domain's and the problem's text.
            version: Of all that decides what `translate` returns.
            limit_mb: Size that the folder is held to.
        """
        self._folder = folder
        self._translate = translate
        self._version = version
        self._limit = limit_mb << 20
        self._num_writes = 0

    def get(self, domain: str, problem: str) -> Translation:
        if self._folder is None:
            return self._translate(domain, problem)
        path = self._path(self._folder, domain, problem)
        with contextlib.suppress(OSError, ValueError):
            translation = Translation.decode(path.read_bytes())
            os.utime(path)
            return translation
        translation = self._translate(domain, problem)
        # A cache that cannot be written (a full disk, a read-only home) makes games slower, not impossible.
        with contextlib.suppress(OSError, StorageError):
            path.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(path, translation.encode())
            self._num_writes += 1
            if self._num_writes % _TRIM_EVERY_WRITES == 0:
                trim(path.parent, self._limit)
        return translation

    def _path(self, folder: Path, domain: str, problem: str) -> Path:
        digest = hashlib.blake2b(digest_size=16)
        for part in (str(_FORMAT), self._version, domain, problem):
            digest.update(len(part).to_bytes(8, "big"))
            digest.update(part.encode())
        return folder / f"{digest.hexdigest()}.json.z"


def trim(folder: Path, limit: int) -> None:
    """Delete the files of `folder` that were used longest ago until it holds well under `limit` bytes."""
    files = []
    for entry in os.scandir(folder):
        with contextlib.suppress(OSError):
            status = entry.stat()
            files.append((status.st_mtime, status.st_size, entry.path))
    size = sum(size for _, size, _ in files)
    if size <= limit:
        return
    for _, bytes_freed, path in sorted(files):
        with contextlib.suppress(OSError):
            os.unlink(path)
        size -= bytes_freed
        if size <= _TRIM_TO * limit:
            return
