"""The front of all engines on a scripted core: queue, refusals, pauses, updates and failures."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Coroutine, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from simulated_engines import in_virtual_time, run

from envsdk.contracts.failures import EngineError
from envsdk.contracts.trajectory import FinishReason
from envsdk.engines.core import Core, CoreFailure, Counters, Reply, TaskCore
from envsdk.engines.engine import (
    EngineAbilities,
    EngineConfig,
    ErrorKind,
    GenerationRequest,
    PauseMode,
    WeightReference,
)
from envsdk.engines.front import EngineFront, WaitingReplies
from envsdk.engines.sampling import SamplingParams
from envsdk.testing.engines import EngineSuite


class ScriptedCore(Core):
    """Samples a token for each running reply every `token_s`, and does what a test asks."""

    abilities = EngineAbilities(inflight_update=True, priority=True, progress=True)

    def __init__(self, *, max_open: int = 2, token_s: float = 0.01, sequence_length: int = 256) -> None:
        self.max_open = max_open
        self.begin_raises: dict[str, Exception] = {}
        """By request id."""
        self.swap_raises = ""
        self.calls: list[str] = []
        self.running: dict[Reply, np.random.Generator] = {}
        self.clock: asyncio.Task[None] | None = None
        self.broken: Callable[[str], None]
        self._sequence_length = sequence_length
        self._token_s = token_s
        self._flowing = asyncio.Event()
        self._version = 0
        self._counters = Counters()

    async def start(self, broken: Callable[[str], None]) -> None:
        self.broken = broken
        self._flowing.set()
        self.clock = asyncio.ensure_future(self._sample())

    async def _sample(self) -> None:
        while True:
            await asyncio.sleep(self._token_s)
            await self._flowing.wait()
            for reply, draw in list(self.running.items()):
                self._sample_one(reply, draw)

    def _sample_one(self, reply: Reply, draw: np.random.Generator) -> None:
        token = int(draw.integers(64))
        self._counters.num_tokens_sampled += 1
        reply.take([token], [-1.0], self._version)
        room = self._sequence_length - len(reply.request.prompt_ids)
        if token in reply.request.sampling.stop_token_ids:
            reply.end(FinishReason.STOP)
        elif len(reply.token_ids) == min(room, reply.request.sampling.max_new_tokens):
            reply.end(FinishReason.LENGTH)

    def begin(self, reply: Reply) -> None:
        if error := self.begin_raises.get(reply.request.request_id):
            raise error
        sampling = reply.request.sampling
        self.running[reply] = np.random.default_rng(sampling.seed if sampling.temperature else 0)

    def ended(self, reply: Reply) -> None:
        self.running.pop(reply, None)

    def abort(self, replies: Collection[Reply]) -> None:
        for reply in replies:
            reply.end(FinishReason.ABORT)

    async def freeze(self) -> None:
        self.calls.append("freeze")
        self._flowing.clear()

    async def thaw(self) -> None:
        self.calls.append("thaw")
        self._flowing.set()

    async def prepare(self, weights: WeightReference) -> WeightReference:
        if not isinstance(weights, Mapping):
            raise EngineError("no mapping")
        return weights

    async def swap(self, prepared: Any, version: int, *, is_frozen: bool) -> None:
        self.calls.append(f"swap {version}")
        if self.swap_raises:
            raise RuntimeError(self.swap_raises)
        self._version = version

    def discard(self, prepared: Any) -> None:
        self.calls.append("discard")

    def counters(self) -> Counters:
        return self._counters

    async def close(self) -> None:
        if self.clock is not None:
            self.clock.cancel()


class ScriptedEngine(EngineFront):
    @classmethod
    def create(cls, config: EngineConfig) -> ScriptedEngine:
        length = config.sequence_length
        core = ScriptedCore(max_open=config.max_running, token_s=0.005, sequence_length=length)
        return cls(core, name="scripted", sequence_length=length)


class TestFrontConforms(EngineSuite):
    engine_class = ScriptedEngine

    def config(self, **changes: Any) -> EngineConfig:
        return EngineConfig(model=None, sequence_length=self.sequence_length, **changes)

    def weights(self) -> WeightReference:
        return {"weight": np.zeros(1, np.float32)}

    def play(self, scenario: Coroutine[Any, Any, None]) -> None:
        run(scenario)

    # A scripted core has no settings.
    test_an_unknown_setting_is_refused_with_the_nearest_known_one = None  # type: ignore[assignment]


def request(name: str, *, num_tokens: int = 4, **changes: Any) -> GenerationRequest:
    return GenerationRequest(
        request_id=name,
        prompt_ids=np.arange(4, dtype=np.int32),
        sampling=SamplingParams(max_new_tokens=num_tokens, seed=1),
        **changes,
    )


async def front_on(core: ScriptedCore) -> EngineFront:
    engine = ScriptedEngine(core, name="scripted", sequence_length=64)
    await engine.start()
    return engine


@in_virtual_time
async def test_a_core_that_raises_ends_that_reply_alone() -> None:
    core = ScriptedCore()
    core.begin_raises = {
        "broken": RuntimeError("no memory for it"),
        "refused": CoreFailure("no such grammar", ErrorKind.STRUCTURED_OUTPUT),
    }
    engine = await front_on(core)
    names = ["first", "broken", "refused", "next", "last"]
    results = await asyncio.gather(*(engine.submit(request(name)) for name in names))
    assert [result.finish_reason is FinishReason.ERROR for result in results] == [0, 1, 1, 0, 0]
    assert "no memory for it" in results[1].error
    assert [result.error_kind for result in results[1:3]] == [
        ErrorKind.REQUEST_FAILED,
        ErrorKind.STRUCTURED_OUTPUT,
    ]
    assert engine.health().error == ""
    await engine.close()


@in_virtual_time
async def test_a_broken_core_ends_every_reply_with_its_tokens_and_refuses_later_ones() -> None:
    core = ScriptedCore()
    engine = await front_on(core)
    running = engine.submit(request("running", num_tokens=40))
    waiting = [engine.submit(request(f"waiting {n}", num_tokens=40)) for n in range(3)]
    await asyncio.sleep(0.105)
    core.broken("the device is gone")
    for result in [await running, *await asyncio.gather(*waiting), await engine.submit(request("late"))]:
        assert (result.finish_reason, result.error) == (FinishReason.ERROR, "the device is gone")
    assert len((await running).token_ids) == 10
    assert engine.health().error == "the device is gone"
    with pytest.raises(EngineError, match="the device is gone"):
        await engine.load_weights({}, 1)
    await engine.close()


@in_virtual_time
async def test_an_update_that_breaks_off_ends_the_engine_and_one_that_is_refused_changes_nothing() -> None:
    core = ScriptedCore()
    engine = await front_on(core)
    with pytest.raises(EngineError, match="no mapping"):
        await engine.load_weights(Path("folder"), 1)
    assert (engine.health().version, engine.health().error, core.calls) == (0, "", [])
    core.swap_raises = "out of memory"
    running = engine.submit(request("running"))
    with pytest.raises(EngineError, match=r"weights 1 did not arrive.*out of memory"):
        await engine.load_weights({}, 1)
    assert "out of memory" in (await running).error
    assert core.calls == ["swap 1", "discard"]
    await engine.close()


@in_virtual_time
async def test_a_pause_in_the_middle_of_an_update_waits_for_its_swap() -> None:
    core = ScriptedCore()
    engine = await front_on(core)
    engine.submit(request("running", num_tokens=40))
    await asyncio.gather(engine.load_weights({}, 1), engine.pause(PauseMode.KEEP))
    assert sorted(core.calls) == ["discard", "freeze", "swap 1"]
    await engine.pause(PauseMode.KEEP)
    await engine.resume()
    assert core.calls[-1] == "thaw"
    assert core.calls.count("freeze") == 1
    await engine.close()


class QueueingCore(ScriptedCore):
    """Takes every request at once and samples one at a time."""

    def __init__(self) -> None:
        super().__init__(max_open=1_000)
        self.queue: list[Reply] = []

    def begin(self, reply: Reply) -> None:
        self.queue.append(reply)
        self._next()

    def ended(self, reply: Reply) -> None:
        super().ended(reply)
        self.queue = [each for each in self.queue if each is not reply]
        self._next()

    def _next(self) -> None:
        if self.queue and not self.running:
            self.queue.sort(key=lambda reply: (reply.request.priority, reply.arrival))
            super().begin(self.queue.pop(0))

    async def recall(self) -> list[Reply]:
        recalled, self.queue = self.queue, []
        await asyncio.sleep(0.001)
        return recalled

    def counters(self) -> Counters:
        self._counters.num_waiting = len(self.queue)
        return self._counters


@in_virtual_time
async def test_a_pause_takes_back_what_waits_in_the_core() -> None:
    core = QueueingCore()
    engine = await front_on(core)
    order: list[str] = []
    for name, priority in (("running", 0), ("b", 2), ("c", 2), ("gone", 0), ("a", 1)):
        future = engine.submit(request(name, priority=priority, num_tokens=20))
        future.add_done_callback(lambda done: order.append(done.result().request_id))
    assert (engine.health().num_running, engine.health().num_queued) == (1, 4)
    pausing = asyncio.ensure_future(engine.pause(PauseMode.ABORT))
    await asyncio.sleep(0)
    engine.abort(["gone"])  # while it is on its way back
    await pausing
    await asyncio.sleep(0)
    assert sorted(order) == ["gone", "running"]
    assert (engine.health().num_running, engine.health().num_queued) == (0, 3)
    await engine.resume()
    while len(order) < 5:  # noqa: ASYNC110 - in virtual time
        await asyncio.sleep(0.01)
    assert order[2:] == ["a", "b", "c"]
    await engine.close()


@given(st.lists(st.integers(-3, 3), max_size=30), st.sets(st.integers(0, 30)))
def test_replies_wait_by_priority_and_arrival(priorities: list[int], removed: set[int]) -> None:
    waiting = WaitingReplies()
    future: Any = None
    for number, priority in enumerate(priorities):
        waiting.push(Reply(request(str(number), priority=priority), future, number))
    gone = waiting.remove(map(str, removed))
    assert {reply.request.request_id for reply in gone} == {str(n) for n in removed if n < len(priorities)}
    left = [number for number in range(len(priorities)) if number not in removed]
    assert all((str(number) in waiting) == (number in left) for number in range(len(priorities)))
    order = []
    while waiting:
        reply = waiting.pop()
        assert reply.request.request_id not in waiting
        order.append(reply.arrival)
    assert order == sorted(left, key=lambda number: (priorities[number], number))


@in_virtual_time
async def test_a_canceled_request_does_not_take_a_later_one_of_its_id_along() -> None:
    engine = await front_on(ScriptedCore())
    engine.submit(request("again")).cancel()
    engine.abort(["again"])  # it ends before the loop learns that its future was canceled
    assert (await engine.submit(request("again"))).finish_reason is FinishReason.LENGTH
    await engine.close()


@in_virtual_time
async def test_a_canceled_pause_loses_no_reply_on_its_way_back() -> None:
    engine = await front_on(QueueingCore())
    futures = [engine.submit(request(str(n))) for n in range(4)]
    pausing = asyncio.ensure_future(engine.pause(PauseMode.KEEP))
    await asyncio.sleep(0)
    pausing.cancel()
    await asyncio.wait([pausing])
    await engine.resume()
    assert all(result.finish_reason is FinishReason.LENGTH for result in await asyncio.gather(*futures))
    await engine.close()


class BadlyClosingCore(QueueingCore):
    async def close(self) -> None:
        await super().close()
        await asyncio.sleep(0.01)
        raise RuntimeError("cannot close")


@in_virtual_time
async def test_close_ends_all_replies_even_if_the_core_raises_and_some_are_on_their_way_back() -> None:
    engine = await front_on(BadlyClosingCore())
    futures = [engine.submit(request(str(n))) for n in range(4)]
    pausing = asyncio.ensure_future(engine.pause(PauseMode.KEEP))
    await asyncio.sleep(0)
    with pytest.raises(RuntimeError, match="cannot close"):
        await engine.close()
    await pausing
    assert all(result.finish_reason is FinishReason.ABORT for result in await asyncio.gather(*futures))


class RaisingCore(ScriptedCore):
    """Raises in one method."""

    def __init__(self, method: str) -> None:
        super().__init__()

        def raise_error(*args: object) -> None:
            raise RuntimeError("out of order")

        setattr(self, method, raise_error)


@pytest.mark.parametrize("method", ["abort", "recall", "freeze", "thaw", "counters"])
def test_a_core_that_cannot_do_what_every_core_must_is_broken(method: str) -> None:
    async def scenario() -> None:
        engine = await front_on(RaisingCore(method))
        futures = [engine.submit(request(str(n), num_tokens=40)) for n in range(3)]
        await engine.pause(PauseMode.KEEP)
        await engine.resume()
        engine.abort(["0"])
        assert "out of order" in engine.health().error
        assert all("out of order" in result.error for result in (await asyncio.gather(*futures))[-2:])
        await engine.close()

    run(scenario())


@in_virtual_time
async def test_a_canceled_resume_is_made_up_for_by_the_next() -> None:
    core = SlowlyThawingCore()
    engine = await front_on(core)
    running = engine.submit(request("running"))
    await engine.pause(PauseMode.KEEP)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(engine.resume(), 0.001)
    await engine.resume()
    assert (await running).finish_reason is FinishReason.LENGTH
    await engine.close()


class SlowlyThawingCore(ScriptedCore):
    async def thaw(self) -> None:
        await asyncio.sleep(0.01)
        await super().thaw()


class CancelingCore(TaskCore):
    """Its client cancels what it was asked for."""

    abilities = EngineAbilities()
    max_open = 2

    async def sample(self, reply: Reply) -> None:
        raise asyncio.CancelledError

    async def freeze(self) -> None: ...

    async def thaw(self) -> None: ...

    async def prepare(self, weights: WeightReference) -> None: ...

    async def swap(self, prepared: None, version: int, *, is_frozen: bool) -> None: ...

    def counters(self) -> Counters:
        return Counters()

    async def close(self) -> None:
        await self.end_tasks()


@in_virtual_time
async def test_a_reply_whose_task_is_canceled_ends() -> None:
    engine = ScriptedEngine(CancelingCore(), name="canceling", sequence_length=64)
    await engine.start()
    assert (await engine.submit(request("canceled"))).finish_reason is FinishReason.ERROR
    await engine.close()
