"""Reading huge JSON files record by record, in memory that does not grow with the file.

with ArrayReader(path) as reader:       # [{...}, {...}, ...]
    for record in reader:
        ...
    reader.offset, reader.num_read      # where to go on: ArrayReader(path, offset=..., num_read=...)

for key, value in read_object(path):    # {"key": value, ...}
    ...
"""

from __future__ import annotations

import codecs
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

from envsdk.contracts.failures import ConfigurationError

_CHUNK = 1 << 20
_LONGEST_RECORD = 1 << 26
_SPACE = " \t\n\r"


class BadData(ConfigurationError):
    """A data file cannot be read; the message names the file and the record."""


class _Text:
    """The text of a file through a window: what is consumed is dropped, more is read when asked for."""

    def __init__(self, path: Path, offset: int = 0) -> None:
        try:
            self._file = path.open("rb")
        except OSError as error:
            raise BadData(f"{path}: cannot be read: {error.strerror}") from error
        self._file.seek(offset)
        self._decoder = codecs.getincrementaldecoder("utf-8")()
        self._window_offset = offset
        self._path = path
        self._decode_record = json.JSONDecoder().raw_decode
        self.window = ""
        self.position = 0
        self.is_complete = False
        """Everything up to the end of the file is in the window."""

    @property
    def offset(self) -> int:
        """Bytes of the file before the position."""
        return self._window_offset + len(self.window[: self.position].encode())

    def more(self) -> bool:
        """Read on; False at the end of the file."""
        if self.is_complete:
            return False
        self._window_offset = self.offset
        wanted = max(_CHUNK, 2 * (len(self.window) - self.position))
        raw = self._file.read(wanted)
        self.is_complete = not raw
        try:
            text = self._decoder.decode(raw, final=self.is_complete)
        except UnicodeDecodeError as error:
            raise BadData(f"{self._path}: is no UTF-8 text near byte {self._file.tell()}: {error}") from None
        self.window = self.window[self.position :] + text
        self.position = 0
        return True

    def peek(self) -> str:
        """The next character that is no blank, not consumed; empty at the end of the file."""
        while True:
            while self.position < len(self.window):
                if self.window[self.position] not in _SPACE:
                    return self.window[self.position]
                self.position += 1
            if not self.more():
                return ""

    def value(self, what: str) -> Any:
        """Consume one JSON value. BadData when it is cut off or no JSON; `what` names it."""
        self.peek()
        while True:
            problem: json.JSONDecodeError | None = None
            try:
                value, end = self._decode_record(self.window, self.position)
            except json.JSONDecodeError as error:
                problem = error
            except (ValueError, RecursionError) as error:
                raise BadData(
                    f"{self._path}: {what} (at byte {self.offset}) cannot be read: {error}"
                ) from None
            else:
                # A number at the end of the window may go on behind it.
                if end < len(self.window) or self.is_complete:
                    self.position = end
                    return value
            is_too_long = len(self.window) - self.position > _LONGEST_RECORD
            if problem is not None and (is_too_long or not self.more()):
                where = f"line {problem.lineno} of it" if problem.lineno > 1 else f"byte {self.offset}"
                if self.is_complete:
                    raise BadData(
                        f"{self._path}: {what} (at {where}) is cut off or no JSON: {problem.msg}. "
                        "Is the download complete?"
                    )
                raise BadData(f"{self._path}: {what} (at {where}) is no JSON: {problem.msg}")
            if problem is None:
                self.more()

    def take(self, expected: str, what: str) -> str:
        """Consume one of the characters of `expected`; BadData names `what` when there is another."""
        found = self.peek()
        if found and found in expected:
            self.position += 1
            return found
        wanted = " or ".join(repr(character) for character in expected)
        seen = repr(found) if found else "the end of the file (is the download complete?)"
        raise BadData(f"{self._path}: expected {wanted} {what}, found {seen}")

    def close(self) -> None:
        self._file.close()


class ArrayReader:
    """The records of a file that holds one JSON array.

    Args:
        offset: Where to go on, from the `offset` of another reader of the file; 0 for the start.
        num_read: Records before it.
    """

    def __init__(self, path: Path, *, offset: int = 0, num_read: int = 0) -> None:
        self._text = _Text(path, offset)
        self.num_read = num_read
        self._is_at_start = offset == 0

    @property
    def offset(self) -> int:
        """Bytes up to and including the separator behind the last record."""
        return self._text.offset

    def __iter__(self) -> Iterator[Any]:
        text = self._text
        if self._is_at_start:
            text.take("[", "at the start, as in a list of products")
            self._is_at_start = False
            if text.peek() == "]":
                return
        elif text.peek() == "":
            return
        while True:
            value = text.value(f"record {self.num_read}")
            separator = text.take(",]", f"after record {self.num_read}")
            self.num_read += 1
            yield value
            if separator == "]":
                return

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._text.close()


def read_object(path: Path) -> Iterator[tuple[str, Any]]:
    """The entries of a file that holds one JSON object."""
    text = _Text(path)
    last = "the start"
    try:
        text.take("{", "at the start, as in an object of entries by asin")
        if text.peek() == "}":
            return
        while True:
            if text.peek() != '"':
                text.take('"', f"after {last}")
            key = text.value(f"the key after {last}")
            text.take(":", f"after the key {key!r}")
            value = text.value(f"entry {key!r}")
            separator = text.take(",}", f"after entry {key!r}")
            yield key, value
            last = f"entry {key!r}"
            if separator == "}":
                return
    finally:
        text.close()
