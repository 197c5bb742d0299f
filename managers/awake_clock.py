"""A clock that does not run while its process is stopped. Pure: the caller reads the time.

A process that was stopped (SIGSTOP, a suspended machine) has heard nothing meanwhile. On waking its timers
come before the reports that wait for it, so deadlines on an ordinary clock would end what was on time.
"""

from __future__ import annotations


class AwakeClock:
    """Owner: one event loop, which reads it at least every `longest_s` while it runs.

    clock = AwakeClock(100.0, longest_s=1.0)
    clock.at(100.5)  # 100.5
    clock.at(160.5)  # 101.5: of the minute at most `longest_s` counts
    """

    def __init__(self, now: float, *, longest_s: float) -> None:
        self._read_at = self._shown = now
        self._longest_s = longest_s

    def at(self, now: float) -> float:
        """The time on this clock when the ordinary one shows `now`, in seconds."""
        self._shown += min(now - self._read_at, self._longest_s)
        self._read_at = now
        return self._shown
