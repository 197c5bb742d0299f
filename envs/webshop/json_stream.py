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
from typing import Any, ClassVar, Self

from envsdk.contracts.failures import ConfigurationError

_CHUNK = 1 << 20
_LONGEST_RECORD = 1 << 26
_SPACE = " \t\n\r"


class BadData(ConfigurationError):
    """A data file cannot be read; the message names the file and the record."""


class ArrayReader:
    """The records of a file that holds one JSON array.

    The text is seen through a window: what is consumed is dropped, more is read when asked for.

    Args:
        offset: Where to go on, from the `offset` of another reader of the file; 0 for the start.
        num_read: Records before it.
    """

    brackets: ClassVar[tuple[str, str]] = "[", "]"
    holds: ClassVar[str] = "a list of products"

    def __init__(self, path: Path, *, offset: int = 0, num_read: int = 0) -> None:
        try:
            self._file = path.open("rb")
        except OSError as error:
            raise BadData(f"{path}: cannot be read: {error.strerror}") from error
        self._file.seek(offset)
        self._decoder = codecs.getincrementaldecoder("utf-8")()
        self._window_offset = offset
        self._path = path
        self._decode_record = json.JSONDecoder().raw_decode
        self._window = ""
        self._position = 0
        self._is_complete = False
        """Everything up to the end of the file is in the window."""
        self.num_read = num_read
        self._last = "the start"
        """What was read last."""

    @property
    def offset(self) -> int:
        """Bytes up to and including the separator behind the last record."""
        return self._window_offset + len(self._window[: self._position].encode())

    def __iter__(self) -> Iterator[Any]:
        opening, closing = self.brackets
        is_at_start = self.offset == 0
        if is_at_start:
            self._take(opening, f"at the start, as in {self.holds}")
        if self._peek() == (closing if is_at_start else ""):
            return
        separator = ","
        while separator != closing:
            member = self._member()
            separator = self._take(f",{closing}", f"after {self._last}")
            self.num_read += 1
            yield member

    def _member(self) -> Any:
        self._last = f"record {self.num_read}"
        return self._value(self._last)

    def _more(self) -> bool:
        """Read on; False at the end of the file."""
        if self._is_complete:
            return False
        self._window_offset = self.offset
        wanted = max(_CHUNK, 2 * (len(self._window) - self._position))
        raw = self._file.read(wanted)
        self._is_complete = not raw
        try:
            text = self._decoder.decode(raw, final=self._is_complete)
        except UnicodeDecodeError as error:
            raise BadData(f"{self._path}: is no UTF-8 text near byte {self._file.tell()}: {error}") from None
        self._window = self._window[self._position :] + text
        self._position = 0
        return True

    def _peek(self) -> str:
        """The next character that is no blank, not consumed; empty at the end of the file."""
        while True:
            while self._position < len(self._window):
                if self._window[self._position] not in _SPACE:
                    return self._window[self._position]
                self._position += 1
            if not self._more():
                return ""

    def _value(self, what: str) -> Any:
        """Consume one JSON value. BadData when it is cut off or no JSON; `what` names it."""
        self._peek()
        while True:
            problem: json.JSONDecodeError | None = None
            try:
                value, end = self._decode_record(self._window, self._position)
            except json.JSONDecodeError as error:
                problem = error
            except (ValueError, RecursionError) as error:
                raise BadData(
                    f"{self._path}: {what} (at byte {self.offset}) cannot be read: {error}"
                ) from None
            else:
                # A number at the end of the window may go on behind it.
                if end < len(self._window) or self._is_complete:
                    self._position = end
                    return value
            is_too_long = len(self._window) - self._position > _LONGEST_RECORD
            if problem is not None and (is_too_long or not self._more()):
                where = f"line {problem.lineno} of it" if problem.lineno > 1 else f"byte {self.offset}"
                if self._is_complete:
                    raise BadData(
                        f"{self._path}: {what} (at {where}) is cut off or no JSON: {problem.msg}. "
                        "Is the download complete?"
                    )
                raise BadData(f"{self._path}: {what} (at {where}) is no JSON: {problem.msg}")
            if problem is None:
                self._more()

    def _take(self, expected: str, what: str) -> str:
        """Consume one of the characters of `expected`; BadData names `what` when there is another."""
        found = self._peek()
        if found and found in expected:
            self._position += 1
            return found
        wanted = " or ".join(repr(character) for character in expected)
        seen = repr(found) if found else "the end of the file (is the download complete?)"
        raise BadData(f"{self._path}: expected {wanted} {what}, found {seen}")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()


class _ObjectReader(ArrayReader):
    """The entries of a file that holds one JSON object: keys with their values."""

    brackets = "{", "}"
    holds = "an object of entries by asin"

    def _member(self) -> tuple[str, Any]:
        if self._peek() != '"':
            self._take('"', f"after {self._last}")
        key = self._value(f"the key after {self._last}")
        self._take(":", f"after the key {key!r}")
        self._last = f"entry {key!r}"
        return key, self._value(self._last)


def read_object(path: Path) -> Iterator[tuple[str, Any]]:
    """The entries of a file that holds one JSON object."""
    with _ObjectReader(path) as reader:
        yield from reader
