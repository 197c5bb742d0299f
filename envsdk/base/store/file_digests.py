"""Whether the files of a folder are what was written: by size and CRC-32, which finds every flipped bit.

    files = describe(folder)          # {"model/config.json": "612 bytes, crc32 9d2a3c17", ...}
    damaged(folder, files)            # [] or a sentence per file

Reading costs more than the checksum. It is no seal: a change on purpose can change its number, too.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

_NUM_READERS = 4
_CHUNK_BYTES = 1 << 22


def describe(folder: Path) -> dict[str, str]:
    """Size and CRC-32 of each file below the folder, by its name in it. OSError when one cannot be read."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    with ThreadPoolExecutor(_NUM_READERS) as readers:
        found = readers.map(_described, files)
        return {str(path.relative_to(folder)): each for path, each in zip(files, found, strict=True)}


def damaged(folder: Path, files: Mapping[str, str]) -> list[str]:
    """What is wrong with these files now, one sentence each."""
    with ThreadPoolExecutor(_NUM_READERS) as readers:
        found = readers.map(lambda name: _problem(folder / name, files[name]), files)
        return [f"{name} {problem}" for name, problem in zip(files, found, strict=True) if problem]


def _problem(path: Path, written: str) -> str:
    try:
        now = _described(path)
    except OSError as error:
        return f"cannot be read: {error.strerror}"
    return "" if now == written else f"has {now}, and {written} were written"


def _described(path: Path) -> str:
    size = crc = 0
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            size, crc = size + len(chunk), zlib.crc32(chunk, crc)
    return f"{size} bytes, crc32 {crc:08x}"
