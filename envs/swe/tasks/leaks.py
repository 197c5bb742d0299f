"""Whether a sandbox shows the answer: copies of the solved source elsewhere on the disk."""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import stat
import zlib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from envsdk.base.store.atomic import make_folder, write_atomically
from envsdk.envs.swe.tasks.patches import parse
from envsdk.envs.swe.tasks.runtime import swe_cache

_MIN_LETTERS = 30
"""Shorter pieces are found by chance."""
_MIN_INDEXED = 8
"""Shorter lines are not in the index: nearly every file has them."""
_MAX_FILE_BYTES = 4 << 20
_MAX_SCRIPT_BYTES = 256 << 10
"""Size of a file whose name has no ending."""
_SUFFIXES = (
    *(".py", ".pyi", ".pyx", ".orig", ".bak", ".rej", ".patch", ".diff", ".in", ".tmpl"),
    *(".txt", ".md", ".rst", ".json", ".toml", ".jsonl", ".html", ".ipynb"),
)


@dataclass(frozen=True, slots=True)
class Piece:
    """One changed place of a solution, with the lines around it."""

    lines: tuple[bytes, ...]
    """Without blank ones and indentation."""

    @property
    def longest(self) -> bytes:
        return max(self.lines, key=len)

    def is_in(self, data: bytes) -> bool:
        """Whether `data` has its lines one after another, however indented, quoted or marked as added."""
        # Most files lack the longest line; this tells fast.
        if self.longest not in data:
            return False
        return b"\n%s\n" % b"\n".join(self.lines) in b"\n%s\n" % b"\n".join(_lines(data))


def pieces(gold_patch: str) -> tuple[Piece, ...]:
    """What only the solved files have: every changed place with the lines around it.

    A file that holds one is a copy of the solution. Places too short to tell are left out.
    """
    found = []
    for patch in parse(gold_patch):
        for hunk in patch.hunks:
            if not any(line.startswith("+") for line in hunk.lines):
                continue
            after = "\n".join(line[1:] for line in hunk.lines if line[:1] in (" ", "+"))
            if len("".join(after.split())) >= _MIN_LETTERS:
                found.append(Piece(tuple(_lines(after.encode(errors="surrogateescape")))))
    return tuple(found)


def _lines(data: bytes) -> Iterator[bytes]:
    for line in data.splitlines():
        if text := line.strip().lstrip(b"+> ").lstrip():
            yield text


def leaks(
    gold_patches: Mapping[str, str],
    folders: Iterable[Path],
    *,
    hidden: Collection[Path] = (),
    indexed: bool = False,
) -> dict[str, list[str]]:
    """Files in `folders` with a piece of a solution, by the key of its patch. A file is read once.

    Args:
        hidden: Folders below them that are passed over.
        indexed: Keep what lines the files have, until one of them changes: later calls read none, unless some
            file has all lines of a piece.
    """
    wanted = {key: pieces(patch) for key, patch in gold_patches.items()}
    found: dict[str, list[str]] = {key: [] for key in wanted}
    if not any(wanted.values()):
        return found
    files = [path for folder in folders for path in _files(folder, hidden)]
    if indexed:
        known = _index(files)
        wanted = {
            key: parts
            for key, all_parts in wanted.items()
            if (parts := tuple(part for part in all_parts if _may_be_in(known, part)))
        }
    for path in files if wanted else ():
        data = _content(path)
        for key, parts in wanted.items():
            if any(part.is_in(data) for part in parts):
                found[key].append(str(path))
    return found


def _content(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""  # closed to this user, or gone: the machine's folders change while they are read


def _may_be_in(known: npt.NDArray[np.uint32], piece: Piece) -> bool:
    sums = np.array([zlib.crc32(line) for line in piece.lines if len(line) >= _MIN_INDEXED], dtype=np.uint32)
    places = np.minimum(np.searchsorted(known, sums), max(0, len(known) - 1))
    return bool(len(known)) and bool((known[places] == sums).all())


def _index(files: Sequence[Path]) -> npt.NDArray[np.uint32]:
    """Sorted check sums of all lines of `files`; kept in the cache by their names, sizes and times."""
    state = hashlib.sha256()
    for path in files:
        with contextlib.suppress(FileNotFoundError):  # the machine's folders change meanwhile
            found = path.lstat()
            state.update(os.fsencode(f"{path} {found.st_size} {found.st_mtime_ns} {found.st_ctime_ns}\n"))
    kept = swe_cache() / "machine" / f"{state.hexdigest()[:24]}.npy"
    if kept.is_file():
        known: npt.NDArray[np.uint32] = np.load(kept)
        return known
    sums = {
        zlib.crc32(line) for path in files for line in _lines(_content(path)) if len(line) >= _MIN_INDEXED
    }
    known = np.sort(np.fromiter(sums, dtype=np.uint32, count=len(sums)))
    make_folder(kept.parent)
    array = io.BytesIO()
    np.save(array, known)
    write_atomically(kept, array.getvalue())
    return known


def _files(folder: Path, hidden: Collection[Path]) -> Iterator[Path]:
    if folder.is_file():
        if _is_looked_at(folder):
            yield folder
        return
    for where, names, files in os.walk(folder):
        names[:] = sorted(
            name for name in names if name not in (".git", "__pycache__") and Path(where, name) not in hidden
        )
        yield from (path for name in sorted(files) if _is_looked_at(path := Path(where, name)))


def _is_looked_at(path: Path) -> bool:
    most = _MAX_FILE_BYTES if path.name.endswith(_SUFFIXES) else _MAX_SCRIPT_BYTES
    if path.suffix and most == _MAX_SCRIPT_BYTES:
        return False
    try:
        found = path.lstat()
    except OSError:
        return False
    return stat.S_ISREG(found.st_mode) and found.st_size <= most
