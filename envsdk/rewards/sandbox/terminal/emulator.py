"""What a terminal shows: bytes of programs in, text out. It holds no more than a screen, whatever comes.

    bytes -> characters -> well-formed sequences that pyte knows -> pyte's screen

Without clock or I/O.
"""

from __future__ import annotations

import codecs
import contextlib
import re
import unicodedata
from collections.abc import Callable, Iterator
from typing import Any, cast

import pyte
from wcwidth import wcwidth

MAX_STRING = 4096
"""Characters of a title or another string; a longer one is no string."""
MAX_MARKS = 4
"""Combining marks on one character."""
_ALTERNATE = {47, 1047, 1049}
_COLUMNS_132 = 3
_APPLICATION = 1 << 5  # pyte shifts private modes

_STRING = rf"\x1b(?P<kind>[\]PX^_])(?P<string>[^\x07\x1b\x18\x1a]{{0,{MAX_STRING}}})"
_TOKEN = re.compile(
    r"(?P<text>[^\x1b]+)"
    r"|(?P<known>\x1b(?:\[\??[0-9;]{0,64}[@-~]|[ #%(-/][0-~]|[0-OQ-WYZ\\`-~]))"
    r"|\x1b\[[0-?]{0,64}[ -/]{0,8}[@-~]"
    rf"|{_STRING}(?:\x07|\x1b\\|[\x18\x1a]|(?=\x1b[^\\]))"
)
"""Text or a whole sequence. Of sequences the `known` ones are pyte's; the others have no effect."""
_UNFINISHED = re.compile(rf"\x1b(?:\[[0-?]{{0,64}}[ -/]{{0,8}}|[ -/])?|{_STRING}\x1b?")
_NOT_TEXT = re.compile("[\x00-\x06\x0e-\x1a\x1c-\x1f\x7f-\x9f]")


class Emulator:
    """A terminal's screen.

    new -> feed(bytes) ... -> text
    """

    def __init__(self, rows: int, columns: int) -> None:
        self._screen = _Screen(columns, rows)
        self._stream = pyte.Stream(cast(pyte.Screen, _Tolerant(self._screen)), strict=False)
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._unfinished = ""

    def feed(self, data: bytes) -> bytes:
        """Show output; returns what the terminal answers to questions in it."""
        text = self._unfinished + self._decoder.decode(data)
        self._unfinished = ""
        position = 0
        while position < len(text):
            token = _TOKEN.match(text, position)
            if token is None:
                if _UNFINISHED.fullmatch(text, position):
                    self._unfinished = text[position:]
                    break
                position += 1
                continue
            position = token.end()
            if known := _NOT_TEXT.sub("", token["text"] or "") or token["known"]:
                self._stream.feed(known)
        answers, self._screen.answers = self._screen.answers, ""
        return answers.encode()

    @property
    def text(self) -> str:
        """The lines, without the spaces at their ends."""
        return "\n".join(self._screen.rendered())

    @property
    def wants_application_keys(self) -> bool:
        return _APPLICATION in self._screen.mode


class _Screen(pyte.Screen):
    """pyte's screen with a second one, as xterm has it."""

    def __init__(self, columns: int, lines: int) -> None:
        self.answers = ""
        self._main: tuple[Any, Any] | None = None
        self._marks = 0
        super().__init__(columns, lines)

    def reset(self) -> None:
        self._main = None
        super().reset()

    def set_mode(self, *modes: int, **kwargs: Any) -> None:
        if kwargs.get("private"):
            if _ALTERNATE.intersection(modes) and self._main is None:
                self._main = dict(self.buffer), (self.cursor.y, self.cursor.x)
                self.buffer.clear()
            modes = tuple(mode for mode in modes if mode != _COLUMNS_132)
        super().set_mode(*modes, **kwargs)

    def reset_mode(self, *modes: int, **kwargs: Any) -> None:
        if kwargs.get("private"):
            if _ALTERNATE.intersection(modes) and self._main is not None:
                lines, (row, column) = self._main
                self._main = None
                self.buffer.clear()
                self.buffer.update(lines)
                self.cursor_position(row + 1, column + 1)
            modes = tuple(mode for mode in modes if mode != _COLUMNS_132)
        super().reset_mode(*modes, **kwargs)

    def save_cursor(self) -> None:
        super().save_cursor()
        del self.savepoints[:-1]

    def write_process_input(self, data: str) -> None:
        self.answers = (self.answers + data)[:MAX_STRING]

    def draw(self, data: str) -> None:
        super().draw(data if data.isascii() else "".join(self._drawable(data)))

    def _drawable(self, data: str) -> Iterator[str]:
        """Without what pyte stops at, and what would pile up on one character."""
        for character in data:
            width = wcwidth(character)
            if width > 0:
                self._marks = 0
                yield character
            elif width == 0 and unicodedata.combining(character) and self._marks < MAX_MARKS:
                self._marks += 1
                yield character

    def rendered(self) -> Iterator[str]:
        for row in range(self.lines):
            line = self.buffer[row]
            cells = [*(line[column].data for column in range(self.columns)), " "]
            yield "".join(map(_shown, (" ", *cells), cells, cells[1:])).rstrip()


class _Tolerant:
    """Hands calls on to a screen, and ignores those with parameters that pyte does not expect."""

    def __init__(self, screen: _Screen) -> None:
        self._screen = screen

    def __getattr__(self, name: str) -> Callable[..., None]:
        call = getattr(self._screen, name)

        def tolerant(*parameters: Any, **options: Any) -> None:
            # What a program prints is no reason to fail.
            with contextlib.suppress(Exception):
                call(*parameters, **options)

        return tolerant


def _shown(before: str, cell: str, after: str) -> str:
    """A cell's text. The second half of a wide character is empty; half a character is a space."""
    if not cell:
        return "" if before and wcwidth(before[0]) == 2 else " "
    return " " if after and wcwidth(cell[0]) == 2 else cell
