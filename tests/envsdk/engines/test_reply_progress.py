from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager

import numpy as np
import pytest
from simulated_engines import in_virtual_time

from envsdk.contracts.trajectory import FinishReason
from envsdk.engines.continuation import joined
from envsdk.engines.engine import EngineConfig, GenerationRequest, GenerationResult, TokenDelta
from envsdk.engines.mock import MockEngine
from envsdk.engines.partial_results import ProgressWatch
from envsdk.engines.sampling import SamplingParams

PERIOD_S = 0.5


def request(name: str = "r", num_tokens: int = 40) -> GenerationRequest:
    return GenerationRequest(
        request_id=name,
        prompt_ids=np.array([1], np.int32),
        sampling=SamplingParams(max_new_tokens=num_tokens, seed=1),
    )


class CountingEngine(MockEngine):
    """Notes what it is asked for."""

    asked: list[set[str]]

    async def progress(self, num_known: Mapping[str, int]) -> list[TokenDelta]:
        self.asked.append(set(num_known))
        return await super().progress(num_known)


class Watched:
    """An engine whose turns are watched, ten tokens per second and turn."""

    def __init__(self, *, spare_short_turns: bool) -> None:
        settings = {"vocab_size": 50, "latency": {"kind": "per_token", "token_s": 0.1}}
        config = EngineConfig(model=None, sequence_length=512, strategy_config=settings)
        engine = CountingEngine.create(config)
        assert isinstance(engine, CountingEngine)
        self.engine = engine
        self.engine.asked = []
        self.reports: list[Sequence[tuple[str, TokenDelta]]] = []
        self.watch: ProgressWatch[str] = ProgressWatch(
            engine, self.reports.append, period_s=PERIOD_S, spare_short_turns=spare_short_turns
        )

    def submit(self, asked: GenerationRequest, owner: str = "me") -> asyncio.Future[GenerationResult]:
        self.watch.opened(asked.request_id, owner)
        future = self.engine.submit(asked)
        future.add_done_callback(lambda _: self.watch.ended(asked.request_id))
        return future

    def deltas(self, name: str = "r") -> list[TokenDelta]:
        return [delta for report in self.reports for _, delta in report if delta.request_id == name]


@asynccontextmanager
async def watched(*, spare_short_turns: bool = False) -> AsyncIterator[Watched]:
    found = Watched(spare_short_turns=spare_short_turns)
    await found.engine.start()
    running = asyncio.ensure_future(found.watch.run())
    yield found
    running.cancel()
    await found.engine.close()


def assert_begin(result: GenerationResult, deltas: list[TokenDelta]) -> None:
    known = joined(deltas)
    assert known is not None
    assert known.token_ids.tolist() == result.token_ids[: len(known.token_ids)].tolist()


@in_virtual_time
async def test_what_is_reported_end_to_end_begins_the_result_and_goes_to_its_owner() -> None:
    async with watched() as engine:
        futures = {name: engine.submit(request(name), owner=f"owner of {name}") for name in "ab"}
        results = {name: await future for name, future in futures.items()}
        for name, result in results.items():
            assert len(engine.deltas(name)) == 7  # every half second of the four that it took
            assert_begin(result, engine.deltas(name))
        for report in engine.reports:
            assert all(owner == f"owner of {delta.request_id}" for owner, delta in report)


@in_virtual_time
async def test_a_turn_that_ends_within_a_period_is_not_asked_about_where_short_ones_are_spared() -> None:
    async with watched(spare_short_turns=True) as engine:
        for number in range(20):
            short = engine.submit(request(f"short {number}", num_tokens=1 + number % 5))
            await short
        assert engine.engine.asked == []
        await engine.submit(request(num_tokens=12))
        assert engine.engine.asked == [{"r"}]


@in_virtual_time
async def test_a_turn_that_took_the_name_of_another_meanwhile_gets_nothing_of_it() -> None:
    async with watched() as engine:
        progress = engine.engine.progress
        is_asked, answers = asyncio.Event(), asyncio.Event()

        async def slowly(num_known: Mapping[str, int]) -> list[TokenDelta]:
            deltas = await progress(num_known)
            is_asked.set()
            await answers.wait()
            return deltas

        engine.engine.progress = slowly  # type: ignore[method-assign]
        first = engine.submit(request())
        await is_asked.wait()
        engine.engine.abort(["r"])
        await asyncio.sleep(0)
        assert (await first).finish_reason is FinishReason.ABORT
        second = engine.submit(request())
        answers.set()
        await asyncio.sleep(0)
        assert engine.deltas() == []
        assert_begin(await second, engine.deltas())


@in_virtual_time
async def test_nothing_is_asked_while_no_turn_is_open() -> None:
    async with watched() as engine:
        await engine.submit(request())
        num_asked = len(engine.engine.asked)
        await asyncio.sleep(10 * PERIOD_S)
        assert len(engine.engine.asked) == num_asked
        await engine.submit(request("later"))
        assert engine.deltas("later")


@in_virtual_time
async def test_an_engine_that_fails_to_tell_is_asked_again(caplog: pytest.LogCaptureFixture) -> None:
    async with watched(spare_short_turns=False) as it:
        tell, failures = it.engine.progress, [RuntimeError("not now"), RuntimeError("not now")]

        async def tell_later(num_known: Mapping[str, int]) -> list[TokenDelta]:
            if failures:
                raise failures.pop()
            return await tell(num_known)

        it.engine.progress = tell_later  # type: ignore[method-assign]
        result = await it.submit(request())
        told = joined([delta for report in it.reports for _, delta in report])
        assert told is not None
        assert told.token_ids.tolist() == result.token_ids[: len(told.token_ids)].tolist()
    assert caplog.text.count("not now") == 1
