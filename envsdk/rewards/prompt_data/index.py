"""Where each row of a JSONL file is, so that a row is read by its number and no file is held in memory.

    one record (offset, length, line, key, digest) for each row that can be used, memory-mapped

An index is made once per file and way of reading, and kept in the cache folder. It depends on the file's
path, size and time of change: a file that changes has another one.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import cache, partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from envsdk.base.store.atomic import made_once, storage_error
from envsdk.base.store.cache import cache_folder
from envsdk.contracts.chat import ChatTokenizer, TooManyTokens
from envsdk.contracts.prompts import Message
from envsdk.rewards.prompt_data.files import NOT_UTF_8
from envsdk.rewards.prompt_data.prompts import PromptSource, Unusable
from envsdk.rewards.prompt_data.rows import UnusableRow, key_of, standard_row

_VERSION = 5
"""Raised when the same file would have another index."""
_MAX_NAMED = 100
"""Rows that cannot be used and are kept with their reason; all are counted."""
_CHUNK_BYTES = 32 << 20
"""One process reads so much at a time."""
_MARKUP_TOKENS = 64
"""Tokens that a chat template may write around one message, at most, for the quick estimate."""
_ROW = np.dtype([("offset", "<i8"), ("length", "<i8"), ("line", "<i4"), ("key", "<i4"), ("digest", "<i8")])
_BOM = b"\xef\xbb\xbf"


@dataclass(frozen=True, slots=True)
class FileIndex:
    """The rows of one file."""

    path: Path
    rows: NDArray[np.void]
    """`[num_rows]`. Of each `offset` and `length` in bytes and the number of its `line`; as `key` a number of
    `names`; the `digest` of its line, without white space at its ends."""
    names: Sequence[str]
    """What decides the domain of a row: see `key_of`."""
    unusable: Sequence[Unusable]
    num_unusable: int
    columns: Sequence[str]
    """Columns of the first row."""


def file_index(path: Path, shown: str, source: PromptSource) -> FileIndex:
    """The index of a JSONL file, from the cache or made now. `shown` is the file's name in places.

    Raises StorageError when the file cannot be read or the cache not be written.
    """
    try:
        state = path.stat()
    except OSError as error:
        raise storage_error("read", path, error) from error
    recipe = {
        "version": _VERSION,
        "file": [str(path.resolve()), state.st_size, state.st_mtime_ns, shown],
        "columns": dict(source.columns),
        "longest_prompt": source.longest_prompt if source.tokenizer else None,
        "tokenizer": source.tokenizer if source.longest_prompt else None,
    }
    digest = hashlib.sha256(json.dumps(recipe, sort_keys=True).encode()).hexdigest()[:24]
    folder = cache_folder() / "prompts" / "indexes" / digest
    try:
        about, rows = _load(folder)
    except (OSError, ValueError):
        # There is none, or a part of it was lost.
        shutil.rmtree(folder, ignore_errors=True)
        about, rows = _make(path, shown, source)
        with made_once(folder) as inside:
            np.save(inside / "rows.npy", rows)
            (inside / "index.json").write_text(json.dumps(about), encoding="utf-8")
        about, rows = _load(folder)
    unusable = [Unusable(*each) for each in about.pop("unusable")]
    return FileIndex(path=path, rows=rows, unusable=unusable, **about)


def _load(folder: Path) -> tuple[dict[str, Any], NDArray[np.void]]:
    about = json.loads((folder / "index.json").read_text(encoding="utf-8"))
    return about, np.load(folder / "rows.npy", mmap_mode="r")


@dataclass(slots=True)
class _Part:
    """The index of a part of a file; lines count from the part's start."""

    rows: list[tuple[int, int, int, int, int]]
    names: list[str]
    unusable: list[tuple[int, str]]
    num_unusable: int
    num_lines: int
    columns: list[str]


def _make(path: Path, shown: str, source: PromptSource) -> tuple[dict[str, Any], NDArray[np.void]]:
    read = partial(_read_part, path, source)
    parts = list(_parts(path))
    if source.num_workers > 1 and len(parts) > 1:
        with ProcessPoolExecutor(min(source.num_workers, len(parts)), get_context("spawn")) as pool:
            return _joined(pool.map(read, parts), shown)
    return _joined(map(read, parts), shown)


