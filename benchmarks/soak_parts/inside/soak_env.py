"""What runs inside a soak's programs: environments and messages that go wrong when the soak says so.

The soak writes a file into the folder SOAK_TROUBLE; whoever renames it first does what it says.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from ray.exceptions import ActorUnavailableError

from envsdk.base.net.long_poll import LongPoll
from envsdk.contracts.env import EnvSpec
from envsdk.envs.frozen_lake.env import FrozenLakeEnv
from envsdk.envs.swe import SPEC as SWE
from envsdk.envs.swe.env import SWEEnv
from envsdk.rewards.mathematics import MathReward
from envsdk.rewards.reward import AsyncRewardFunction, Reward, Sample

TROUBLE = Path(os.environ["SOAK_TROUBLE"])
LATE_S = 3.0
FLOOD = "flood " * 200_000
_DOUBLES: list[asyncio.Future[None]] = []
"""Calls whose answers nobody awaits."""


def claimed(prefix: str) -> str | None:
    """The kind of trouble that this process is to make now, if any."""
    for path in TROUBLE.glob(f"{prefix}*.due"):
        with contextlib.suppress(OSError):
            path.rename(path.with_suffix(".done"))
            return path.stem
    return None


def trouble(kind: str | None) -> None:
    """End the process, raise or flood, if that is what is due."""
    if kind == "environment crashes":
        os._exit(3)
    elif kind == "environment raises":
        raise RuntimeError("the soak asked for this")
    elif kind == "environment floods":
        print(FLOOD, flush=True)


def troubled_step(kind: str | None, step: tuple[Any, ...]) -> tuple[Any, ...]:
    """What a step returned, with what is due."""
    if kind == "environment floods":
        return FLOOD, *step[1:]
    if kind == "environment returns NaN":
        return step[0], float("nan"), *step[2:]
    return step


class SoakLake(FrozenLakeEnv):
    """A frozen lake, as long as nothing is due."""

    def step(self, action: str) -> Any:
        if (kind := claimed("environment")) == "environment hangs":
            time.sleep(3600)
        trouble(kind)
        return troubled_step(kind, super().step(action))


class SoakSWE(SWEEnv):
    """Repositories in sandboxes, awaited in the worker itself: a crash is the worker's."""

    async def step(self, action: str) -> Any:
        if (kind := claimed("environment")) == "environment hangs":
            await asyncio.sleep(3600)
        trouble(kind)
        return troubled_step(kind, await super().step(action))


class SoakSums(MathReward):
    """Right sums, as long as nothing is due. Runs in processes of its own."""

    def score(self, sample: Sample) -> Reward:
        if (kind := claimed("environment")) == "environment hangs":
            time.sleep(3600)
        trouble(kind)
        if kind == "environment returns NaN":
            return Reward(value=float("nan"))
        return super().score(sample)


class SoakComparisons(AsyncRewardFunction):
    """The right choice, awaited in the worker itself, which so imports this module."""

    async def score_async(self, sample: Sample) -> Reward:
        is_right = sample.response.strip().endswith(f"{sample.ground_truth}}}")
        return Reward(value=float(is_right), correct=is_right)


SPEC = EnvSpec(id="soak/Lake-v1", entry_point="soak_env:SoakLake")
SWE_SPEC = replace(SWE, id="soak/SWE-v1", entry_point="soak_env:SoakSWE")


def lost(kind: str) -> Exception:
    """What Ray raises for a call that the network lost."""
    return ActorUnavailableError(kind, bytes(16))


def with_trouble(call: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
    """The call of a long poll, which sometimes goes wrong."""

    async def troubled(number: int, items: list[Any]) -> Any:
        kind = claimed("message") or claimed("answer") if items else None
        if kind == "message lost":
            raise lost(kind)
        if kind == "message late":
            await asyncio.sleep(LATE_S)
        sent = call(number, items)
        if kind == "message doubled":
            _DOUBLES.append(asyncio.ensure_future(_quiet(call(number, items))))
        answer = await sent
        if kind == "answer lost":
            raise lost(kind)
        return answer

    return troubled


async def _quiet(call: Awaitable[Any]) -> None:
    with contextlib.suppress(Exception):
        await call


# The worker's long poll runs already when its first environment is made, and this module with it.
_send = LongPoll.send


def _send_with_trouble(self: Any, item: Any) -> None:
    if not hasattr(self, "is_troubled"):
        self.is_troubled = True
        self._call = with_trouble(self._call)
    _send(self, item)


LongPoll.send = _send_with_trouble  # type: ignore[method-assign]
