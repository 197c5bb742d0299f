"""Links to engines in this process, for tests of what a proxy does with them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import numpy as np

from envsdk.contracts.trajectory import FinishReason, VersionSpan
from envsdk.engines.continuation import joined
from envsdk.engines.engine import (
    EngineConfig,
    EngineHealth,
    GenerationRequest,
    GenerationResult,
    PauseMode,
    TokenDelta,
)
from envsdk.engines.mock import MockEngine
from envsdk.engines.proxy import Deliver, EngineLink, InferenceProxy, LocalLink
from envsdk.engines.sampling import SamplingParams
from envsdk.testing.engines import until

SLOW = {"kind": "constant", "mean_s": 0.2}
HALF_A_SECOND = {"kind": "constant", "mean_s": 0.5}
FOREVER = {"kind": "constant", "mean_s": 3600.0}


class MortalLink(LocalLink):
    """To a real engine in this process, until it is killed: then nothing comes through any more.

    Tells what every turn has sampled, as engines in other processes do.
    """

    def __init__(self, engine: MockEngine) -> None:
        super().__init__(engine, report_s=0.002)
        self.engine = engine
        self.sent: list[GenerationRequest] = []
        self.aborted: list[str] = []
        self.deliver: Deliver | None = None
        self._killed = asyncio.Event()

    def connect(self, deliver: Deliver) -> None:
        self.deliver = deliver
        super().connect(self._unless_killed)

    def _unless_killed(self, said: Sequence[GenerationResult | TokenDelta], health: Any) -> None:
        if not self._killed.is_set():
            assert self.deliver is not None
            self.deliver(said, health)

    def send(self, request: GenerationRequest) -> None:
        self.sent.append(request)
        super().send(replace(request, stream=True))

    def abort(self, request_ids: Sequence[str]) -> None:
        self.aborted += request_ids
        super().abort(request_ids)

    def kill(self) -> None:
        self._killed.set()

    async def lost(self) -> str:
        await self._killed.wait()
        return "killed"


async def engine_link(**mock: Any) -> MortalLink:
    config = EngineConfig(
        model=None, sequence_length=512, max_running=8, strategy_config={"vocab_size": 50} | mock
    )
    engine = MockEngine.create(config)
    await engine.start()
    return MortalLink(engine)


@asynccontextmanager
async def running_proxy(links: Mapping[str, EngineLink], **options: Any) -> AsyncIterator[InferenceProxy]:
    proxy = InferenceProxy(links, **options)
    proxy.start()
    try:
        yield proxy
    finally:
        await proxy.close()


def request(number: int, *, max_new_tokens: int = 10, session: str = "") -> GenerationRequest:
    return GenerationRequest(
        request_id=f"r{number}",
        prompt_ids=np.array([1, 2, 3], np.int32),
        sampling=SamplingParams(max_new_tokens=max_new_tokens, seed=number, stop_token_ids=(0,)),
        session_id=session,
    )


async def soon(future: asyncio.Future[GenerationResult]) -> GenerationResult:
    return await asyncio.wait_for(future, timeout=60)


async def until_known(proxy: InferenceProxy, count: int) -> None:
    """Until so many tokens of each open turn have been told."""

    def are_known() -> bool:
        found = [pending.sampled() for pending in proxy._pending.values()]
        return all(sampled is not None and len(sampled.token_ids) >= count for sampled in found)

    await asyncio.wait_for(until(are_known), timeout=60)


async def turns_of_the_loop(count: int) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


def assert_whole(result: GenerationResult, asked: GenerationRequest) -> None:
    """Tokens, log-probabilities and spans agree, and the reply ended by itself."""
    assert result.request_id == asked.request_id
    assert result.finish_reason in (FinishReason.STOP, FinishReason.LENGTH)
    assert 0 < len(result.token_ids) == len(result.logprobs) <= asked.sampling.max_new_tokens
    ends_with_stop = int(result.token_ids[-1]) in asked.sampling.stop_token_ids
    assert ends_with_stop == (result.finish_reason is FinishReason.STOP)
    assert ends_with_stop or len(result.token_ids) == asked.sampling.max_new_tokens
    end = 0
    for span in result.version_spans:
        assert span.start == end < span.end
        end = span.end
    assert end == len(result.token_ids)
    versions = [span.version for span in result.version_spans]
    assert versions == sorted(versions)


def assert_told(deltas: list[TokenDelta], result: GenerationResult) -> None:
    """The deltas, end to end, are the result."""
    tokens = joined(deltas)
    assert tokens is not None
    assert tokens.token_ids.tolist() == result.token_ids.tolist()
    assert tokens.logprobs.tolist() == result.logprobs.tolist()
    assert [s.version for s in tokens.version_spans for _ in range(s.start, s.end)] == [
        s.version for s in result.version_spans for _ in range(s.start, s.end)
    ]


class ScriptedLink(EngineLink):
    """Answers when the test says so."""

    def __init__(self) -> None:
        self.sent: list[GenerationRequest] = []
        self.deliver: Deliver | None = None

    def connect(self, deliver: Deliver) -> None:
        self.deliver = deliver

    def send(self, request: GenerationRequest) -> None:
        self.sent.append(request)

    def abort(self, request_ids: Sequence[str]) -> None:
        """Nothing to end."""

    async def lost(self) -> str:
        return await asyncio.get_running_loop().create_future()

    def close(self) -> None:
        """Nothing to free."""

    def answer(self, token_ids: list[int], reason: FinishReason) -> None:
        delta = self._delta(token_ids, 0)
        result = GenerationResult(
            request_id=delta.request_id,
            token_ids=delta.token_ids,
            logprobs=delta.logprobs,
            version_spans=delta.version_spans if token_ids else (),
            finish_reason=reason,
        )
        assert self.deliver is not None
        self.deliver([result], None)

    def tell(self, token_ids: list[int], version: int = 0) -> None:
        assert self.deliver is not None
        self.deliver([self._delta(token_ids, version)], None)

    def now_at(self, version: int) -> None:
        health = EngineHealth(version=version, num_running=0, num_queued=0, num_tokens_sampled=0)
        assert self.deliver is not None
        self.deliver([], health)

    def _delta(self, token_ids: list[int], version: int) -> TokenDelta:
        return TokenDelta(
            request_id="r0",
            token_ids=np.array(token_ids, np.int32),
            logprobs=np.full(len(token_ids), -0.5, np.float32),
            version_spans=(VersionSpan(version=version, start=0, end=len(token_ids)),),
        )


async def restart(link: MortalLink, version: int) -> None:
    """A weight update in mode `restart`."""
    await link.engine.pause(PauseMode.ABORT)
    await link.engine.load_weights({}, version)
    await link.engine.resume()
    await turns_of_the_loop(5)
