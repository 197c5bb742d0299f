"""The body of the engine's actor, without Ray around it."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest
from simulated_engines import in_virtual_time

from envsdk.contracts.failures import ConfigurationError, EngineError
from envsdk.contracts.trajectory import FinishReason, VersionSpan
from envsdk.engines.continuation import joined
from envsdk.engines.engine import EngineConfig, GenerationRequest, GenerationResult, TokenDelta
from envsdk.engines.engine_host import BusyStretches, EngineHost
from envsdk.engines.sampling import SamplingParams
from envsdk.engines.wire import PackedResults, pack_requests
from envsdk.engines.wire import unpack_results as unpack
from envsdk.weights.buckets import Bucket, fill_buckets

NOTHING = pack_requests([])


async def started_host(**mock: Any) -> EngineHost:
    host = EngineHost("mock", EngineConfig(model=None, sequence_length=64, strategy_config=mock))
    await host.start()
    return host


def request(request_id: str, *, num_tokens: int = 10, stream: bool = False) -> GenerationRequest:
    return GenerationRequest(
        request_id=request_id,
        prompt_ids=np.array([1, 2], np.int32),
        sampling=SamplingParams(max_new_tokens=num_tokens, seed=1),
        stream=stream,
    )


def unpack_results(packed: PackedResults) -> list[GenerationResult]:
    return [item for item in unpack(packed) if isinstance(item, GenerationResult)]


def ids(packed: PackedResults) -> list[str]:
    return [result.request_id for result in unpack(packed)]


async def soon(call: Any) -> PackedResults:
    return await asyncio.wait_for(call, timeout=60)  # type: ignore[no-any-return]


async def turns_of_the_loop(count: int = 5) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def test_results_go_to_the_client_that_asked_with_the_engines_health() -> None:
    host = await started_host(reply=[7])
    one, two = await asyncio.gather(
        soon(host.exchange("one", 0, pack_requests([request("a"), request("b")]), [])),
        soon(host.exchange("two", 0, pack_requests([request("c")]), [])),
    )
    assert sorted(ids(one)) == ["a", "b"]
    assert ids(two) == ["c"]
    assert two.health is not None
    assert two.health.num_tokens_sampled == 3


async def test_a_call_may_abort_what_an_earlier_one_asked_for() -> None:
    host = await started_host(latency={"kind": "constant", "mean_s": 3600})
    first = asyncio.ensure_future(host.exchange("one", 0, pack_requests([request("a")]), []))
    await turns_of_the_loop()
    second = await soon(host.exchange("one", 1, NOTHING, ["a"]))
    assert ids(await first) == []
    assert [result.finish_reason for result in unpack_results(second)] == [FinishReason.ABORT]


async def test_what_a_dead_incarnation_asked_for_is_aborted_when_the_next_one_comes() -> None:
    host = await started_host(latency={"kind": "constant", "mean_s": 3600})
    dead = asyncio.ensure_future(host.exchange("val-1#0", 0, pack_requests([request("a")]), []))
    other = asyncio.ensure_future(host.exchange("val-11#0", 0, pack_requests([request("b")]), []))
    await turns_of_the_loop()
    assert (await host.health()).num_running == 2
    following = asyncio.ensure_future(host.exchange("val-1#1", 0, NOTHING, []))
    await turns_of_the_loop()
    assert (await host.health()).num_running == 1
    await soon(dead)
    assert not other.done()
    for waiting in (other, following):
        waiting.cancel()


async def test_a_late_call_of_a_dead_incarnation_asks_for_nothing_and_leaves_the_next_one_alone() -> None:
    host = await started_host(latency={"kind": "constant", "mean_s": 3600})
    following = asyncio.ensure_future(host.exchange("val-1#10", 0, pack_requests([request("a")]), []))
    await turns_of_the_loop()
    late = await soon(host.exchange("val-1#9", 3, pack_requests([request("b")]), ["a"]))
    assert ids(late) == []
    assert (await host.health()).num_running == 1
    assert not following.done()
    following.cancel()


async def test_what_others_ask_for_waits_while_only_some_clients_are_served() -> None:
    host = await started_host(reply=[7])
    await host.serve_only("val-")
    training = asyncio.ensure_future(host.exchange("train-0#0", 0, pack_requests([request("a")]), []))
    gone = asyncio.ensure_future(host.exchange("train-1#0", 0, pack_requests([request("b")]), []))
    held_out = await soon(host.exchange("val-0#0", 0, pack_requests([request("c")]), []))
    assert ids(held_out) == ["c"]
    following = asyncio.ensure_future(host.exchange("train-1#1", 0, NOTHING, []))
    assert ids(await soon(gone)) == []
    assert not training.done()
    await host.serve_only("")
    assert ids(await soon(training)) == ["a"]
    health = await host.health()
    assert health.num_tokens_sampled == 2, "the process that asked for b is gone"
    following.cancel()


@in_virtual_time
async def test_the_tokens_of_long_turns_come_while_they_run() -> None:
    host = await started_host(reply=list(range(10)), latency={"kind": "constant", "mean_s": 4.0})
    said = unpack(await host.exchange("one", 0, pack_requests([request("long")]), []))
    num_calls = 1
    while not isinstance(said[-1], GenerationResult):
        said += unpack(await host.exchange("one", num_calls, NOTHING, []))
        num_calls += 1
    deltas = [item for item in said if isinstance(item, TokenDelta)]
    known = joined(deltas)
    assert known is not None
    assert known.token_ids.tolist() == list(range(len(known.token_ids)))
    assert len(known.token_ids) >= 7  # a second before the end at the latest
    assert num_calls <= 5  # no more than one for each second


@in_virtual_time
async def test_the_tokens_of_a_long_turn_go_with_the_answer_to_a_short_one_and_not_alone() -> None:
    host = await started_host(latency={"kind": "per_token", "token_s": 0.1})
    long, short = request("long", num_tokens=60), request("short", num_tokens=12)
    packed = await host.exchange("one", 0, pack_requests([long, short]), [])
    assert [(type(item), item.request_id) for item in unpack(packed)] == [
        (TokenDelta, "long"),
        (TokenDelta, "short"),
        (GenerationResult, "short"),
    ]


@in_virtual_time
async def test_the_tokens_of_a_watched_turn_do_not_wait_for_anything_else() -> None:
    host = await started_host(reply=list(range(10)), latency={"kind": "constant", "mean_s": 4.0})
    asked = [request("watched", stream=True), request("not watched")]
    first = unpack(await host.exchange("one", 0, pack_requests(asked), []))
    assert [(type(item), item.request_id) for item in first] == [(TokenDelta, "watched")]


@pytest.mark.parametrize(("mode", "versions"), [("continue", [0, 1]), ("finish", [0]), ("restart", [0])])
async def test_a_weight_update_treats_running_turns_as_its_mode_says(mode: str, versions: list[int]) -> None:
    host = await started_host(reply=list(range(10)), latency={"kind": "constant", "mean_s": 0.3})
    exchange = asyncio.ensure_future(host.exchange("one", 0, pack_requests([request("a")]), []))
    await asyncio.sleep(0.15)
    await host.begin_update("u", 1, mode)
    await asyncio.wait_for(host.complete_update("u"), timeout=60)
    (result,) = unpack_results(await soon(exchange))
    assert [span.version for span in result.version_spans] == versions
    if mode == "restart":
        assert result.finish_reason is FinishReason.ABORT
        assert 0 < len(result.token_ids) < 10
    else:
        assert len(result.token_ids) == 10
    # The engine goes on under the new weights whatever the mode.
    (later,) = unpack_results(await soon(host.exchange("one", 1, pack_requests([request("b")]), [])))
    assert later.version_spans == (VersionSpan(version=1, start=0, end=10),)


def buckets_of(weights: dict[str, np.ndarray], num_bytes: int) -> list[Bucket]:
    return list(fill_buckets(weights.items(), lambda: np.empty(num_bytes, np.uint8)))


async def take(host: EngineHost, update_id: str, number: int, bucket: Bucket) -> bool:
    call = host.take_bucket(update_id, number, bucket.chunks, len(bucket.data), bucket.data)
    return await asyncio.wait_for(call, 60)


WEIGHTS = {str(index): np.full(100, index, np.float32) for index in range(4)}


@pytest.mark.parametrize("mode", ["continue", "finish", "restart"])
async def test_replies_go_on_while_buckets_travel_and_the_mode_counts_at_the_swap(mode: str) -> None:
    host = await started_host(reply=[7])
    await host.begin_update("u", 1, mode)
    for number, bucket in enumerate(buckets_of(WEIGHTS, 500)):
        assert await take(host, "u", number, bucket)
        # A whole reply comes back between two buckets, under the old weights.
        (reply,) = unpack_results(
            await soon(host.exchange("one", number, pack_requests([request(f"r{number}")]), []))
        )
        assert [span.version for span in reply.version_spans] == [0]
    await asyncio.wait_for(host.complete_update("u"), 60)
    (reply,) = unpack_results(await soon(host.exchange("two", 0, pack_requests([request("after")]), [])))
    assert [span.version for span in reply.version_spans] == [1]


@pytest.mark.parametrize(("mode", "versions"), [("continue", [0, 1]), ("finish", [0]), ("restart", [0])])
async def test_a_turn_that_runs_at_the_swap_is_treated_as_the_mode_says(
    mode: str, versions: list[int]
) -> None:
    host = await started_host(reply=list(range(10)), latency={"kind": "constant", "mean_s": 0.5})
    exchange = asyncio.ensure_future(host.exchange("one", 0, pack_requests([request("a")]), []))
    await asyncio.sleep(0.2)
    await host.begin_update("u", 1, mode)
    (bucket,) = buckets_of(WEIGHTS, 10_000)
    await take(host, "u", 0, bucket)
    await asyncio.wait_for(host.complete_update("u"), 60)
    (result,) = unpack_results(await soon(exchange))
    assert [span.version for span in result.version_spans] == versions
    assert (result.finish_reason is FinishReason.ABORT) == (mode == "restart")
    assert (await host.health()).version == 1


async def test_buckets_that_overtake_each_other_are_read_in_their_order() -> None:
    host = await started_host(reply=[7])
    buckets = buckets_of({"large": np.arange(300, dtype=np.float32)}, 500)
    assert len(buckets) == 3
    await host.begin_update("u", 1, "continue")
    calls = [asyncio.ensure_future(take(host, "u", number, buckets[number])) for number in (1, 0, 2)]
    assert await asyncio.gather(*calls) == [True, True, True]
    await asyncio.wait_for(host.complete_update("u"), 60)  # a torn tensor would raise
    assert (await host.health()).version == 1


async def test_an_update_that_is_abandoned_leaves_no_trace_and_the_next_one_takes_its_place() -> None:
    host = await started_host(reply=[7])
    first, *_ = buckets_of(WEIGHTS, 500)
    await host.begin_update("abandoned", 1, "continue")
    assert await take(host, "abandoned", 0, first)
    await host.abandon_update("abandoned")
    assert not await take(host, "abandoned", 1, first)
    assert (await host.health()).version == 0
    await host.begin_update("left behind", 2, "restart")
    assert await take(host, "left behind", 0, first)
    await host.begin_update("whole", 3, "restart")
    for number, bucket in enumerate(buckets_of(WEIGHTS, 500)):
        assert await take(host, "whole", number, bucket)
    await asyncio.wait_for(host.complete_update("whole"), 60)
    assert (await host.health()).version == 3
    answered = await soon(host.exchange("one", 0, pack_requests([request("a")]), []))
    assert ids(answered) == ["a"]


async def test_a_tensor_whose_end_does_not_come_is_refused_and_the_old_version_stays() -> None:
    host = await started_host(reply=[7])
    first, *_ = buckets_of({"large": np.zeros(1000, np.float32)}, 500)
    await host.begin_update("u", 1, "finish")
    assert await take(host, "u", 0, first)
    with pytest.raises(EngineError, match="ends after 500 of 4000 bytes"):
        await asyncio.wait_for(host.complete_update("u"), 60)
    assert (await host.health()).version == 0
    answered = await soon(host.exchange("one", 0, pack_requests([request("a")]), []))
    assert ids(answered) == ["a"]


async def test_an_unknown_engine_is_answered_with_the_nearest_one() -> None:
    with pytest.raises(ConfigurationError, match="did you mean `mock`"):
        await EngineHost("mick", EngineConfig(model=None, sequence_length=64)).start()


def test_busy_stretches_close_short_gaps_and_are_told_once() -> None:
    now = 0.0
    busy = BusyStretches(clock=lambda: now)

    def at(time_s: float, what: str) -> None:
        nonlocal now
        now = time_s
        getattr(busy, what)()

    at(1.0, "begin")
    at(1.5, "begin")
    at(2.0, "end")
    at(3.0, "end")
    at(3.01, "begin")
    at(4.0, "end")
    at(5.0, "begin")
    now = 6.0
    assert busy.drain() == [(1.0, 4.0), (5.0, 6.0)]
    at(7.0, "end")
    assert busy.drain() == [(6.0, 7.0)]
    assert busy.drain() == []


def test_busy_stretches_that_nobody_asks_for_stay_few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(BusyStretches, "MOST_STRETCHES", 3)
    now = 0.0
    busy = BusyStretches(clock=lambda: now)
    for number in range(10):
        now = float(number)
        busy.begin()
        now += 0.5
        busy.end()
    assert busy.drain() == [(0.0, 0.5), (1.0, 1.5), (2.0, 9.5)]
