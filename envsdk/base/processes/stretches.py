"""What a coroutine does between two awaits: there it has the event loop for itself."""

from __future__ import annotations

import time
import warnings
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Generator
from typing import Any, TypeVar

LONGEST_STRETCH_S = 0.5
"""Other episodes share the event loop: code that keeps it for longer is named."""

T = TypeVar("T")


class Stretches(ABC):
    """An awaitable with the result of `work`, whose stretches between two awaits are enclosed.

    await work  =  begin, code, end, (the loop runs other tasks), begin, code, end, ...
    """

    def __init__(self, work: Awaitable[Any]) -> None:
        self._work = work

    @abstractmethod
    def begin(self) -> Any:
        """Called before code of `work` runs; `end` gets what it returns."""

    @abstractmethod
    def end(self, began: Any) -> None:
        """Called when `work` awaits, and after its end."""

    def __await__(self) -> Generator[Any, Any, Any]:
        work: Any = self._work.__await__()
        proceed: Callable[[Any], Any] = work.send
        given: Any = None
        while True:
            began = self.begin()
            try:
                awaited = proceed(given)
            except StopIteration as stop:
                return stop.value
            finally:
                self.end(began)
            try:
                proceed, given = work.send, (yield awaited)
            except BaseException as error:  # noqa: BLE001 - cancellation, handed on
                proceed, given = work.throw, error


class Timed(Stretches):
    """Measures the longest stretch without an await, in seconds."""

    longest_s = 0.0

    def begin(self) -> float:
        return time.perf_counter()

    def end(self, began: float) -> None:
        self.longest_s = max(self.longest_s, time.perf_counter() - began)

    def warn_of(self, name: str) -> None:
        """A RuntimeWarning, shown once, where the code called so kept the loop from other episodes."""
        if self.longest_s > LONGEST_STRETCH_S:
            warnings.warn(
                f"{name} kept the event loop for more than {LONGEST_STRETCH_S} s without an await, and no "
                "other episode went on: let code that blocks run in asyncio.to_thread",
                RuntimeWarning,
                stacklevel=2,
            )


async def outcome(work: Awaitable[T]) -> tuple[T | None, BaseException | None]:
    """What `work` returns or raises: a task that raises KeyboardInterrupt or SystemExit ends its loop."""
    try:
        return await work, None
    except BaseException as error:  # noqa: BLE001 - for the caller to raise
        return None, error
