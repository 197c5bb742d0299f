"""Locks by a key."""

from __future__ import annotations

import asyncio
import gc

from envsdk.base.processes import loop_locks
from envsdk.base.processes.loop_locks import lock_of


async def test_callers_with_one_key_wait_for_each_other_and_others_do_not() -> None:
    async with lock_of("a"):
        waiting = asyncio.ensure_future(lock_of("a").acquire())
        await lock_of("b").acquire()
        await asyncio.sleep(0)
        assert not waiting.done()
    assert await waiting


async def test_nothing_is_kept_of_a_key_that_nobody_uses() -> None:
    async with lock_of("a"):
        pass
    gc.collect()
    assert not list(loop_locks._locks[asyncio.get_running_loop()])


def test_nothing_is_kept_of_an_event_loop_that_has_ended() -> None:
    async def use() -> int:
        async with lock_of("a"):
            return id(asyncio.get_running_loop())

    ended = asyncio.run(use())
    gc.collect()
    assert ended not in {id(loop) for loop in loop_locks._locks}
