"""Asynchronous lines that do not share their event loop."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from typing import ClassVar

from envsdk import EnvSpec, Isolation
from tests.envsdk.testing.broken_envs.async_line import AsyncLine
from tests.envsdk.testing.broken_envs.line import BROKEN, Broken, broken


@broken("contract.calls_return", r"step\(.*\) had not returned after 0.5 s", timeout_s=0.5)
class StepHangs(AsyncLine):
    async def step(self, action):
        if self.line.place[0] == 4:
            await asyncio.get_running_loop().create_future()
        return await super().step(action)


@broken("contract.calls_return", r"reset\(.*\) had not returned after 0.5 s", timeout_s=0.5)
class ResetBlocksForEver(AsyncLine):
    never: ClassVar = threading.Event()

    async def reset(self, *, seed=None, options=None):
        if seed is not None and seed % 3 == 1:
            self.never.wait()
        return await super().reset(seed=seed)


@broken("text.any_reply_is_answered", "ConnectionError: the server is gone")
class StepRaises(AsyncLine):
    async def step(self, action):
        await asyncio.sleep(0)
        raise ConnectionError("the server is gone")


@broken("event_loop.calls_do_not_block_the_event_loop", r"step\(\) kept the event loop for \d")
class StepBlocks(AsyncLine):
    """In the first step of an episode."""

    never: ClassVar = threading.Event()

    async def reset(self, *, seed=None, options=None):
        self.is_first = True
        return await super().reset(seed=seed)

    async def step(self, action):
        if self.is_first:
            self.is_first = False
            self.never.wait(0.7)
        return await super().step(action)


@broken("event_loop.event_loops_may_change", "on the .* loop of its own it raised RuntimeError")
class KeepsItsFirstLoop(AsyncLine):
    """All instances share an event, which belongs to the loop on which it was first waited for."""

    ready: ClassVar = asyncio.Event()

    async def reset(self, *, seed=None, options=None):
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self.ready.wait(), 0.001)
        return await super().reset(seed=seed)


BROKEN.append(
    Broken(
        EnvSpec(id="broken/AwaitedInline-v0", entry_point=AsyncLine, isolation=Isolation.INLINE),
        "event_loop.asynchronous_ones_are_awaited",
        "it is an AsyncTextEnv, and its isolation is `inline`",
    )
)
