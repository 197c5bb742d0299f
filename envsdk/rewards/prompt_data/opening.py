"""Opens prompt data: rows by number, read from their files one at a time."""

from __future__ import annotations

import hashlib
import os
from collections import Counter
from functools import lru_cache
from itertools import islice
from threading import Lock

import numpy as np
from numpy.typing import NDArray

from envsdk.base.settings.nearest import suggest
from envsdk.contracts.failures import ConfigurationError, StorageError
from envsdk.rewards.prompt_data.files import file_state, jsonl_files
from envsdk.rewards.prompt_data.index import FileIndex, file_index, parse_line
from envsdk.rewards.prompt_data.prompts import PromptRow, PromptSource, Unusable
from envsdk.rewards.prompt_data.rows import standard_row


class NoRows(ConfigurationError):
    """The files are there, and none of their rows is asked for or can be used."""


class Prompts:
    """The rows of a source that can be used, by number.

    opened -> (len, [index], nth)*
    """

    def __init__(self, source: PromptSource) -> None:
        """Raises ConfigurationError: a file is not there, or none of its rows can be used."""
        self.source = source
        self._files: list[_OpenFile] = []
        self.counts: Counter[str] = Counter()
        """Rows by what decides their domain, those of other domains too."""
        self.num_unusable = 0
        unusable: list[Unusable] = []
        chosen: list[NDArray[np.int64]] = []
        for path, shown in (each for name in source.files for each in jsonl_files(name)):
            index = file_index(path, shown, source)
            self._files.append(_OpenFile(index, shown))
            self.num_unusable += index.num_unusable
            unusable += index.unusable
            counts = np.bincount(index.rows["key"], minlength=len(index.names)).tolist()
            self.counts.update(dict(zip(index.names, counts, strict=True)))
            asked = [number for number, name in enumerate(index.names) if self.is_asked(name)]
            rows = np.flatnonzero(np.isin(index.rows["key"], asked))
            chosen.append(rows + ((len(self._files) - 1) << _FILE_SHIFT))
        self.unusable: list[Unusable] = list(islice(unusable, _MAX_NAMED))
        """The first of them."""
        self._check_columns()
        self._rows = np.concatenate(chosen)
        if not len(self._rows):
            raise NoRows(self._why_none())

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: int) -> PromptRow:
        """Raises StorageError when the file changed since it was opened."""
        number = int(self._rows[index])
        return self._files[number >> _FILE_SHIFT].row(number & _ROW_MASK, self.source)

    def nth(self, number: int, *, seed: int | None) -> int:
        """Index of the row that is asked as number `number`.

        Each epoch asks all rows, in an order that `seed` decides; None keeps the order of the files.
        """
        epoch, position = divmod(number, len(self))
        return position if seed is None else int(_order(len(self), seed, epoch)[position])

    def digest(self) -> str:
        """Equal where the same rows are asked in the same order, from whatever files."""
        digest = hashlib.sha256()
        for number, file in enumerate(self._files):
            chosen = self._rows[self._rows >> _FILE_SHIFT == number] & _ROW_MASK
            digest.update(file.index.rows["digest"][chosen].tobytes())
        return digest.hexdigest()[:16]

    def has_changed(self) -> bool:
        """Whether a file is another one than when it was opened."""
        return any(file.has_changed() for file in self._files)

    def is_asked(self, key: str) -> bool:
        """Whether rows of this domain or tag are chosen."""
        tags, others = self.source.tags, self.source.except_tags
        return (not tags or key in tags) and key not in others

    def _why_none(self) -> str:
        files = ", ".join(self.source.files)
        if self.counts:
            found = ", ".join(f"{name or 'none'} ({count})" for name, count in self.counts.most_common(10))
            wanted = ", ".join(self.source.tags) or f"other than {', '.join(self.source.except_tags)}"
            return f"no row of {files} has the tag {wanted}; tags there: {found}"
        if not self.num_unusable:
            return f"there is no row in {files}"
        first = self.unusable[0]
        return (
            f"none of the {self.num_unusable} rows of {files} can be used; the first, {first.place}: "
            f"{first.reason}"
        )

    def _check_columns(self) -> None:
        """ConfigurationError for a column that `source.columns` names and no file has."""
        there = sorted({column for file in self._files for column in file.index.columns})
        for name, column in self.source.columns.items():
            if there and column not in there and column != name:
                hint = suggest(column, there, known="columns")
                raise ConfigurationError(f"{', '.join(self.source.files)} has no column `{column}`; {hint}")


_MAX_NAMED = 100
_FILE_SHIFT = 40
_ROW_MASK = (1 << _FILE_SHIFT) - 1


class _OpenFile:
    """One file. It stays open, so that one that is replaced is still read as it was."""

    def __init__(self, index: FileIndex, shown: str) -> None:
        self.index = index
        self._shown = shown
        self._descriptor = os.open(index.path, os.O_RDONLY | os.O_CLOEXEC)
        self._state = file_state(self._descriptor)

    def row(self, number: int, source: PromptSource) -> PromptRow:
        row = self.index.rows[number]
        place = f"{self._shown}:{row['line']}"
        if self.has_changed():
            raise StorageError(f"{self._shown} changed while its prompts are asked; start again with it")
        line = os.pread(self._descriptor, int(row["length"]), int(row["offset"]))
        messages, fields = standard_row(parse_line(line), source.columns)
        return PromptRow(messages=messages, fields=fields, place=place)

    def has_changed(self) -> bool:
        """Whether there is another file under its name now."""
        try:
            state = os.stat(self.index.path)
        except OSError:
            return True
        return (state.st_size, state.st_mtime_ns) != self._state

    def __del__(self) -> None:
        if (descriptor := getattr(self, "_descriptor", None)) is not None:
            os.close(descriptor)


@lru_cache(maxsize=4)
def _order(length: int, seed: int, epoch: int) -> NDArray[np.int64]:
    return np.random.default_rng([seed, epoch]).permutation(length)


@lru_cache(maxsize=64)
def _opened(source: str) -> Prompts:
    return Prompts(PromptSource.model_validate_json(source))


_opening = Lock()
"""Environments start on threads, hundreds at once: one of them reads the files, the others wait for it."""


def open_prompts(source: PromptSource) -> Prompts:
    """The rows of `source`; equal sources share one. Raises ConfigurationError, StorageError."""
    key = source.model_dump_json()
    with _opening:
        prompts = _opened(key)
        if prompts.has_changed():
            _opened.cache_clear()
            prompts = _opened(key)
        return prompts
