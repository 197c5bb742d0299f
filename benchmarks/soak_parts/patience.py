"""How long to wait on a machine that others use, too."""

from __future__ import annotations

import os
import time
from collections.abc import Callable

MOST_SLOWED = 5.0
"""However busy the machine is, waiting ends after so many times the limit."""


def crowding() -> float:
    """Processes that want to run, per core."""
    return os.getloadavg()[0] / (os.cpu_count() or 1)


class Patience:
    """Ends after `limit_s` seconds, counted more slowly while the machine has more to run than cores.

    A program that starts on a machine with a load of ten per core is slow, and does not hang.
    """

    def __init__(
        self,
        limit_s: float,
        *,
        clock: Callable[[], float] = time.monotonic,
        crowding: Callable[[], float] = crowding,
    ) -> None:
        self._left_s = limit_s
        self._clock = clock
        self._crowding = crowding
        self._last = clock()

    def is_over(self) -> bool:
        now = self._clock()
        self._left_s -= (now - self._last) / min(MOST_SLOWED, max(1.0, self._crowding()))
        self._last = now
        return self._left_s < 0
