"""Distinguishes the user's Ctrl-C from a KeyboardInterrupt that a plug-in raises.

with noticing_ctrl_c(is_in_foreign_code):      # in the main thread, where signals arrive
    env.step(...)                              # `raise KeyboardInterrupt` here fails the environment only
"""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

_was_pressed = False


class ThreadInterrupted(KeyboardInterrupt):
    """Ctrl-C, passed on to a thread that works for the main one."""


def is_from_the_user(error: BaseException) -> bool:
    """Whether `error` is the user's Ctrl-C. Without `noticing_ctrl_c`, every KeyboardInterrupt counts."""
    if issubclass(type(error), ThreadInterrupted):
        return True
    if not issubclass(type(error), KeyboardInterrupt) or not _is_main_thread():
        return False
    return _was_pressed or signal.getsignal(signal.SIGINT) is signal.default_int_handler


@contextmanager
def noticing_ctrl_c(is_in_foreign_code: Callable[[], bool]) -> Iterator[None]:
    """Inside the block, Ctrl-C interrupts a plug-in's code at once; otherwise it keeps its present handler.

    Does nothing outside of the main thread, or when Ctrl-C is ignored.
    """
    global _was_pressed
    before = signal.getsignal(signal.SIGINT)
    if not _is_main_thread() or not callable(before):
        yield
        return

    def pressed(number: int, frame: FrameType | None) -> None:
        global _was_pressed
        _was_pressed = True
        if is_in_foreign_code():
            raise KeyboardInterrupt
        before(number, frame)

    signal.signal(signal.SIGINT, pressed)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
        _was_pressed = False


def on_stop_signals(stop: Callable[[], object]) -> None:
    """Call `stop` from the running event loop at Ctrl-C and when the process is told to end."""
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop)


def ignore_ctrl_c() -> None:
    """For processes that another one ends: Ctrl-C reaches them, too. Their children can be interrupted."""
    signal.signal(signal.SIGINT, lambda number, frame: None)


def _is_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()
