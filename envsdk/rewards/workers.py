"""Reward workers: score many responses at once, and tell a response's faults from others.

    score(sample) -> queue -> worker process -> Reward
                                  |  exception, deadline, memory limit, death: a Fault
                                  +-> the response again, in a fresh process (unless the fault is certain)
                                  +-> the row's reference answer, in a fresh process
                                         works: the response is at fault -> unscorable(reason), a wrong answer
                                         fails: the row, the function or the machine is -> RewardError, masked

The rule in full, for functions in processes, in the event loop and awaited ones:

1. A deadline counts the scoring of one response: not the queue, not the start of a worker, and not the time
   for which the worker was ready to run and had no processor.
2. A fault is repeated once in a fresh worker, unless it is certain: a deadline that the worker spent
   computing. When the response is scored there, that reward counts.
3. Then the row's reference answer is scored in a fresh worker; an empty response where the row has none. The
   outcome holds for all responses to that row for a while: ten minutes when it worked, one when it did not.
4. RewardError, a worker that cannot start and one that gets no processor are never the response's fault.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import pickle
import time
from collections import Counter, deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from hashlib import sha256
from typing import Any
from weakref import WeakKeyDictionary

from envsdk.base.processes.forked import ForkedProcesses
from envsdk.base.processes.interrupts import is_from_the_user
from envsdk.base.processes.stretches import Timed, outcome
from envsdk.contracts.failures import ConfigurationError, describe_error, raised_at
from envsdk.rewards.loading import load_reward
from envsdk.rewards.reward import AsyncRewardFunction, Reward, RewardError, RewardFunction, Runs, Sample
from envsdk.rewards.worker_process import Fault, ScorerBlueprint, Worker, plain_reward, preload

START_TIMEOUT_S = 120.0
_REFERENCE_WORKED_FOR_S = 600.0
_REFERENCE_FAILED_FOR_S = 60.0
_MAX_REFERENCES = 10_000
_NO_START_FOR_S = 5.0
"""After a worker that could not start, others are not tried for so long."""

Attempt = Callable[[Sample, bool], Awaitable[Reward]]
"""Scores a sample, in a fresh worker when the flag is set. Raises Fault and RewardError."""


@dataclass(slots=True)
class RewardCounts:
    """What workers did since they were opened."""

    scored: int = 0
    """Responses that have a reward, the faulty ones included."""
    faults: Counter[str] = field(default_factory=Counter)
    """Responses at fault, by `raised`, `deadline`, `memory`, `died`."""
    infrastructure: int = 0
    """Responses without a reward: RewardError."""
    restarts: int = 0
    """Worker processes ended after a fault."""
    seconds: float = 0.0
    """Spent scoring, the queue not included, summed over workers."""


class RewardWorkers:
    """Scores with one reward function. Belongs to the event loop in which it is used first.

    opened -> score* -> closed; processes start at the first calls that need them

        workers = RewardWorkers("math", {}, world_size=4, timeout_s=10)
        reward = await workers.score(Sample(response="4", row={"ground_truth": "4"}))
    """

    def __init__(
        self,
        name: str,
        settings: Mapping[str, Any],
        *,
        world_size: int = 1,
        timeout_s: float = 10.0,
        infer_batch_size: int = 1,
        memory_mb: int | None = 2048,
    ) -> None:
        """Raises ConfigurationError when there is no such function or a setting is wrong.

        `world_size` is the number of worker processes, or of calls awaited at once; `timeout_s` the deadline
        of one response; `infer_batch_size` the most responses that a function with a `score_batch` of its own
        gets together; `memory_mb` what a worker may allocate beyond what it starts with.
        """
        _check_sizes(name, timeout_s, world_size, infer_batch_size, memory_mb)
        self.name = name
        self.function = load_reward(name, settings)
        self.counts = RewardCounts()
        self.timeout_s = timeout_s
        self.world_size = world_size
        own_batches = type(self.function).score_batch is not RewardFunction.score_batch
        self._max_batch = infer_batch_size if own_batches else 1
        self._blueprint = ScorerBlueprint(name, dict(settings), memory_mb)
        self._processes: ForkedProcesses | None = None
        self._forking = asyncio.Lock()
        self._no_start: tuple[float, str] | None = None
        self._queue: deque[_Waiting] = deque()
        self._idle: list[Worker] = []
        self._lanes: set[asyncio.Task[None]] = set()
        self._places = asyncio.Semaphore(world_size)
        self._references: dict[bytes, tuple[float, str | None]] = {}
        self._checks: dict[bytes, asyncio.Future[str | None]] = {}
        self._is_closed = False

    async def score(self, sample: Sample) -> Reward:
        """The reward of one response. Raises RewardError for what the response did not cause.

        A cancelled call leaves its worker to the next one.
        """
        if self._is_closed:
            raise RewardError(f"the workers of reward {self.name!r} are closed")
        try:
            if isinstance(self.function, AsyncRewardFunction):
                async with contextlib.nullcontext() if self.function.keeps_deadline else self._places:
                    reward = await self._timed(self._settle(sample, self._await))
            elif self.function.runs is Runs.INLINE:
                reward = await self._timed(self._settle(sample, self._run))
            else:
                reward = await self._enqueue(sample)
        except RewardError:
            self.counts.infrastructure += 1
            raise
        self.counts.scored += 1
        return reward

    @property
    def queue_length(self) -> int:
        """Responses that wait for a worker."""
        return sum(not waiting.answer.done() for waiting in self._queue)

    async def close(self) -> None:
        """End all workers; calls under way raise RewardError. Idempotent."""
        self._is_closed = True
        lanes = list(self._lanes)
        for lane in lanes:
            lane.cancel()
        await asyncio.gather(*lanes, return_exceptions=True)
        for waiting in self._queue:
            waiting.fail(RewardError(f"the workers of reward {self.name!r} were closed"))
        self._queue.clear()
        for worker in self._idle:
            worker.end()
        self._idle.clear()
        if self._processes is not None:
            self._processes.close()
            self._processes = None
        if isinstance(self.function, AsyncRewardFunction):
            await self.function.close()

    async def _timed(self, scoring: Awaitable[Reward]) -> Reward:
        began = time.monotonic()
        try:
            return await scoring
        finally:
            self.counts.seconds += time.monotonic() - began

    async def _settle(self, sample: Sample, attempt: Attempt) -> Reward:
        """The reward of a sample by the rule that the module states. Raises RewardError."""
        try:
            return await attempt(sample, False)
        except Fault as error:
            fault = error
        if not fault.is_certain:
            try:
                return await attempt(sample, True)
            except Fault as error:
                fault = error
        problem = await self._problem_of_the_row(sample, attempt)
        if problem is not None:
            problem = problem.replace(str(fault), "the same")
            raise RewardError(f"{fault}. No fault of the response: {problem}") from fault
        self.counts.faults[fault.kind] += 1
        try:
            return replace(plain_reward(self.function.unscorable(str(fault))), fault=fault.kind)
        except Exception as error:  # boundary: a reward function
            raise RewardError(f"unscorable raised {describe_error(error)}") from error

    async def _problem_of_the_row(self, sample: Sample, attempt: Attempt) -> str | None:
        """Why the row's reference answer cannot be scored; None when it can."""
        try:
            reference = self.function.reference(sample)
            key = sha256(pickle.dumps((dict(sample.row), list(sample.messages), reference))).digest()
        except Exception as error:  # noqa: BLE001 - boundary: a reward function
            return f"asking for the row's reference answer raised {describe_error(error)}"
        until, problem = self._references.get(key, (0.0, None))
        if time.monotonic() < until:
            return problem
        if (check := self._checks.get(key)) is not None:
            return await asyncio.shield(check)
        check = self._checks[key] = asyncio.get_running_loop().create_future()
        problem = "the check of the row's reference answer was cancelled"
        try:
            problem = await self._check(sample, reference, attempt)
        finally:
            del self._checks[key]
            check.set_result(problem)
        lasts_s = _REFERENCE_WORKED_FOR_S if problem is None else _REFERENCE_FAILED_FOR_S
        if len(self._references) >= _MAX_REFERENCES:
            del self._references[next(iter(self._references))]
        self._references[key] = (time.monotonic() + lasts_s, problem)
        return problem

    async def _check(self, sample: Sample, reference: str | None, attempt: Attempt) -> str | None:
        which = "an empty response" if reference is None else "the row's reference answer"
        try:
            await attempt(replace(sample, response=reference or ""), True)
        except (Fault, RewardError) as error:
            return f"with {which}: {error}"
        return None

    async def _run(self, sample: Sample, is_fresh: bool) -> Reward:
        try:
            return plain_reward(self.function.score(sample))
        except RewardError:
            raise
        except BaseException as error:
            if is_from_the_user(error):
                raise
            raised = f"scoring it raised {describe_error(error)} ({raised_at(error)})"
            raise Fault("raised", raised, is_certain=True) from error

    async def _await(self, sample: Sample, is_fresh: bool) -> Reward:
        function = self.function
        assert isinstance(function, AsyncRewardFunction)

        async def reward() -> Reward:
            return plain_reward(await function.score_async(sample))

        timed = Timed(reward())
        call = asyncio.create_task(outcome(timed))
        try:
            await asyncio.wait({call}, timeout=None if function.keeps_deadline else self.timeout_s)
        finally:
            call.cancel()
        timed.warn_of(f"reward {self.name!r}")
        late = f"scoring it took longer than timeout_s={self.timeout_s:g}"
        if timed.longest_s > self.timeout_s and not function.keeps_deadline:
            raise Fault("deadline", f"{late} without an await", is_certain=True)
        if not call.done():
            raise Fault("deadline", late)
        answer, error = call.result()
        if error is None:
            assert isinstance(answer, Reward)
            return answer
        if isinstance(error, RewardError) or is_from_the_user(error):
            raise error
        raised = f"scoring it raised {describe_error(error)} ({raised_at(error)})"
        raise Fault("raised", raised) from error

    async def _enqueue(self, sample: Sample) -> Reward:
        waiting = _Waiting(sample, asyncio.get_running_loop().create_future())
        self._queue.append(waiting)
        self._open_lanes()
        return await waiting.answer

    def _open_lanes(self) -> None:
        if len(self._lanes) < self.world_size and self._queue:
            lane = asyncio.create_task(self._work())
            self._lanes.add(lane)

    async def _work(self) -> None:
        """One worker process, and one after it where it fails, while responses wait."""
        lane = _Lane(self, self._idle.pop() if self._idle else None)
        batch: list[_Waiting] = []
        try:
            while batch := self._next():
                began = time.monotonic()
                await self._serve(batch, lane)
                self.counts.seconds += time.monotonic() - began
        except BaseException as error:
            is_closed = isinstance(error, asyncio.CancelledError)
            why = "were closed" if is_closed else f"failed: {describe_error(error)}"
            for waiting in batch:
                waiting.fail(RewardError(f"the workers of reward {self.name!r} {why}"))
            raise
        finally:
            task = asyncio.current_task()
            assert task is not None
            self._lanes.discard(task)
            if lane.worker is not None:
                self._idle.append(lane.worker)
            if not self._is_closed:
                self._open_lanes()

    def _next(self) -> list[_Waiting]:
        """The responses to score next: those that wait alone, or as many as go together."""
        batch: list[_Waiting] = []
        while self._queue and len(batch) < self._max_batch and not (batch and self._queue[0].is_alone):
            waiting = self._queue.popleft()
            if not waiting.answer.done():  # else its episode was aborted
                batch.append(waiting)
                if waiting.is_alone:
                    break
        return batch

    async def _serve(self, batch: Sequence[_Waiting], lane: _Lane) -> None:
        try:
            if len(batch) == 1:
                batch[0].succeed(await self._settle(batch[0].sample, lane.attempt))
                return
            rewards = await lane.score([waiting.sample for waiting in batch])
            for waiting, reward in zip(batch, rewards, strict=True):
                waiting.succeed(reward)
        except (Fault, RewardError) as error:
            if len(batch) == 1 and isinstance(error, RewardError):
                batch[0].fail(error)
                return
            # One of them is the cause.
            for waiting in batch:
                waiting.is_alone = True
            self._queue.extendleft(reversed(batch))
            self._open_lanes()

    async def _start(self) -> Worker:
        """A fresh worker. Raises RewardError."""
        if self._no_start is not None and time.monotonic() < self._no_start[0]:
            raise RewardError(self._no_start[1])
        worker = None
        try:
            async with self._forking:
                if self._processes is None:
                    self._processes = ForkedProcesses(partial(preload, self.name))
                try:
                    worker = await Worker.fork(self._processes, START_TIMEOUT_S)
                except (OSError, TimeoutError):
                    self._processes.close()
                    self._processes = None
                    raise
            await worker.build(self._blueprint, START_TIMEOUT_S)
        except BaseException as error:
            if worker is not None:
                worker.end()
            if not isinstance(error, OSError | TimeoutError | Fault | RewardError):
                raise
            what = (
                f"no answer within {START_TIMEOUT_S:g} s" if isinstance(error, TimeoutError) else str(error)
            )
            message = f"a worker of reward {self.name!r} cannot start: {what}"
            self._no_start = (time.monotonic() + _NO_START_FOR_S, message)
            raise RewardError(message) from error
        return worker


