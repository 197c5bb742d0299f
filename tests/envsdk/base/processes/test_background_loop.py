"""Coroutines of calls that wait: on one loop, from anywhere but that loop itself."""

from __future__ import annotations

import asyncio
import os
import signal

import pytest

from envsdk.base.processes.background_loop import background_loop, on_background_loop


async def running_loop() -> asyncio.AbstractEventLoop:
    return asyncio.get_running_loop()


def test_every_call_runs_on_the_same_loop() -> None:
    assert on_background_loop(running_loop()) is on_background_loop(running_loop()) is background_loop()


async def test_it_waits_inside_another_running_loop() -> None:
    assert on_background_loop(running_loop()) is not asyncio.get_running_loop()


def test_an_error_comes_back() -> None:
    async def fail() -> None:
        raise LookupError("gone")

    with pytest.raises(LookupError, match="gone"):
        on_background_loop(fail())


def test_a_forked_process_has_a_loop_of_its_own() -> None:
    here = on_background_loop(running_loop())
    child = os.fork()
    if not child:
        os._exit(0 if on_background_loop(running_loop()) is not here else 1)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    assert on_background_loop(running_loop()) is here


def test_on_the_loop_itself_it_is_refused() -> None:
    async def wait_for_itself() -> None:
        on_background_loop(running_loop())

    with pytest.raises(RuntimeError, match="await"):
        on_background_loop(wait_for_itself())


def test_a_signal_that_does_not_wake_the_waiting_thread_is_heeded_all_the_same() -> None:
    """As when it arrives on the way into the wait: here another thread takes it, and the wait goes on."""

    async def press() -> None:
        signal.raise_signal(signal.SIGINT)
        await asyncio.Event().wait()

    background_loop()  # a thread that begins later would not take signals either
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        with pytest.raises(KeyboardInterrupt):
            on_background_loop(press())
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
