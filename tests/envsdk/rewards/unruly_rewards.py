"""Reward functions that do what a response says, for tests of the workers."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from envsdk.rewards.reward import AsyncRewardFunction, Reward, RewardError, RewardFunction, Runs, Sample

_BLOCKED_S = 0.6
"""More than an event loop may be kept without a warning."""


def obey(order: str) -> Any:
    """Carry out an order; None where it is none."""
    verb, _, argument = order.partition(" ")
    if verb == "loop":
        while True:
            pass
    if verb == "sleep":
        time.sleep(3600)
    if verb == "raise":
        raise RuntimeError(argument)
    if verb == "exit":
        sys.exit(3)
    if verb == "die":
        os.kill(os.getpid(), int(argument))
    if verb == "leave":
        os._exit(int(argument))
    if verb == "recurse":
        return obey(order)
    if verb == "allocate":
        return Reward(value=float(len(bytearray(int(argument) * 2**20)) > 0))
    if verb == "print":
        print("x" * int(argument), flush=True)
        print("x" * int(argument), file=sys.stderr, flush=True)
    if verb == "fork" and os.fork() == 0:
        return Reward(value=0.0, verdict="the child answers")
    if verb == "spawn":
        child = subprocess.Popen(["sleep", "3600"])
        Path(argument).write_text(str(child.pid))
    if verb == "nan":
        return Reward(value=float("nan"))
    if verb == "text":
        return "1.0"
    if verb == "await":
        return asyncio.sleep(0, Reward(value=1.0))
    if verb == "blame":
        raise RewardError("a server is down")
    if verb == "long":
        return Reward(value=1.0, verdict="\ud800" * 10**6)
    if verb == "swallow":
        try:
            signal.alarm(0)
            while True:
                pass
        except BaseException:  # noqa: BLE001 - what a bad function does
            return Reward(value=1.0)
    return None


class Unruly(RewardFunction):
    """1 for the ground truth, 0 for other texts; `runs` and orders are settings and responses."""

    def __init__(self, *, broken: str = "") -> None:
        self._broken = broken
        self._num_scored = 0

    def score(self, sample: Sample) -> Reward:
        self._num_scored += 1
        obey(self._broken)
        if sample.response.startswith("second"):
            # A fault of the worker's past: only a worker that scored before has it.
            obey("raise worn out" if self._num_scored > 1 else "")
        answer = obey(sample.response)
        if answer is not None:
            return answer  # type: ignore[no-any-return]
        is_right = sample.response == sample.ground_truth
        return Reward(
            value=float(is_right),
            verdict=f"{os.getpid()} {self._num_scored}",
            correct=is_right,
            parts={"length": len(sample.response)},
        )


class UnrulyInline(Unruly):
    runs = Runs.INLINE


class Broken(Unruly):
    """Cannot be built in a worker."""

    def __init__(self, *, pid: int) -> None:
        super().__init__()
        if os.getpid() != pid:
            raise OSError("no model file")


class NoReference(Unruly):
    def reference(self, sample: Sample) -> str | None:
        return None


class InBatches(Unruly):
    """Its verdict tells how many it scored together."""

    def score_batch(self, samples: Sequence[Sample]) -> Sequence[Reward]:
        rewards = [self.score(sample) for sample in samples]
        return [Reward(value=each.value, verdict=f"one of {len(samples)}") for each in rewards]


class Awaited(AsyncRewardFunction):
    """Its orders: `wait` without end, `block` the event loop, `raise`, `exit`, `blame`."""

    def __init__(self) -> None:
        self.most_at_once = self._at_once = 0
        self.is_closed = False

    async def score_async(self, sample: Sample) -> Reward:
        self._at_once += 1
        self.most_at_once = max(self.most_at_once, self._at_once)
        try:
            await asyncio.sleep(0)
            if sample.response == "wait":
                await asyncio.Event().wait()
            if sample.response == "block":
                time.sleep(_BLOCKED_S)  # noqa: ASYNC251 - what a bad function does
            obey(sample.response)
            return Reward(value=float(sample.response == sample.ground_truth))
        finally:
            self._at_once -= 1

    async def close(self) -> None:
        self.is_closed = True


class AwaitedItself(Awaited):
    keeps_deadline = True


class Preloaded(Unruly):
    """Tells in which process it was preloaded."""

    where: int | None = None

    @classmethod
    def preload(cls) -> None:
        cls.where = os.getpid()

    def score(self, sample: Sample) -> Reward:
        obey(sample.response)
        is_shared = self.where is not None and self.where != os.getpid()
        return Reward(value=float(is_shared), verdict=str(self.where))


class Contrary(RewardFunction):
    """`prize` for every response but the ground truth; cannot score the response `away`."""

    runs = Runs.INLINE

    def __init__(self, *, prize: float = 1.0) -> None:
        self._prize = prize

    def score(self, sample: Sample) -> Reward:
        if sample.response == "away":
            raise RewardError("a server is down")
        is_wrong = sample.response != sample.ground_truth
        return Reward(value=self._prize * is_wrong, verdict=f"{self._prize:g} at most", correct=is_wrong)
