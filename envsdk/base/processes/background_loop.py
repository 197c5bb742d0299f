"""One event loop on a thread of its own, for the calls of the library that are not awaited.

    trajectories = on_background_loop(play())

It waits from any thread, also while another loop runs, as in a notebook. An engine that one call starts is
still there in the next.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Coroutine
from concurrent.futures import CancelledError, Future, wait
from contextlib import suppress
from typing import Any, TypeVar

Result = TypeVar("Result")

_WAIT_S = 1.0
_lock = threading.Lock()
_loop: asyncio.AbstractEventLoop | None = None


def background_loop() -> asyncio.AbstractEventLoop:
    """The loop of this process; started when it is first asked for. Its thread ends with the process."""
    global _loop
    with _lock:
        if _loop is None:
            _loop = asyncio.new_event_loop()
            threading.Thread(target=_run, args=(_loop,), name="envsdk-loop", daemon=True).start()
        return _loop


def _run(loop: asyncio.AbstractEventLoop) -> None:
    while True:
        try:
            loop.run_forever()
        except (KeyboardInterrupt, SystemExit):
            continue  # The task that raised it has it, too; the loop is there for the others.


def _forget_in_child() -> None:
    """A forked process has no thread for the loop, and perhaps somebody else's lock."""
    global _lock, _loop
    _lock, _loop = threading.Lock(), None


os.register_at_fork(after_in_child=_forget_in_child)


def on_background_loop(waiting: Coroutine[Any, Any, Result]) -> Result:
    """Wait for a coroutine's result. Ctrl-C cancels it and waits until it has ended.

    Raises RuntimeError when it is called on that loop itself, where it could never return.
    """
    loop = background_loop()
    if loop is _running_loop():
        waiting.close()
        raise RuntimeError("this call waits; in a coroutine of envsdk's loop, await the `async` form")
    answer: Future[Result] = Future()
    tasks: list[asyncio.Task[Result]] = []

    def begin() -> None:
        tasks.append(loop.create_task(waiting))
        tasks[0].add_done_callback(end)

    def end(task: asyncio.Task[Result]) -> None:
        if task.cancelled():
            answer.cancel()
        elif (error := task.exception()) is not None:
            answer.set_exception(error)
        else:
            answer.set_result(task.result())

    def interrupt() -> None:
        if tasks:
            tasks[0].cancel()
        else:  # before `begin` was on its way
            waiting.close()
            answer.cancel()

    try:
        loop.call_soon_threadsafe(begin)
        # A signal that arrives on the very way into a wait is seen when the wait ends: none is for long.
        while not wait([answer], _WAIT_S).done:
            pass
        return answer.result()
    except KeyboardInterrupt:
        loop.call_soon_threadsafe(interrupt)
        with suppress(CancelledError, Exception):
            answer.result()
        raise


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None
