"""What a coroutine does between two awaits: there it has the event loop for itself."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Generator
from typing import Any


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
