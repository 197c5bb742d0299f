"""Environments that are slow or broken on purpose, for tests that start real processes.

python -c "from tests.system.toy_envs import run; run('collect')" toys/Slow-v1 --out DIR
"""

from __future__ import annotations

import asyncio
import importlib
import multiprocessing
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, ClassVar

from envsdk import AsyncTextEnv, EnvSpec, Isolation, TextEnv, register


class CountdownEnv(TextEnv):
    """Reply `go` two to four times, the seed decides how often; `sleep_s` per step."""

    def __init__(self, sleep_s: float = 0.0, fails_every: int = 0) -> None:
        self._sleep_s = sleep_s
        self._fails_every = fails_every
        self._seed = 0
        self._left = 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[str, dict[str, Any]]:
        self._seed = seed or 0
        self._left = 2 + self._seed % 3
        if self._fails_every and self._seed % self._fails_every == 0:
            raise RuntimeError("no such level")
        return f"{self._left} left", {}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        time.sleep(self._sleep_s)
        self._left -= action == "go"
        done = self._left == 0
        return f"{self._left} left", float(done), done, False, {"success": done}

    def oracle(self) -> str:
        return "go"

    def legal_actions(self) -> tuple[str, ...]:
        return ("go", "wait")


class DeadlyEnv(CountdownEnv):
    """Takes its worker process with it."""

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        if multiprocessing.parent_process() is not None:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().step(action)


class StuckEnv(CountdownEnv):
    """Some seeds never return from `where`: asleep, or in C code that keeps the interpreter's lock.

    It has started a child then, in a session of its own, and written its id to the file `child`.
    """

    def __init__(self, how: str = "sleep", where: str = "step", child: str = "") -> None:
        super().__init__()
        self._how, self._where, self._child = how, where, child

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[str, dict[str, Any]]:
        result = super().reset(seed=seed, options=options)
        self._get_stuck("reset")
        return result

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        self._get_stuck("step")
        return super().step(action)

    def _get_stuck(self, where: str) -> None:
        if where != self._where or self._seed % 4:
            return
        if self._child:
            sleeper = subprocess.Popen(["sleep", "3600"], start_new_session=True)
            Path(self._child).write_text(str(sleeper.pid))
        if self._how == "sleep":
            time.sleep(3600)
        if self._how == "count":
            sum(range(10**15))
        re.match(r"(a+)+$", "a" * 64 + "b")


class MuteEnv(CountdownEnv):
    """Has no oracle."""

    oracle = TextEnv.oracle


class PricedEnv(CountdownEnv):
    """Pays `prize` at the end."""

    def __init__(self, prize: float = 1.0) -> None:
        super().__init__()
        self._prize = prize

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        observation, reward, *ending = super().step(action)
        return observation, self._prize * reward, *ending


class MoodyEnv(CountdownEnv):
    """Some seeds are refused the first time they are asked for."""

    refused: ClassVar[set[int]] = set()

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[str, dict[str, Any]]:
        if seed is not None and seed % 3 == 0 and seed not in self.refused:
            self.refused.add(seed)
            raise RuntimeError("not now")
        self.refused.discard(seed or 0)
        return super().reset(seed=seed, options=options)


class EvenEnv(CountdownEnv):
    """As many turns under every seed."""

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[str, dict[str, Any]]:
        return super().reset(seed=0, options=options)


class AwaitedEnv(AsyncTextEnv):
    """A countdown whose turns await 10 ms each; the first `num_envs` episodes begin together."""

    started: ClassVar[list[asyncio.Event]] = []

    def __init__(self, num_envs: int = 1) -> None:
        self._num_envs = num_envs
        self._env = CountdownEnv()

    async def reset(  # type: ignore[override]
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[str, dict[str, Any]]:
        started = asyncio.Event()
        self.started.append(started)
        if len(self.started) == self._num_envs:
            for each in self.started:
                each.set()
        if len(self.started) <= self._num_envs:
            await started.wait()
        return self._env.reset(seed=seed, options=options)

    async def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:  # type: ignore[override]
        await asyncio.sleep(0.01)
        return self._env.step(action)

    async def oracle(self) -> str:
        return self._env.oracle()


for _spec in (
    EnvSpec(
        id="toys/Awaited-v1", entry_point=f"{__name__}:AwaitedEnv", max_steps=8, isolation=Isolation.ASYNC
    ),
    EnvSpec(
        id="toys/Slow-v1", entry_point=f"{__name__}:CountdownEnv", kwargs={"sleep_s": 0.002}, max_steps=8
    ),
    EnvSpec(id="toys/Fast-v1", entry_point=f"{__name__}:CountdownEnv", max_steps=8),
    EnvSpec(
        id="toys/Flaky-v1", entry_point=f"{__name__}:CountdownEnv", kwargs={"fails_every": 4}, max_steps=8
    ),
    EnvSpec(
        id="toys/Broken-v1", entry_point=f"{__name__}:CountdownEnv", kwargs={"fails_every": 1}, max_steps=8
    ),
    EnvSpec(id="toys/Deadly-v1", entry_point=f"{__name__}:DeadlyEnv", max_steps=8),
    EnvSpec(
        id="toys/Stuck-v1",
        entry_point=f"{__name__}:StuckEnv",
        max_steps=8,
        reset_timeout_s=0.5,
        step_timeout_s=0.5,
    ),
    EnvSpec(id="toys/Priced-v1", entry_point=f"{__name__}:PricedEnv", max_steps=8),
    EnvSpec(id="toys/Moody-v1", entry_point=f"{__name__}:MoodyEnv", max_steps=8),
    EnvSpec(id="toys/Even-v1", entry_point=f"{__name__}:EvenEnv", max_steps=8),
    EnvSpec(id="toys/Mute-v1", entry_point=f"{__name__}:MuteEnv", max_steps=8),
):
    register(_spec)


def run(command: str) -> None:
    """`python -m envsdk.COMMAND` with these environments registered."""
    sys.exit(importlib.import_module(f"envsdk.{command}").main(sys.argv[1:]))
