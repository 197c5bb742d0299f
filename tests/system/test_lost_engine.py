"""An engine's process is killed while its turns run: they go on at another one."""

from __future__ import annotations

import asyncio
import os
import signal
from typing import Any

import numpy as np
import pytest
import ray
from ray.exceptions import ActorUnavailableError

from envsdk.contracts.trajectory import FinishReason
from envsdk.engines.engine import EngineConfig, GenerationRequest
from envsdk.engines.engine_host import EngineHost, RayLink
from envsdk.engines.proxy import InferenceProxy
from envsdk.engines.sampling import SamplingParams
from envsdk.testing.engines import until

pytestmark = [pytest.mark.system, pytest.mark.timeout(300), pytest.mark.usefixtures("running_ray")]

NUM_TOKENS = 1000
"""The doomed engine would take most of a minute for them: it is killed long before."""
NUM_KNOWN = 20


def start_engine(logprob: float, token_s: float) -> Any:
    """A mock engine whose tokens are known by their log-probability."""
    settings = {
        "reply": [1],
        "num_tokens": NUM_TOKENS,
        "logprob": logprob,
        "latency": {"kind": "per_token", "token_s": token_s},
    }
    config = EngineConfig(model=None, sequence_length=2048, strategy_config=settings)
    actor: Any = ray.remote(num_cpus=0, max_restarts=0)(EngineHost)
    return actor.remote("mock", config)


class TornLink(RayLink):
    """One call fails while its engine lives, before the engine gets it or after."""

    torn = False

    def __init__(self, client: str, actor: Any, *, is_heard: bool) -> None:
        super().__init__(client, actor)
        self._is_heard = is_heard

    async def _exchange(self, number: int, items: list[GenerationRequest | str]) -> Any:
        if items and not self.torn:
            self.torn = True
            if self._is_heard:
                super()._exchange(number, items)
            raise ActorUnavailableError("the network was away", b"0" * 16)
        return await super()._exchange(number, items)


def request(name: str) -> GenerationRequest:
    return GenerationRequest(
        request_id=name,
        prompt_ids=np.array([7], np.int32),
        sampling=SamplingParams(max_new_tokens=NUM_TOKENS),
        session_id=name,
    )


@pytest.mark.parametrize("is_heard", [pytest.param(False, marks=pytest.mark.slow), True])
async def test_a_lost_call_costs_the_link_and_not_the_engine(is_heard: bool) -> None:
    engine = start_engine(-1.0, token_s=0.0)
    await engine.start.remote()
    link = TornLink("worker#0", engine, is_heard=is_heard)
    proxy = InferenceProxy({"only": link}, engines_return=True)
    proxy.start()
    for names in (["a", "b"], ["c"]):
        turns = [proxy.generate(request(name)) for name in names]
        for result in await asyncio.wait_for(asyncio.gather(*turns), 60):
            assert (len(result.token_ids), result.finish_reason) == (NUM_TOKENS, FinishReason.LENGTH)
    assert link.torn
    assert proxy._links["only"] is not link
    await proxy.close()
    ray.kill(engine)


async def process_of(actor: Any) -> int:
    return int(await actor.__ray_call__.remote(lambda host: os.getpid()))


async def test_turns_go_on_from_the_tokens_that_were_known_when_their_engine_was_killed() -> None:
    doomed, other = start_engine(-1.0, token_s=0.05), start_engine(-2.0, token_s=0.0)
    await asyncio.gather(doomed.start.remote(), other.start.remote())
    pid = await process_of(doomed)
    proxy = InferenceProxy({"doomed": RayLink("worker#0", doomed)}, engines_return=True)
    proxy.start()
    turns = [
        proxy.generate(
            GenerationRequest(
                request_id=f"r{number}",
                prompt_ids=np.array([7], np.int32),
                sampling=SamplingParams(max_new_tokens=NUM_TOKENS),
                session_id=f"s{number}",
            )
        )
        for number in range(4)
    ]

    def all_are_known() -> bool:
        found = [pending.sampled() for pending in proxy._pending.values()]
        return all(sampled is not None and len(sampled.token_ids) >= NUM_KNOWN for sampled in found)

    await asyncio.wait_for(until(all_are_known), 120)
    assert not any(turn.done() for turn in turns)
    os.kill(pid, signal.SIGKILL)
    proxy.add_engine("other", RayLink("worker#0", other))
    for result in await asyncio.wait_for(asyncio.gather(*turns), 120):
        assert (len(result.token_ids), result.finish_reason) == (NUM_TOKENS, FinishReason.LENGTH)
        by_doomed = int((result.logprobs == -1.0).sum())
        assert NUM_KNOWN <= by_doomed < NUM_TOKENS
        assert result.logprobs.tolist() == [-1.0] * by_doomed + [-2.0] * (NUM_TOKENS - by_doomed)
    assert list(proxy._links) == ["other"]
    await proxy.close()
