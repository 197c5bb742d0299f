"""Live progress of episodes that are played: a bar on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import sys
import time
from typing import Self

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeRemainingColumn,
)

from envsdk.base.display.console import TerminalConsole
from envsdk.base.display.scores import Score

_LINE_EVERY_S = 5.0
_LINE_SHARE = 20
"""Later, a line is printed whenever the time has grown by this part of it: an hour takes about a hundred."""


class EpisodeProgress:
    """Counts played episodes on stderr, so that stdout stays for results.

    with -> [start] -> played* -> leave
    """

    def __init__(
        self, title: str, *, total: int | None, console: Console | None = None, stays: bool = False
    ) -> None:
        """`total` is None if it is unknown. With `stays`, beginning and end are always shown."""
        self._title = title
        self._stays = stays
        self._total = total
        self._done = self._done_before = 0
        self._num_successes = 0
        self._num_failed = 0
        self._num_turns = 0
        self._started = time.monotonic()
        self._last_line: float | None = None
        self._console = console or TerminalConsole(file=sys.stderr)
        self._bar = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[details]}"),
            TimeRemainingColumn(),
            console=self._console,
            transient=not stays,
        )
        self._task = self._bar.add_task(title, total=total, details="")

    def __enter__(self) -> Self:
        if self._console.is_terminal:
            self._bar.start()
        elif self._stays:
            self._line()
        return self

    def __exit__(self, *_: object) -> None:
        if self._console.is_terminal:
            self._bar.stop()
        elif self._stays:
            self._line(self._details(time.monotonic()))

    def start(self, num_done: int, total: int) -> None:
        """Playing begins; `num_done` of `total` episodes were there before."""
        self._done = self._done_before = num_done
        self._total = total
        self._started = time.monotonic()
        self._bar.reset(self._task, total=total, completed=num_done)
        if num_done:
            self._console.print(
                f"{self._title}: {num_done} of {total} episodes were there before", highlight=False
            )

    def played(self, num_episodes: int, num_successes: int, num_failed: int) -> None:
        """So many more episodes, so many of them solved or failed."""
        self._done += num_episodes
        self._num_successes += num_successes
        self._num_failed += num_failed
        self._show(time.monotonic())

    def turns(self, num_turns: int) -> None:
        """So many turns were played, those of episodes that have not ended included."""
        if num_turns != self._num_turns:
            self._num_turns = num_turns
            self._show(time.monotonic())

    def _show(self, now: float) -> None:
        if self._console.is_terminal:
            self._bar.update(self._task, completed=self._done, details=self._details(now))
        elif self._last_line is None:
            # What is first may have waited for an engine to load: no rate to tell yet.
            self._last_line = now
        elif now - self._last_line >= max(_LINE_EVERY_S, (now - self._started) / _LINE_SHARE):
            self._last_line = now
            self._line(f"{self._details(now)}{self._left(now)}")

    def _left(self, now: float) -> str:
        """How long the rest takes at this rate; the bar of a terminal has it of its own."""
        num_here = self._done - self._done_before
        if self._total is None or not num_here or self._total <= self._done:
            return ""
        left_s = (self._total - self._done) * (now - self._started) / num_here
        return f", about {left_s:.0f} s left" if left_s < 600 else f", about {left_s / 60:.0f} min left"

    def _line(self, details: str = "") -> None:
        total = "?" if self._total is None else self._total
        self._console.print(f"{self._title}: {self._done}/{total} {details}".rstrip(), highlight=False)

    def _details(self, now: float) -> str:
        num_here = self._done - self._done_before
        rate = num_here / max(now - self._started, 1e-9)
        parts = [f"{self._num_turns} turns"] if self._num_turns else []
        score = Score.counted(self._num_successes, num_here, self._num_failed)
        if num_here:
            parts.append(f"{rate:.0f}/s" if rate >= 10 else f"{rate:.2g}/s")
            parts.append(f"solved {score.text(0)}" if score.num_scored else score.text(0))
        return " ".join(parts)
