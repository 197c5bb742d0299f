"""The mock engine's script: replies, latencies, failures, hangs."""

from __future__ import annotations

import asyncio
import statistics
import subprocess
import sys
import time
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from remote_play import play_with

from envsdk.contracts.failures import ConfigurationError
from envsdk.contracts.trajectory import FinishReason
from envsdk.engines.engine import EngineConfig, GenerationRequest, PauseMode
from envsdk.engines.mock import LognormalLatency, MockEngine, drawn_latency_s
from envsdk.engines.sampling import SamplingParams
from envsdk.testing.engines import check_result, gather


def make_engine(**settings: Any) -> MockEngine:
    return MockEngine.create(EngineConfig(model=None, sequence_length=64, strategy_config=settings))


def request(number: int, *, num_tokens: int = 8, length: int = 5, **sampling: Any) -> GenerationRequest:
    sampling = {"seed": number} | sampling
    return GenerationRequest(
        request_id=str(number),
        prompt_ids=np.arange(length, dtype=np.int32),
        sampling=SamplingParams(max_new_tokens=num_tokens, **sampling),
    )


def replies(engine: MockEngine, requests: list[GenerationRequest]) -> list[list[int]]:
    collected: list[list[int]] = []

    async def test() -> None:
        collected.extend(result.token_ids.tolist() for result in await gather(engine, requests))

    play_with(engine, test)
    return collected


def test_a_fixed_reply_is_given_to_everybody() -> None:
    assert replies(make_engine(reply=[7, 8, 9]), [request(0), request(1)]) == [[7, 8, 9]] * 2


def test_replies_cycle_by_seed_and_in_turn_without_one() -> None:
    script = [[1], [2, 3], [4]]
    assert replies(make_engine(reply=script), [request(4), request(2)]) == [[2, 3], [4]]
    unseeded = [request(n, seed=None) for n in range(4)]
    assert replies(make_engine(reply=script), unseeded) == [[1], [2, 3], [4], [1]]


def test_echo_gives_the_end_of_the_prompt() -> None:
    assert replies(make_engine(reply="echo", num_tokens=3), [request(0)]) == [[2, 3, 4]]


def test_a_scripted_reply_is_repeated_or_cut_to_num_tokens_and_ended_by_the_stop_token() -> None:
    assert replies(make_engine(reply=[1, 2], num_tokens=5), [request(0)]) == [[1, 2, 1, 2, 1]]
    assert replies(make_engine(reply=[1, 2, 3], num_tokens=2), [request(0)]) == [[1, 2]]
    stopping = request(0, stop_token_ids=(9,))
    assert replies(make_engine(reply=[1, 2]), [stopping]) == [[1, 2, 9]]
    assert replies(make_engine(reply=[1, 9, 2]), [stopping]) == [[1, 9]]


def test_without_latency_the_future_is_already_resolved() -> None:
    async def test() -> None:
        assert engine.submit(request(0)).done()

    engine = make_engine(reply=[1])
    play_with(engine, test)


def test_without_latency_a_request_costs_few_microseconds() -> None:
    engine = make_engine(reply=[1, 2, 3])
    requests = [request(n) for n in range(5000)]
    best_s = float("inf")

    async def test() -> None:
        nonlocal best_s
        for _ in range(5):
            begun = time.process_time()
            for item in requests:
                await engine.submit(item)
            best_s = min(best_s, (time.process_time() - begun) / len(requests))

    play_with(engine, test)
    assert best_s < 15e-6


@pytest.mark.parametrize(
    ("latency", "mean_s", "deviation_s"),
    [
        ({"kind": "constant", "mean_s": 2.0}, 2.0, 0.0),
        ({"kind": "lognormal", "mean_s": 2.0, "sigma": 0.5}, 2.0, 1.066),
        ({"kind": "per_token", "base_s": 1.0, "token_s": 0.1, "prompt_token_s": 0.04}, 2.0, 0.0),
    ],
)
def test_latencies_have_the_distribution_asked_for(
    latency: dict[str, Any], mean_s: float, deviation_s: float
) -> None:
    engine = MockEngine.create(
        EngineConfig(model=None, sequence_length=64, max_running=4000, strategy_config={"latency": latency})
    )
    durations: list[float] = []

    async def test() -> None:
        for number in range(4000):
            engine.submit(request(number))
        durations.extend(running.duration_s for running in engine.core.running.values())

    play_with(engine, test)
    assert statistics.mean(durations) == pytest.approx(mean_s, rel=0.05)
    assert statistics.pstdev(durations) == pytest.approx(deviation_s, rel=0.1, abs=1e-9)


def test_a_reply_takes_its_latency() -> None:
    async def test() -> None:
        begun = time.perf_counter()
        await gather(engine, [request(n) for n in range(50)])
        assert 0.1 <= time.perf_counter() - begun < 2.0

    engine = make_engine(latency={"kind": "constant", "mean_s": 0.1})
    play_with(engine, test)


