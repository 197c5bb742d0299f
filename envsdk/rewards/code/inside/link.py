"""Messages between the tests and the program, each a JSON text behind its length.

tests: ["load", PROGRAM] | [OPERATION, HANDLE, ARGUMENTS, KEYWORDS]
program: ["returned", VALUE, ARGUMENTS, PRINTED] | ["raised", CLASSES, ARGUMENTS, PRINTED]
program, while it is asked: ["callback", NUMBER, ARGUMENTS]; tests: ["returned" | "raised", ...]
"""

from __future__ import annotations

import json
import os
import select

# Only what is there anyway is imported: each program starts this anew.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

MAX_MESSAGE = 16 << 20


class LinkClosed(BaseException):
    """The other side is gone, or says what it should not; no `except Exception` of a test stops it."""


class Link:
    """One end."""

    def __init__(self, reader: int, writer: int) -> None:
        self.reader, self.writer = reader, writer
        self.closed = ""
        """Why nothing can be asked any more."""

    def send(self, message: Any) -> None:
        if self.closed:
            raise LinkClosed(self.closed)
        content = json.dumps(message).encode("ascii")
        content = len(content).to_bytes(8, "big") + content
        try:
            while content:
                content = content[os.write(self.writer, content) :]
        except OSError:
            self._close("ended")

    def receive(self) -> Any:
        length = int.from_bytes(self._exactly(8), "big")
        if length > MAX_MESSAGE:
            self._close("sent too much")
        try:
            return json.loads(self._exactly(length))
        except (ValueError, RecursionError):
            self._close("sent what cannot be read")

    def _exactly(self, length: int) -> bytes:
        parts = []
        while length:
            select.select([self.reader], [], [])
            part = os.read(self.reader, min(length, 1 << 20))
            if not part:
                self._close("ended")
            parts.append(part)
            length -= len(part)
        return b"".join(parts)

    def _close(self, why: str) -> Any:
        self.closed = self.closed or why
        raise LinkClosed(why)