@dataclass(slots=True)
class _Waiting:
    """A response in the queue."""

    sample: Sample
    answer: asyncio.Future[Reward]
    is_alone: bool = False
    """Its batch failed: it is scored by itself."""

    def succeed(self, reward: Reward) -> None:
        if not self.answer.done():
            self.answer.set_result(reward)

    def fail(self, error: RewardError) -> None:
        if not self.answer.done():
            self.answer.set_exception(error)


class _Lane:
    """The place of one worker process, which is replaced after a fault."""

    def __init__(self, owner: RewardWorkers, worker: Worker | None) -> None:
        self._owner = owner
        self.worker = worker

    async def attempt(self, sample: Sample, is_fresh: bool) -> Reward:
        if is_fresh:
            self._drop()
        return (await self.score([sample]))[0]

    async def score(self, samples: Sequence[Sample]) -> list[Reward]:
        if self.worker is not None and not self.worker.is_usable:
            self._drop()
        worker = self.worker = self.worker or await self._owner._start()
        try:
            return await worker.score(samples, self._owner.timeout_s * len(samples))
        except BaseException as error:
            if not isinstance(error, RewardError) or not worker.is_usable:
                self._owner.counts.restarts += 1
                self._drop()
            raise

    def _drop(self) -> None:
        worker, self.worker = self.worker, None
        if worker is not None:
            worker.end()


