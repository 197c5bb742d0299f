"""A long call on a thread that ends when nobody waits for it any more.

model = await interruptible(make_policy, config)      # cancelled: the call gets a ThreadInterrupted
"""

from __future__ import annotations

import asyncio
import ctypes
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar

from envsdk.base.processes.interrupts import ThreadInterrupted

T = TypeVar("T")

_TRIES, _PATIENCE_S = 2, 0.5
"""An interrupt may come where code of a plug-in catches it; a call in C heeds it when it returns."""


async def interruptible(function: Callable[..., T], *arguments: Any) -> T:
    """`function(*arguments)` on a thread of its own; returns and raises what it does.

    Cancelling interrupts the call as Ctrl-C does in the main thread, and waits up to one second for its end.
    """
    loop = asyncio.get_running_loop()
    ended: asyncio.Future[tuple[T | None, BaseException | None]] = loop.create_future()

    def work() -> None:
        outcome: tuple[T | None, BaseException | None]
        try:
            outcome = function(*arguments), None
        except BaseException as error:  # noqa: BLE001 - raised where it is awaited
            outcome = None, error
        with suppress(RuntimeError):  # the loop has ended
            loop.call_soon_threadsafe(ended.set_result, outcome)

    thread = threading.Thread(target=work, name="envsdk-interruptible", daemon=True)
    thread.start()
    try:
        result, error = await asyncio.shield(ended)
    except asyncio.CancelledError:
        for _ in range(_TRIES):
            if not ended.done() and thread.ident is not None:
                ctypes.pythonapi.PyThreadState_SetAsyncExc(
                    ctypes.c_ulong(thread.ident), ctypes.py_object(ThreadInterrupted)
                )
            await asyncio.wait({ended}, timeout=_PATIENCE_S)
        raise
    if error is not None:
        raise error
    return result  # type: ignore[return-value]
