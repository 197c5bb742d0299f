"""Keeps the two ends of what a command prints, and makes text of them.

Copying and decoding hold Python's global lock for as long as one call takes. So both go piece by piece, and a
thread that does them lets the event loop run in between.
"""

from __future__ import annotations

import codecs
from collections.abc import Iterator
from dataclasses import dataclass, field

_CONTROLS = (code for code in (*range(32), *range(127, 160)) if chr(code) not in "\t\n\r")
_WRITTEN_OUT = {code: f"\\x{code:02x}" for code in _CONTROLS}
_PIECE_BYTES = 1 << 16
_BLOCK_BYTES = 1 << 20


@dataclass(slots=True)
class HeadTail:
    """Takes any number of bytes and holds at most `keep` of them."""

    keep: int
    total: int = 0
    _blocks: list[bytes] = field(default_factory=list)
    """The head but for its last bytes, which are in `_block`."""
    _block: bytearray = field(default_factory=bytearray)
    _num_head: int = 0
    _tail: bytearray = field(default_factory=bytearray)

    def feed(self, chunk: bytes) -> None:
        self.total += len(chunk)
        room = self.keep - self.keep // 2 - self._num_head
        head = chunk[:room]
        self._num_head += len(head)
        self._block += head
        if len(self._block) >= _BLOCK_BYTES:
            self._blocks.append(bytes(self._block))
            self._block.clear()
        self._tail += chunk[room:]
        excess = len(self._tail) - self.keep // 2
        if excess > self.keep // 2 + (1 << 16):
            del self._tail[:excess]

    def drop_start(self, start: bytes) -> bool:
        """Forget `start`, if that is what the output starts with; `keep` has to hold it twice."""
        first = self._blocks[0] if self._blocks else self._block
        if not first.startswith(start):
            return False
        if self._blocks:
            self._blocks[0] = self._blocks[0][len(start) :]
        else:
            del self._block[: len(start)]
        self._num_head -= len(start)
        self.total -= len(start)
        return True

    def content(self) -> bytes:
        """Everything, where `total` is no more than `keep`; the two ends joined otherwise."""
        # Joining `bytes` releases the global lock; copying a `bytearray` does not.
        return b"".join([*self._blocks, bytes(self._block), self._end()])

    def text(self) -> str:
        """Both ends as harmless text, with a line between that says how many bytes are left out."""
        tail = self._end()
        head = b"".join([*self._blocks, bytes(self._block)])
        left_out = self.total - len(head) - len(tail)
        if not left_out:
            return harmless(head + tail)
        return f"{harmless(head)}\n<{left_out} bytes left out>\n{harmless(tail)}"

    def _end(self) -> bytes:
        half = self.keep // 2
        return bytes(self._tail[-half:]) if half else b""


def harmless(output: bytes) -> str:
    """UTF-8 as text; what is not becomes U+FFFD, and control characters are written out."""
    return "".join(piece.translate(_WRITTEN_OUT) for piece in _decoded(output, "replace"))


def exact(output: bytes) -> str:
    """UTF-8 as text; bytes that are not become surrogates, so that nothing is lost."""
    return "".join(_decoded(output, "surrogateescape"))


def _decoded(output: bytes, errors: str) -> Iterator[str]:
    starts = range(0, len(output), _PIECE_BYTES)
    return codecs.iterdecode((output[start : start + _PIECE_BYTES] for start in starts), "utf-8", errors)
