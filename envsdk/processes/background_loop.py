"""One event loop on a thread of its own, for the calls of the library that are not awaited.

    trajectories = on_background_loop(play())

It waits from any thread, also while another loop runs, as in a notebook. An engine that one call starts is
still there in the next.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

Result = TypeVar("Result")

_lock = threading.Lock()
_loop: asyncio.AbstractEventLoop | None = None


def background_loop() -> asyncio.AbstractEventLoop:
    """The loop of this process; started when it is first asked for. Its thread ends with the process."""
    global _loop
    with _lock:
        if _loop is None:
            _loop = asyncio.new_event_loop()
            threading.Thread(target=_loop.run_forever, name="envsdk-loop", daemon=True).start()
        return _loop


def on_background_loop(waiting: Coroutine[Any, Any, Result]) -> Result:
    """Wait for a coroutine's result. Ctrl-C cancels it and waits until it has ended.

    Raises RuntimeError when it is called on that loop itself, where it could never return.
    """
    loop = background_loop()
    if loop is _running_loop():
        waiting.close()
        raise RuntimeError("this call waits; in a coroutine of envsdk's loop, await the `async` form")
    has_ended = threading.Event()

    async def until_ended() -> Result:
        try:
            return await waiting
        finally:
            has_ended.set()

    answer = asyncio.run_coroutine_threadsafe(until_ended(), loop)
    try:
        return answer.result()
    except KeyboardInterrupt:
        answer.cancel()
        has_ended.wait()
        raise


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None
