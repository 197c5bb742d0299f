"""One worker process of a reward function.

start --> fork --> build the function --> score(samples) --> rewards --> ... --> end
                                                \\-> Fault: the process is of no further use
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import os
import pickle
import resource
import sys
from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import psutil

from envsdk.base.processes.forked import ForkedProcesses
from envsdk.base.processes.killable import KillableProcess
from envsdk.base.processes.process_tree import kill_descendants
from envsdk.contracts.failures import (
    Boundary,
    Failure,
    describe_error,
    raised_at,
    without_lone_surrogates,
)
from envsdk.rewards.loading import load_reward, reward_class
from envsdk.rewards.reward import Reward, RewardError, RewardFunction, Sample

_MAX_VERDICT = 2000
_MAX_PARTS = 100
_MOST_WALL = 20
"""A call that waits for a processor is ended after this many times its limit."""


class Fault(Exception):
    """A response was not scored, and whose fault that is remains to be found out."""

    def __init__(self, kind: str, message: str, *, is_certain: bool = False) -> None:
        super().__init__(message)
        self.kind = kind
        """`raised`, `deadline`, `memory` or `died`."""
        self.is_certain = is_certain
        """Neither the worker's past nor the machine had a part in it: it would happen again."""


def plain_reward(answer: object) -> Reward:
    """What a function returned, with plain Python types. Raises RewardError: no response can change them."""
    if inspect.iscoroutine(answer):
        answer.close()
        raise RewardError("score is async: derive from AsyncRewardFunction, and call it score_async")
    if not isinstance(answer, Reward):
        raise RewardError(f"the reward function must return a Reward, not {type(answer).__name__}")
    if len(answer.parts) > _MAX_PARTS:
        raise RewardError(f"a reward has at most {_MAX_PARTS} parts, not {len(answer.parts)}")
    return Reward(
        value=float(answer.value),
        verdict=without_lone_surrogates(str(answer.verdict)[:_MAX_VERDICT]),
        correct=None if answer.correct is None else bool(answer.correct),
        parts={str(name): float(part) for name, part in answer.parts.items()},
    )


def preload(name: str) -> None:
    """In the parent of the workers: import the reward and what it needs, whatever that prints."""
    _silence()
    reward_class(name).preload()


@dataclass(frozen=True, slots=True)
class ScorerBlueprint:
    """How a worker builds its reward function."""

    name: str
    settings: Mapping[str, Any]
    memory_mb: int | None

    def build(self) -> Scorer:
        _silence()
        function = load_reward(self.name, self.settings)
        if self.memory_mb is not None and sys.platform == "linux":
            limit = psutil.Process().memory_info().vms + self.memory_mb * 2**20
            _, hard = resource.getrlimit(resource.RLIMIT_AS)
            resource.setrlimit(resource.RLIMIT_AS, (limit, hard))
        return Scorer(function)

    def failure_of(self, error: BaseException, verb: str) -> Failure:
        kind = "raised"
        if issubclass(type(error), MemoryError):
            kind = "memory"
        elif issubclass(type(error), RewardError):
            kind = "reward_error"
        failure = Failure.from_exception(Boundary.REWARD, error, kind=kind)
        return (
            replace(failure, message=f"{failure.message} ({raised_at(error)})")
            if kind == "raised"
            else failure
        )


class Scorer:
    """What a worker process serves."""

    def __init__(self, function: RewardFunction) -> None:
        self._function = function
        self._pid = os.getpid()

    def score(self, samples: Sequence[Sample]) -> list[Reward]:
        try:
            if len(samples) == 1:
                return [plain_reward(self._function.score(samples[0]))]
            rewards = [plain_reward(each) for each in self._function.score_batch(samples)]
            if len(rewards) != len(samples):
                raise ValueError(f"score_batch returned {len(rewards)} rewards for {len(samples)} samples")
            return rewards
        finally:
            if os.getpid() != self._pid:
                os._exit(1)  # a child that the function forked must not answer in its place
            _end_children()


def _end_children() -> None:
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
        kill_descendants(os.getpid())
        while os.waitpid(-1, 0)[0]:
            pass
    except ChildProcessError:
        pass


def _silence() -> None:
    """What a reward prints would get between a command's own lines, megabytes of it at worst."""
    null = os.open(os.devnull, os.O_RDWR)
    for stream in (1, 2):
        os.dup2(null, stream)
    os.close(null)