def test_failures_come_at_their_rate_and_for_the_same_seeds() -> None:
    def failed() -> list[int]:
        engine = make_engine(reply=[1], failure={"rate": 0.2})
        found: list[int] = []

        async def test() -> None:
            for number, result in enumerate(await gather(engine, [request(n) for n in range(1000)])):
                if result.finish_reason is FinishReason.ERROR:
                    assert "script" in result.error
                    found.append(number)

        play_with(engine, test)
        return found

    first = failed()
    assert 150 < len(first) < 250
    assert failed() == first


def test_an_empty_reply_is_a_reply_without_tokens() -> None:
    assert replies(make_engine(reply=[1], failure={"rate": 1.0, "kind": "empty"}), [request(0)]) == [[]]


def test_a_crash_ends_every_request_and_shows_in_health() -> None:
    engine = make_engine(latency={"kind": "constant", "mean_s": 5.0}, failure={"rate": 0.05, "kind": "crash"})

    async def test() -> None:
        results = await gather(engine, [request(n) for n in range(200)])
        assert {result.finish_reason for result in results} == {FinishReason.ERROR}
        assert "crashed" in engine.health().error
        assert "crashed" in (await engine.submit(request(999))).error

    play_with(engine, test)


def test_a_hung_request_is_answered_only_by_abort() -> None:
    engine = make_engine(hang_rate=1.0)

    async def test() -> None:
        future = engine.submit(request(0))
        await asyncio.sleep(0.05)
        assert not future.done()
        engine.abort(["0"])
        assert (await future).finish_reason is FinishReason.ABORT

    play_with(engine, test)


def test_a_pause_does_not_count_as_latency() -> None:
    engine = make_engine(latency={"kind": "constant", "mean_s": 0.4})

    async def test() -> None:
        future = engine.submit(request(0))
        await engine.pause(PauseMode.KEEP)
        await asyncio.sleep(0.5)
        await engine.resume()
        begun = time.perf_counter()
        await future
        assert time.perf_counter() - begun > 0.3

    play_with(engine, test)


def test_an_update_splits_the_reply_where_its_latency_was() -> None:
    engine = make_engine(latency={"kind": "constant", "mean_s": 0.8}, load_s=0.4)

    async def test() -> None:
        running = request(0, num_tokens=40)
        future = engine.submit(running)
        await engine.load_weights({}, 5)
        result = await future
        check_result(running, result, sequence_length=64)
        assert [span.version for span in result.version_spans] == [0, 5]
        assert 15 <= result.version_spans[0].end <= 38

    play_with(engine, test)


@given(st.integers(0, 2**31 - 1), st.integers(1, 40), st.sampled_from(["random", "echo", [[3], [4, 5]]]))
@settings(max_examples=50, deadline=None)
def test_a_seed_decides_the_whole_reply(seed: int, num_tokens: int, reply: Any) -> None:
    item = request(0, num_tokens=num_tokens, seed=seed)
    first = make_engine(reply=reply)
    assert replies(first, [item]) == replies(make_engine(reply=reply), [item])


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"latncy": 1}, "latncy: unknown key; did you mean `latency`"),
        ({"latency": {"kind": "lognormal", "mean": 1, "sigma": 1}}, "did you mean `mean_s`"),
        ({"latency": {"kind": "gamma"}}, "lognormal"),
        ({"hang_rate": 1.5}, "hang_rate"),
        ({"reply": []}, "reply"),
        ({"reply": [[]]}, "reply"),
    ],
)
def test_a_bad_script_is_refused_with_what_to_write(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        make_engine(**settings)


def test_the_mock_engine_needs_no_torch() -> None:
    code = "import sys, envsdk.engines.mock; assert not {'torch', 'transformers', 'ray'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_what_a_seed_will_take_can_be_told_beforehand() -> None:
    latency = LognormalLatency(kind="lognormal", mean_s=0.2, sigma=1.0)
    # Far enough apart that a busy machine does not change their order.
    seeds = [seed for seed in range(200) if int(drawn_latency_s(latency, seed) * 1000) % 80 < 4][:6]
    drawn = {seed: drawn_latency_s(latency, seed) for seed in seeds}
    engine = make_engine(reply=[1], latency=latency.model_dump())
    took: dict[int, float] = {}

    async def test() -> None:
        began = time.monotonic()

        async def ask(seed: int) -> None:
            await engine.submit(request(seed))
            took[seed] = time.monotonic() - began

        await asyncio.gather(*map(ask, seeds))

    play_with(engine, test)
    for seed in seeds:
        assert drawn[seed] - 0.002 <= took[seed] < drawn[seed] + 0.5
    rounded = [round(drawn[seed] / 0.08) for seed in took]
    assert rounded == sorted(rounded)


def test_a_lognormal_latency_is_cut_where_asked() -> None:
    free = LognormalLatency(kind="lognormal", mean_s=0.2, sigma=1.0)
    cut = LognormalLatency(kind="lognormal", mean_s=0.2, sigma=1.0, longest_s=0.3)
    for seed in range(50):
        assert drawn_latency_s(cut, seed) == min(0.3, drawn_latency_s(free, seed))
