"""Tells a Ctrl-C of the user from a KeyboardInterrupt that foreign code raises.

with noticing_ctrl_c(is_in_foreign_code):      # in the main thread, where signals arrive
    env.step(...)                              # `raise KeyboardInterrupt` in it is the environment's failure
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

_was_pressed = False


def is_from_the_user(error: BaseException) -> bool:
    """Whether `error` is the user's Ctrl-C. Where nobody notices signals, each KeyboardInterrupt may be."""
    if not issubclass(type(error), KeyboardInterrupt) or not _is_main_thread():
        return False
    return _was_pressed or signal.getsignal(signal.SIGINT) is signal.default_int_handler


@contextmanager
def noticing_ctrl_c(is_in_foreign_code: Callable[[], bool]) -> Iterator[None]:
    """Ctrl-C breaks into foreign code at once; elsewhere it does what it did outside of the block.

    Does nothing outside of the main thread, or where Ctrl-C is ignored.
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


def ignore_ctrl_c() -> None:
    """For processes that others end: Ctrl-C reaches them, too. What they start can still be interrupted."""
    signal.signal(signal.SIGINT, lambda number, frame: None)


def _is_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()
