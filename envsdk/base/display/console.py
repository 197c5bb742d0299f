"""Tables, colors and progress of `rich`, for text of somebody else's (see `envsdk.base.display.terminal`)."""

from __future__ import annotations

import os
from collections.abc import Iterable
from copy import copy
from dataclasses import replace
from typing import Any, Self

import rich.box
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from envsdk.base.display.terminal import UNSAFE, visible

_PIPE_COLUMNS = 240
_LEAST_COLUMNS = 12
"""Of a column that folds."""


class TerminalConsole(Console):
    """Makes what it prints visible, and reads no markup; breaks no line in a file or a pipe."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**{"markup": False, "emoji": False, **options})
        if not self.is_terminal:
            self.soft_wrap = True
            if "width" not in options and "COLUMNS" not in os.environ:
                self.width = _PIPE_COLUMNS

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            if segment.control or not UNSAFE.search(segment.text):
                yield segment
            else:
                yield Segment(visible(segment.text), segment.style)


class ResultTable(Table):
    """A table that cuts no value: in a narrow terminal headers fold, then names, then each value has a line.

    The first `num_left` columns hold names, the others numbers.
    """

    def __init__(self, *headers: str, num_left: int = 1, **options: Any) -> None:
        super().__init__(
            **{"box": rich.box.SIMPLE_HEAD, "pad_edge": False, "padding": (0, 1, 0, 0), **options}
        )
        for place, header in enumerate(headers):
            is_name = place < num_left
            self.add_column(
                header, justify="left" if is_name else "right", overflow="fold", no_wrap=not is_name
            )

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        folded = self._with(fold=True)
        for shape, least in (
            (self, self),
            (folded, folded),
            (folded, folded._with(max_width=_LEAST_COLUMNS)),
        ):
            needed = Table.__rich_measure__(least, console, options.update(width=10_000))
            if needed.maximum <= options.max_width:
                yield from Table.__rich_console__(shape, console, options)
                return
        yield from [self.title] if self.title else []
        for row in zip(*(column.cells for column in self.columns), strict=True):
            for column, cell in zip(self.columns, row, strict=True):
                if cell:
                    yield Text(f"{column.header}: {cell}" if self.show_header else str(cell), overflow="fold")
            yield ""

    def _with(self, *, fold: bool = False, max_width: int | None = None) -> Self:
        """With headers folded at every space, or with columns of names of at most `max_width`."""
        shape = copy(self)
        shape.columns = [
            replace(
                column,
                header=str(column.header).replace(" ", "\n") if fold else column.header,
                max_width=None if column.no_wrap else max_width,
            )
            for column in self.columns
        ]
        return shape
