"""How far a build is, on a terminal and elsewhere."""

from __future__ import annotations

import time
from typing import Any, Self

from rich.console import Console

_TELL_EVERY_S = 5.0


class BuildProgress:
    """A bar on a terminal, a line now and then elsewhere, nothing without a console."""

    def __init__(self, console: Console | None = None) -> None:
        self._console = console
        self._told_at = time.monotonic()
        self._bar: Any = None
        self._task: Any = None

    def __enter__(self) -> Self:
        if self._console is not None and self._console.is_terminal:
            from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

            columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.percentage:>3.0f}%"))
            self._bar = Progress(*columns, TimeRemainingColumn(), console=self._console)
            self._bar.start()
            self._task = self._bar.add_task("", total=1.0)
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def tell(self, what: str, share: float) -> None:
        """`what` is being done, and `share` of it, 0 to 1, is."""
        if self._bar is not None:
            self._bar.update(self._task, description=what, completed=min(share, 1.0))
        elif self._console is not None and time.monotonic() - self._told_at >= _TELL_EVERY_S:
            self._told_at = time.monotonic()
            self._console.print(f"{what}: {share:.0%}", highlight=False)
