"""`AsyncLine`, a sound environment that is awaited."""

from __future__ import annotations

import asyncio

from envsdk import AsyncTextEnv
from tests.envsdk.testing.broken_envs.line import Line


class AsyncLine(AsyncTextEnv):
    """A `Line` that lets others run at each call."""

    def __init__(self, *, max_steps: int = 60):
        self.line = Line(max_steps=max_steps)
        self.max_steps = max_steps
        self.observation_space, self.action_space = self.line.observation_space, self.line.action_space

    async def reset(self, *, seed=None, options=None):
        await super().reset(seed=seed)
        await asyncio.sleep(0)
        return self.line.reset(seed=seed, options=options)

    async def step(self, action):
        await asyncio.sleep(0)
        return self.line.step(action)

    async def snapshot(self):
        return self.line.snapshot()

    async def restore(self, snapshot):
        return self.line.restore(snapshot)

    async def oracle(self):
        return self.line.oracle()

    async def legal_actions(self):
        await asyncio.sleep(0)
        return self.line.legal_actions()

    async def state_hash(self):
        return self.line.state_hash()
