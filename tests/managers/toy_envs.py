"""Environments that misbehave on purpose, and one that does not."""

from __future__ import annotations

import asyncio
import os
import re
import sys
import time
from typing import Any

import gymnasium

from envsdk.contracts.env import AsyncTextEnv, EnvSpec, Info, TextEnv
from envsdk.contracts.failures import Boundary, EnvsdkError


class CountingEnv(TextEnv):
    """Ends successfully after `num_turns` turns; reward 1 at the end."""

    observation_space = gymnasium.spaces.Text(200)
    action_space = gymnasium.spaces.Text(200)

    def __init__(self, num_turns: int = 3) -> None:
        self._num_turns = num_turns
        self._turn = 0
        self._seed: int | None = None

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, Info]:
        self._turn, self._seed = 0, seed
        return f"seed {seed} turn 0", dict(options or {})

    def step(self, action: str) -> tuple[str, float, bool, bool, Info]:
        self._turn += 1
        done = self._turn >= self._num_turns
        info: Info = {"success": done, "metrics": {"action_length": float(len(action))}}
        return f"seed {self._seed} turn {self._turn}", float(done), done, False, info

    def oracle(self) -> str:
        return "go"

    def legal_actions(self) -> list[str]:
        return ["go"]

    def state_hash(self) -> str:
        return f"{self._seed}/{self._turn}"


class BrokenSandbox(EnvsdkError):
    """Another boundary than the environment."""

    boundary = Boundary.SANDBOX


class Mute(Exception):
    """Whoever asks what it is gets another exception."""

    def __str__(self) -> str:
        raise KeyboardInterrupt("no text")

    __repr__ = __format__ = __str__  # type: ignore[assignment]

    @property
    def __class__(self) -> Any:
        raise RuntimeError("no class")


RAISED = {
    "raise_mute": Mute(),
    "raise_KeyboardInterrupt": KeyboardInterrupt(),
    "raise_GeneratorExit": GeneratorExit(),
    "raise_CancelledError": asyncio.CancelledError(),
    "raise_BaseException": BaseException("a\ud800\x00\x1b[2J" + 5_000_000 * "x"),
}


class TroublesomeEnv(CountingEnv):
    """Misbehaves in `where` (`start`, `reset`, `step`, `state_hash`, `close`).

    It will `raise` (or raise one of `RAISED`), `break_sandbox`, `exit` as a script does, `run_out` of what it
    iterates over, `hang` for an hour, `hog` the interpreter's lock, or `die` with its process, or `lie`:
    return what the contract does not allow. Or it will `flood`: its first observation has 2,000 words.

    With `share` below 1 only seeds whose last two digits are below `100 * share` misbehave.
    """

    def __init__(self, how: str, where: str = "step", share: float = 1.0, num_turns: int = 3) -> None:
        super().__init__(num_turns)
        self._how, self._where, self._share = how, where, share
        self._misbehave("start")

    def _misbehave(self, where: str) -> None:
        if where != self._where or (self._seed or 0) % 100 >= 100 * self._share:
            return
        if self._how == "raise":
            raise RuntimeError("the lake is closed")
        if self._how in RAISED:
            raise RAISED[self._how]
        if self._how == "hog":
            re.match(r"(a+)+$", "a" * 64 + "b")
        if self._how == "break_sandbox":
            raise BrokenSandbox("the lake is dry")
        if self._how == "exit":
            sys.exit("the lake is frozen")
        if self._how == "run_out":
            next(iter(()))
        if self._how == "hang":
            time.sleep(3600)
        if self._how == "die":
            os._exit(3)

    def _lies_in(self, where: str) -> bool:
        return self._how == "lie" and where == self._where

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, Info]:
        result = super().reset(seed=seed)
        self._misbehave("reset")
        if self._how == "flood" and (self._seed or 0) % 100 < 100 * self._share:
            return "turn " * 2000, result[1]
        return None if self._lies_in("reset") else result  # type: ignore[return-value]

    def step(self, action: str) -> tuple[str, float, bool, bool, Info]:
        self._misbehave("step")
        observation, reward, terminated, truncated, info = super().step(action)
        return observation, None if self._lies_in("step") else reward, terminated, truncated, info  # type: ignore[return-value]

    def state_hash(self) -> str:
        self._misbehave("state_hash")
        return 7 if self._lies_in("state_hash") else super().state_hash()  # type: ignore[return-value]

    def close(self) -> None:
        self._misbehave("close")


class AsyncCountingEnv(AsyncTextEnv):
    """A `CountingEnv` that is awaited."""

    observation_space = CountingEnv.observation_space
    action_space = CountingEnv.action_space

    def __init__(self, num_turns: int = 3) -> None:
        self.env = CountingEnv(num_turns)
        self.is_closed = False

    async def reset(  # type: ignore[override]
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[str, Info]:
        await asyncio.sleep(0)
        return self.env.reset(seed=seed, options=options)

    async def step(self, action: str) -> tuple[str, float, bool, bool, Info]:  # type: ignore[override]
        await asyncio.sleep(0)
        return self.env.step(action)

    async def oracle(self) -> str:
        return self.env.oracle()

    async def legal_actions(self) -> list[str]:
        return self.env.legal_actions()

    async def state_hash(self) -> str:
        await asyncio.sleep(0)
        return self.env.state_hash()

    async def close(self) -> None:  # type: ignore[override]
        await asyncio.sleep(0)
        self.env.close()
        self.is_closed = True


class AsyncTroublesomeEnv(AsyncCountingEnv):
    """A `TroublesomeEnv` that is awaited: what hangs awaits for ever. It may `block` the event loop, too."""

    def __init__(self, how: str, where: str = "step", share: float = 1.0, num_turns: int = 3) -> None:
        super().__init__()
        self.env = TroublesomeEnv(
            "hang" if how == "block" else "" if how == "hang" else how, where, share, num_turns
        )
        self._hangs_in = where if how == "hang" else ""

    async def reset(  # type: ignore[override]
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[str, Info]:
        await self._hang_in("reset")
        return await super().reset(seed=seed, options=options)

    async def step(self, action: str) -> tuple[str, float, bool, bool, Info]:  # type: ignore[override]
        await self._hang_in("step")
        return await super().step(action)

    async def close(self) -> None:  # type: ignore[override]
        await self._hang_in("close")
        await super().close()

    async def _hang_in(self, where: str) -> None:
        if where == self._hangs_in:
            await asyncio.get_running_loop().create_future()


class SlowlyBuiltEnv(CountingEnv):
    """Takes its time to be there."""

    def __init__(self, seconds: float) -> None:
        super().__init__()
        time.sleep(seconds)


ASYNC_COUNTING = EnvSpec(id="toy/AsyncCounting-v0", entry_point="tests.managers.toy_envs:AsyncCountingEnv")
ASYNC_TROUBLESOME = EnvSpec(
    id="toy/AsyncTroublesome-v0", entry_point="tests.managers.toy_envs:AsyncTroublesomeEnv"
)
COUNTING = EnvSpec(id="toy/Counting-v0", entry_point="tests.managers.toy_envs:CountingEnv")
TROUBLESOME = EnvSpec(id="toy/Troublesome-v0", entry_point="tests.managers.toy_envs:TroublesomeEnv")
