from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import numpy as np

from envsdk.inference.continuation import joined
from envsdk.inference.engine import (
    EngineConfig,
    GenerationRequest,
    GenerationResult,
    SamplingParams,
    TokenDelta,
)
from envsdk.inference.mock import MockEngine
from envsdk.inference.progress import ProgressWatch

PERIOD_S = 0.01


def request(name: str = "r", num_tokens: int = 40) -> GenerationRequest:
    return GenerationRequest(
        request_id=name,
        prompt_ids=np.array([1], np.int32),
        sampling=SamplingParams(max_new_tokens=num_tokens, seed=1),
    )


class Watched:
    """An engine whose turns are watched."""

    def __init__(self, engine: MockEngine, *, spare_short_turns: bool) -> None:
        self.engine = engine
        self.reports: list[Sequence[tuple[str, TokenDelta]]] = []
        self.watch: ProgressWatch[str] = ProgressWatch(
            engine, self.reports.append, period_s=PERIOD_S, spare_short_turns=spare_short_turns
        )

    def submit(self, asked: GenerationRequest, owner: str = "me") -> asyncio.Future[GenerationResult]:
        self.watch.opened(asked.request_id, owner)
        future = self.engine.submit(asked)
        future.add_done_callback(lambda _: self.watch.ended(asked.request_id))
        return future

    def deltas(self) -> list[tuple[str, TokenDelta]]:
        return [found for report in self.reports for found in report]


@asynccontextmanager
async def watched(*, spare_short_turns: bool = False, **mock: Any) -> AsyncIterator[Watched]:
    settings = {"vocab_size": 50, "latency": {"kind": "constant", "mean_s": 0.2}} | mock
    engine = MockEngine.create(EngineConfig(model=None, sequence_length=512, strategy_config=settings))
    await engine.start()
    found = Watched(engine, spare_short_turns=spare_short_turns)
    running = asyncio.ensure_future(found.watch.run())
    try:
        yield found
    finally:
        running.cancel()
        await engine.close()


async def test_what_is_reported_end_to_end_begins_the_result_and_goes_to_its_owner() -> None:
    async with watched() as engine:
        futures = {name: engine.submit(request(name), owner=f"owner of {name}") for name in "ab"}
        results = {name: await asyncio.wait_for(future, 10) for name, future in futures.items()}
        for name, result in results.items():
            mine = [delta for owner, delta in engine.deltas() if delta.request_id == name]
            assert len(mine) > 1
            known = joined(mine)
            assert known is not None
            assert known.token_ids.tolist() == result.token_ids[: len(known.token_ids)].tolist()
        assert all(owner == f"owner of {delta.request_id}" for owner, delta in engine.deltas())


async def test_a_turn_that_ends_within_a_period_is_not_asked_about_where_short_ones_are_spared() -> None:
    async with watched(spare_short_turns=True) as engine:
        engine.engine.progress = None  # type: ignore[method-assign, assignment] # asking would raise
        short = request("short", num_tokens=1)
        for _ in range(3):
            await asyncio.sleep(0.4 * PERIOD_S)
            engine.watch.opened(short.request_id, "me")
            await asyncio.sleep(0.4 * PERIOD_S)
            engine.watch.ended(short.request_id)
        assert engine.deltas() == []


async def test_a_turn_that_took_the_name_of_another_meanwhile_gets_nothing_of_it() -> None:
    async with watched() as engine:
        progress = engine.engine.progress
        is_asked, answers = asyncio.Event(), asyncio.Event()

        async def slowly(num_known: Any) -> list[TokenDelta]:
            deltas = await progress(num_known)
            if deltas:
                is_asked.set()
                await answers.wait()
            return deltas

        engine.engine.progress = slowly  # type: ignore[method-assign]
        first = engine.submit(request())
        await asyncio.wait_for(is_asked.wait(), 10)
        engine.engine.abort(["r"])
        await asyncio.wait_for(first, 10)
        engine.reports.clear()
        second = engine.submit(request())
        answers.set()
        result = await asyncio.wait_for(second, 10)
        known = joined([delta for _, delta in engine.deltas()])
        assert known is not None
        assert known.token_ids.tolist() == result.token_ids[: len(known.token_ids)].tolist()


async def test_nothing_is_asked_while_no_turn_is_open() -> None:
    async with watched() as engine:
        await asyncio.wait_for(engine.submit(request()), 10)
        await asyncio.sleep(2 * PERIOD_S)
        num_reports = len(engine.reports)
        await asyncio.sleep(3 * PERIOD_S)
        assert len(engine.reports) == num_reports
