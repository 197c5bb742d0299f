"""Calls that take long or wait for a disk, in a thread: one event loop serves many episodes."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from functools import partial
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


async def in_thread(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Call `function` in a thread, for what writes to files, descriptors or folders.

    `asyncio.to_thread` leaves its thread running when it is cancelled; this waits for the end of the call and
    raises CancelledError then. So its caller can close and delete what the call was writing to.
    """
    # A future of the executor, and no task: a loop that ends cancels all tasks.
    call = asyncio.get_running_loop().run_in_executor(None, partial(function, *args, **kwargs))
    try:
        return await asyncio.shield(call)
    except asyncio.CancelledError:
        while not call.done():
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.wait({call})
        if not call.cancelled():
            call.exception()
        raise
