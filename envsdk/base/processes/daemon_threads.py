"""Threads for blocking calls that may never return.

    threads = DaemonThreads("policy")
    answer = await threads.run(ask)      # cancelled, it leaves its thread behind
    threads.close()

`ThreadPoolExecutor` has a fixed number of threads, which hung calls use up, and a program's end waits for it.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from queue import SimpleQueue
from typing import Any, TypeVar

T = TypeVar("T")


class DaemonThreads:
    """As many threads as calls at the same time. Belongs to one event loop.

    idle -> a call -> idle -> ... -> close
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._idle: list[SimpleQueue[Callable[[], None] | None]] = []
        self._is_closed = False

    async def run(self, call: Callable[[], T]) -> T:
        """What `call` returns; it must not raise."""
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[T] = loop.create_future()

        def work() -> None:
            value = call()
            with suppress(RuntimeError):  # the loop has ended: nobody waits any more
                loop.call_soon_threadsafe(_resolve, answer, value)

        jobs = self._idle.pop() if self._idle else self._started()
        jobs.put(work)
        return await answer

    def close(self) -> None:
        """End the threads; one that is in a call ends after it."""
        self._is_closed = True
        for jobs in self._idle:
            jobs.put(None)

    def _started(self) -> SimpleQueue[Callable[[], None] | None]:
        jobs: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        threading.Thread(target=self._serve, args=(jobs,), name=self._name, daemon=True).start()
        return jobs

    def _serve(self, jobs: SimpleQueue[Callable[[], None] | None]) -> None:
        while (work := jobs.get()) is not None:
            work()
            del work
            self._idle.append(jobs)
            if self._is_closed:
                return


def _resolve(answer: asyncio.Future[Any], value: Any) -> None:
    if not answer.done():
        answer.set_result(value)
