"""Live progress of an explorer: a line now and then, and one for each change."""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import suppress

from rich.console import Console

from envsdk.base.display.console import TerminalConsole
from envsdk.base.display.scores import Score

LINE_EVERY_S = 5.0


class ExplorerProgress:
    """(phase | note | started | delivered)*"""

    def __init__(self, name: str, *, console: Console | None = None) -> None:
        self._name = name
        self._console = console or TerminalConsole()
        self._phase = ""
        self._counts: dict[str, float] = {}
        """Since the last line."""
        self._since = time.monotonic()

    def note(self, text: str) -> None:
        """A line for the user."""
        # An explorer goes on when nobody reads what it says. Rich ends a program then, and leads the output
        # to nowhere, which would stop the event loop in the middle of a call.
        with suppress(SystemExit):
            self._console.print(f"{self._name}: {text}", markup=False, highlight=False, soft_wrap=True)

    def phase(self, name: str) -> None:
        """What it is doing from now on."""
        if name != self._phase:
            self._phase = name
            self.note(name)

    def delivered(self, version: int, counts: Mapping[str, float]) -> None:
        """What was handed in under this version of the weights.

        `counts`: `groups`, `episodes`, `successes`, `failed`, `refused`, `dropped` (groups) and `waited_s`
        for places.
        """
        for name, count in counts.items():
            self._counts[name] = self._counts.get(name, 0) + count
        seconds = time.monotonic() - self._since
        if seconds >= LINE_EVERY_S and self._counts.get("episodes"):
            self.note(_line(version, self._counts, seconds))
            self._counts = {}
            self._since = time.monotonic()


def _line(version: int, counts: Mapping[str, float], seconds: float) -> str:
    score = Score.counted(counts["successes"], int(counts["episodes"]), int(counts["failed"]))
    parts = [
        f"version {version}",
        f"{counts['groups']:.0f} groups",
        f"{counts['episodes'] / seconds:.0f} episodes/s",
        f"success {score.text(0)}" if score.num_scored else score.text(0),
        f"waited for places {min(1.0, counts['waited_s'] / seconds):.0%}",
    ]
    if counts["refused"]:
        parts.append(f"{counts['refused']:.0f} came too late")
    if counts["dropped"]:
        parts.append(f"{counts['dropped']:.0f} dropped")
    return " | ".join(parts)