_shared: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[str, RewardWorkers]] = WeakKeyDictionary()
_closers: WeakKeyDictionary[asyncio.AbstractEventLoop, AsyncGenerator[None, None]] = WeakKeyDictionary()


def shared_workers(name: str, settings: Mapping[str, Any], **sizes: Any) -> RewardWorkers:
    """The workers that all environments of this event loop use for one function; closed with the loop.

    `sizes` are the keywords of RewardWorkers.
    """
    loop = asyncio.get_running_loop()
    workers = _shared.setdefault(loop, {})
    if loop not in _closers:
        # `asyncio.run` closes generators that were started, and so the workers.
        closer = _closers[loop] = _close_shared(loop)
        with contextlib.suppress(StopIteration):
            closer.__anext__().send(None)
    key = json.dumps([name, settings, sizes], sort_keys=True, default=str)
    if key not in workers or workers[key]._is_closed:
        workers[key] = RewardWorkers(name, settings, **sizes)
    return workers[key]


async def _close_shared(loop: asyncio.AbstractEventLoop) -> AsyncGenerator[None, None]:
    try:
        yield
    finally:
        for workers in _shared.pop(loop, {}).values():
            await workers.close()


def _check_sizes(name: str, timeout_s: float, world_size: int, batch: int, memory_mb: int | None) -> None:
    for key, value in (
        ("timeout_s", timeout_s),
        ("world_size", world_size),
        ("infer_batch_size", batch),
        ("memory_mb", 1 if memory_mb is None else memory_mb),
    ):
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if not is_number or not value > 0:
            raise ConfigurationError(f"reward {name!r}: {key} must be a number above 0, not {value!r}")
