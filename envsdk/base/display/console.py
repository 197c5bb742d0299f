"""Tables, colors and progress of `rich`, for text of somebody else's (see `envsdk.base.display.terminal`)."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from typing import Any, Self

import rich.box
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from envsdk.base.display.terminal import printable

LINE_EVERY_S = 5.0
_PIPE_COLUMNS = 240
_LEAST_COLUMNS = 12
"""Least width of a column of names."""


class TerminalConsole(Console):
    """Makes what it prints visible, and reads no markup; breaks no line in a file or a pipe."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**{"markup": False, "emoji": False, "highlight": False, **options})
        if not self.is_terminal:
            self.soft_wrap = True
            if "width" not in options and "COLUMNS" not in os.environ:
                self.width = _PIPE_COLUMNS

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            text = segment.text if segment.control else printable(segment.text, self.encoding)
            yield segment if text == segment.text else Segment(text, segment.style)


class StatusLine:
    """What is being done: a line that changes on a terminal, elsewhere one now and then.

    with -> show* -> leave
    """

    def __init__(self, console: Console) -> None:
        self._console = console
        self._status = console.status("")
        self._printed_at = time.monotonic()

    def __enter__(self) -> Self:
        if self._console.is_terminal:
            self._status.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._status.stop()

    def show(self, text: str) -> None:
        """`text` is being done."""
        self._status.update(Text(text))
        if not self._console.is_terminal and time.monotonic() - self._printed_at >= LINE_EVERY_S:
            self._printed_at = time.monotonic()
            self._console.print(text)


class ResultTable(Table):
    """A table that cuts no value: where the terminal is too narrow, each value has a line.

    The first `num_left` columns hold names, which may fold, the others numbers.
    """

    def __init__(self, *headers: str, num_left: int = 1, **options: Any) -> None:
        look = {"box": rich.box.SIMPLE_HEAD, "pad_edge": False, "padding": (0, 1, 0, 0)}
        super().__init__(**{**look, **options})
        for place, header in enumerate(headers):
            is_number = place >= num_left
            justify: Any = "right" if is_number else "left"
            self.add_column(header, justify=justify, overflow="fold", no_wrap=is_number)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        needed = 2 + 2 * len(self.columns)
        for column in self.columns:
            width = max(cell_len(str(cell)) for cell in (column.header, *column.cells))
            needed += width if column.no_wrap else min(width, _LEAST_COLUMNS)
        if needed <= options.max_width:
            yield from super().__rich_console__(console, options)
            return
        yield from [self.title] if self.title else []
        for row in zip(*(column.cells for column in self.columns), strict=True):
            for column, cell in zip(self.columns, row, strict=True):
                if cell:
                    yield Text(f"{column.header}: {cell}" if self.show_header else str(cell), overflow="fold")
            yield ""