class Worker:
    """The host's side of one process. Belongs to one event loop; takes one call at a time."""

    def __init__(self, process: KillableProcess) -> None:
        self._process = process
        self._clock = _open_clock(process.pid)
        self._is_in_a_call = False

    @classmethod
    async def fork(cls, processes: ForkedProcesses, timeout_s: float) -> Worker:
        """A process that has built nothing. Raises OSError and TimeoutError."""
        return cls(await KillableProcess.fork(processes, timeout_s))

    async def build(self, blueprint: ScorerBlueprint, timeout_s: float) -> None:
        """Build the function. Raises RewardError, TimeoutError and Fault."""
        built = self._process.ask("start", {"blueprint": blueprint})
        await self._answer(asyncio.wait_for(built, timeout_s))

    async def score(self, samples: Sequence[Sample], limit_s: float) -> list[Reward]:
        """The rewards of samples. Raises Fault, and RewardError for what no response can have caused."""
        try:
            message = self._process.ask("score", {"samples": list(samples)})
        except (pickle.PicklingError, TypeError, AttributeError) as error:
            raise RewardError(f"a sample cannot be sent to a worker: {describe_error(error)}") from error
        self._is_in_a_call = True
        rewards: list[Reward] = await self._answer(self._within(message, limit_s))
        self._is_in_a_call = False
        return rewards

    @property
    def is_usable(self) -> bool:
        """Whether the process lives and waits for a call."""
        return not self._process.has_ended and not self._is_in_a_call

    def end(self) -> None:
        """Kill the process, without waiting for its end. Idempotent."""
        self._process.end()
        if self._clock is not None:
            os.close(self._clock)
            self._clock = None

    async def _within(self, message: asyncio.Future[bytes], limit_s: float) -> bytes:
        """The message, as long as it may take: time that the process waits for a processor is free."""
        try:
            await self._wait(message, limit_s)
            return message.result()
        finally:
            message.cancel()

    async def _wait(self, message: asyncio.Future[bytes], limit_s: float) -> None:
        clock = asyncio.get_running_loop().time
        began, (busy_before, waited_before) = clock(), self._times()
        left_s = limit_s
        while True:
            await asyncio.wait((message,), timeout=left_s)
            if not message.done():
                # The loop may have been busy elsewhere, and the answer be here already.
                await asyncio.wait((message,), timeout=0.05)
            if message.done():
                return
            wall_s = clock() - began
            busy, waited = self._times()
            left_s = limit_s - (wall_s - (waited - waited_before))
            if left_s <= 0:
                raise Fault(
                    "deadline",
                    f"scoring it took longer than timeout_s={limit_s:g}",
                    is_certain=busy - busy_before >= limit_s / 2,
                )
            if wall_s >= _MOST_WALL * limit_s:
                raise RewardError(
                    f"scoring waited {wall_s:.0f} s for a processor: give the run fewer reward workers "
                    "(world_size) or more processors"
                )
            left_s = max(left_s, 0.01)

    async def _answer(self, message: Awaitable[bytes]) -> Any:
        try:
            is_well, answer = pickle.loads(await message)
        except EOFError:
            code = await self._process.exit_code()
            how = "killed" if code is None else f"signal {-code}" if code < 0 else f"exit code {code}"
            raise Fault("died", f"the scorer died on it ({how})") from None
        if is_well:
            return answer
        assert isinstance(answer, Failure)
        if answer.kind == "reward_error":
            self._is_in_a_call = False
            raise RewardError(answer.message.partition(": ")[2] or answer.message)
        if answer.kind == "memory":
            raise Fault("memory", "scoring it needed more memory than a worker may have (memory_mb)")
        raise Fault("raised", f"scoring it raised {answer.message}")

    def _times(self) -> tuple[float, float]:
        """Seconds for which the process ran on a processor, and for which it waited for one.

        (0, 0) where the system does not tell: then the deadline counts the clock on the wall.
        """
        if self._clock is not None:
            with contextlib.suppress(OSError, ValueError):
                busy, waited, *_ = os.pread(self._clock, 100, 0).split()
                return int(busy) / 1e9, int(waited) / 1e9
        return 0.0, 0.0


def _open_clock(pid: int) -> int | None:
    try:
        return os.open(f"/proc/{pid}/schedstat", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