def _parts(path: Path) -> Iterator[tuple[int, int]]:
    """Start and end of parts that begin with a line."""
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        start = 0
        while start < size:
            file.seek(min(start + _CHUNK_BYTES, size))
            file.readline()
            end = file.tell()
            yield start, end
            start = end


def _read_part(path: Path, source: PromptSource, part: tuple[int, int]) -> _Part:
    start, end = part
    found = _Part([], [], [], 0, 0, [])
    numbers: dict[str, int] = {}
    with path.open("rb") as file:
        file.seek(start)
        offset = start
        while offset < end:
            line = file.readline()
            found.num_lines += 1
            text = line.removeprefix(_BOM) if offset == 0 else line
            if text.strip():
                try:
                    value = parse_line(text)
                    if not found.columns and isinstance(value, dict):
                        found.columns = list(map(str, value))
                    key = _checked(value, source)
                except UnusableRow as error:
                    found.num_unusable += 1
                    if len(found.unusable) < _MAX_NAMED:
                        found.unusable.append((found.num_lines, str(error)))
                else:
                    number = numbers.setdefault(key, len(numbers))
                    digest = hashlib.blake2b(text.strip(), digest_size=8).digest()
                    own = int.from_bytes(digest, "little", signed=True)
                    found.rows.append((offset, len(line), found.num_lines, number, own))
            offset += len(line)
    found.names = list(numbers)
    return found


def _checked(value: Any, source: PromptSource) -> str:
    """What decides the row's domain. Raises UnusableRow."""
    messages, fields = standard_row(value, source.columns)
    if source.longest_prompt is not None and source.tokenizer is not None:
        _check_length(messages, source.longest_prompt, source.tokenizer)
    return key_of(fields)


def parse_line(line: bytes) -> Any:
    """The JSON value of one line. Raises UnusableRow."""
    if b"\0" in line:
        raise UnusableRow(f"is {NOT_UTF_8}")
    try:
        return json.loads(line.removeprefix(_BOM))
    except (ValueError, RecursionError) as error:
        raise UnusableRow(f"is no JSON: {str(error)[:200]}") from None


def _check_length(messages: Sequence[Message], longest: int, tokenizer: str) -> None:
    # No token is shorter than a byte.
    if sum(len(each["content"].encode("utf-8", "replace")) + _MARKUP_TOKENS for each in messages) <= longest:
        return
    *history, last = messages
    chat = _tokenizer(tokenizer)
    try:
        length = len(chat.first_prompt(system="", user=last["content"], history=history, room=longest))
    except TooManyTokens as error:
        length = error.num_tokens
    if length > longest:
        raise UnusableRow(f"its prompt has {length} tokens or more, and prompt_length is {longest}")


@cache
def _tokenizer(folder: str) -> ChatTokenizer:
    return ChatTokenizer.load(Path(folder))


def _joined(parts: Iterator[_Part], shown: str) -> tuple[dict[str, Any], NDArray[np.void]]:
    """All parts as one index."""
    numbers: dict[str, int] = {}
    tables = [np.empty(0, _ROW)]
    unusable: list[tuple[str, str]] = []
    num_unusable = num_lines = 0
    columns: list[str] = []
    for part in parts:
        table = np.array(part.rows, _ROW)
        own = np.array([numbers.setdefault(name, len(numbers)) for name in part.names], np.int32)
        table["line"] += num_lines
        table["key"] = own[table["key"]]
        tables.append(table)
        room = _MAX_NAMED - len(unusable)
        unusable += [(f"{shown}:{num_lines + line}", reason) for line, reason in part.unusable[:room]]
        num_unusable += part.num_unusable
        num_lines += part.num_lines
        columns = columns or part.columns
    about = {
        "names": list(numbers),
        "unusable": unusable,
        "num_unusable": num_unusable,
        "columns": columns,
    }
    return about, np.concatenate(tables)
