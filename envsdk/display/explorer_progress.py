"""Live progress of an explorer: a line now and then, and one for each change."""

from __future__ import annotations

import time
from collections.abc import Sequence

from rich.console import Console

from envsdk.display.console import TerminalConsole

LINE_EVERY_S = 5.0


class ExplorerProgress:
    """Counts what was delivered.

    (phase | version | delivered | note)*
    """

    def __init__(self, name: str, *, console: Console | None = None) -> None:
        self._name = name
        self._console = console or TerminalConsole()
        self._phase = ""
        self._version = -1
        self._num_groups = self._num_episodes = self._num_succeeded = self._num_refused = 0
        self._num_dropped = 0
        self._since = time.monotonic()
        """When the counts began."""

    def note(self, text: str) -> None:
        """A line for the user."""
        self._console.print(f"{self._name}: {text}", markup=False, highlight=False, soft_wrap=True)

    def phase(self, name: str) -> None:
        """What it is doing from now on; said when it changes to waiting."""
        if name != self._phase and name != "playing" and self._phase != "waiting for places":
            self.note(name)
        self._phase = name

    def version(self, version: int) -> None:
        """The engines have these weights."""
        if self._version < 0:
            self.note(f"playing with version {version} of the weights")
        self._version = version

    def delivered(
        self, sizes: Sequence[int], *, num_succeeded: int, num_refused: int, num_dropped: int
    ) -> None:
        """Groups of these sizes were handed in; some of them are not wanted, others will not come."""
        self._num_groups += len(sizes)
        self._num_episodes += sum(sizes)
        self._num_succeeded += num_succeeded
        self._num_refused += num_refused
        self._num_dropped += num_dropped
        now = time.monotonic()
        if now - self._since >= LINE_EVERY_S and self._num_episodes:
            self._line(now - self._since)
            self._num_groups = self._num_episodes = self._num_succeeded = self._num_refused = 0
            self._num_dropped = 0
            self._since = now

    def _line(self, seconds: float) -> None:
        parts = [
            f"version {self._version}",
            f"{self._num_groups} groups",
            f"{self._num_episodes / seconds:.0f} episodes/s",
            f"success {self._num_succeeded / self._num_episodes:.0%}",
        ]
        if self._num_refused:
            parts.append(f"{self._num_refused} came too late")
        if self._num_dropped:
            parts.append(f"{self._num_dropped} dropped")
        self.note(" | ".join(parts))
