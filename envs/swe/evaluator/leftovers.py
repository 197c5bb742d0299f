"""Which added files of a patch are no part of a fix: virtual environments, installed packages, bulk.

`Sandbox.diff` goes by the same rules, so that a submission is small; patches from elsewhere come here uncut.
An agent leaves scripts, data, builds and environments in the repository. Few and small, they do no harm
and stay. What is left out is never held against the patch.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import PurePosixPath

from envsdk.rewards.sandbox.contract import (
    BULK_FILES,
    ENVIRONMENT_FILE,
    INSTALLED_FOLDERS,
    MAX_ADDED_BYTES,
    MAX_ADDED_FILES,
)

MAX_LINES = 200_000
"""Lines of all added files together; MAX_ADDED_FILES and MAX_ADDED_BYTES limit them too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AddedFile:
    """A file that a patch adds."""

    path: str
    num_bytes: int
    num_lines: int


def left_out(added: Iterable[AddedFile]) -> frozenset[str]:
    """The paths of `added` that are not graded.

    These are virtual environments, installed packages, and of the rest what is over the limits. Files are
    kept in this order: those of folders with few added files, Python source, small files.
    """
    files = list(added)
    parts = [file.path.rpartition("/") for file in files]
    environments = {folder for folder, _, name in parts if name == ENVIRONMENT_FILE}
    candidates = [file for file in files if not _is_installed(file.path, environments)]
    in_folder = Counter(_top(file.path) for file in candidates)

    def rank(file: AddedFile) -> tuple[bool, bool, int, str]:
        is_bulk = in_folder[_top(file.path)] > BULK_FILES
        return is_bulk, not file.path.endswith(".py"), file.num_bytes, file.path

    kept = set[str]()
    num_bytes = num_lines = 0
    for file in sorted(candidates, key=rank):
        fits = num_bytes + file.num_bytes <= MAX_ADDED_BYTES and num_lines + file.num_lines <= MAX_LINES
        if fits and len(kept) < MAX_ADDED_FILES:
            kept.add(file.path)
            num_bytes += file.num_bytes
            num_lines += file.num_lines
    return frozenset(file.path for file in files) - kept


def _is_installed(path: str, environments: set[str]) -> bool:
    folders = PurePosixPath(path).parts[:-1]
    inside = any("/".join(folders[:depth]) in environments for depth in range(1, len(folders) + 1))
    return inside or any(folder in INSTALLED_FOLDERS for folder in folders)


def _top(path: str) -> str:
    """The first folder of `path`, "" for a file at the root."""
    return path.partition("/")[0] if "/" in path else ""
