"""Coroutines of calls that wait: on one loop, from anywhere but that loop itself."""

from __future__ import annotations

import asyncio
import os

import pytest

from envsdk.processes.background_loop import background_loop, on_background_loop


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
