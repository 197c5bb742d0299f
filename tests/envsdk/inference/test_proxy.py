from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from simulated_engines import in_virtual_time, run

from envsdk.inference.continuation import joined
from envsdk.inference.engine import (
    EngineConfig,
    EngineHealth,
    FinishReason,
    GenerationRequest,
    GenerationResult,
    PauseMode,
    SamplingParams,
    TokenDelta,
)
from envsdk.inference.mock import MockEngine
from envsdk.inference.proxy import MAX_INTERRUPTIONS, Deliver, EngineLink, InferenceProxy, LocalLink
from envsdk.testing.engines import until
from envsdk.trajectory import VersionSpan

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
        super().send(replace(request, is_watched=True))

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
    return await asyncio.wait_for(future, timeout=20)


async def until_known(proxy: InferenceProxy, count: int) -> None:
    """Until so many tokens of each open turn have been told."""

    def are_known() -> bool:
        found = [pending.sampled() for pending in proxy._pending.values()]
        return all(sampled is not None and len(sampled.token_ids) >= count for sampled in found)

    await asyncio.wait_for(until(are_known), timeout=20)


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


# What may happen, at random

events = st.lists(
    st.one_of(
        st.tuples(st.just("ask"), st.integers(1, 6)),
        st.tuples(st.just("cancel"), st.integers(0, 40)),
        st.tuples(st.just("suspend"), st.just(0)),
        st.tuples(st.just("resume"), st.just(0)),
        st.tuples(st.just("update"), st.sampled_from(["abort", "keep"])),
        st.tuples(st.just("kill"), st.integers(0, 3)),
        st.tuples(st.just("drain"), st.integers(0, 3)),
        st.tuples(st.just("add"), st.integers(0, 3)),
        st.tuples(st.just("wait"), st.integers(1, 12)),
    ),
    max_size=30,
)


@settings(max_examples=60)
@given(events=events, keep_tokens=st.booleans())
def test_nothing_is_lost_and_nothing_is_answered_twice_whatever_happens(
    events: list[tuple[str, Any]], keep_tokens: bool
) -> None:
    run(live_through(events, keep_tokens))


async def live_through(events: list[tuple[str, Any]], keep_tokens: bool) -> None:
    latency = {"kind": "lognormal", "mean_s": 0.003, "sigma": 1.0}
    links = {"e0": await engine_link(latency=latency), "e1": await engine_link(latency=latency)}
    asked: dict[asyncio.Future[GenerationResult], GenerationRequest] = {}
    num_resolved: dict[asyncio.Future[GenerationResult], int] = {}
    told: dict[str, list[TokenDelta]] = {}
    drained: list[tuple[MortalLink, int]] = []
    version, is_suspended = 0, False
    async with running_proxy(dict(links), keep_interrupted_tokens=keep_tokens) as proxy:
        for what, detail in events:
            if what == "ask":
                for _ in range(detail):
                    asking = request(len(asked), session=f"s{len(asked) % 3}")
                    deltas: list[TokenDelta] = []
                    if len(asked) % 2:
                        told[asking.request_id] = deltas
                    future = proxy.generate(asking, deltas.append if len(asked) % 2 else None)
                    asked[future] = asking
                    num_resolved[future] = 0
                    future.add_done_callback(
                        lambda done: num_resolved.__setitem__(done, num_resolved[done] + 1)
                    )
            elif what == "cancel" and asked:
                list(asked)[detail % len(asked)].cancel()
            elif what == "suspend":
                proxy.suspend()
                is_suspended = True
                already = {name: len(link.sent) for name, link in links.items()}
            elif what == "resume":
                proxy.resume()
                is_suspended = False
            elif what == "update":
                version += 1
                for link in links.values():
                    await link.engine.pause(PauseMode(detail))
                    await link.engine.load_weights({}, version)
                    await link.engine.resume()
            elif what == "kill" and f"e{detail}" in links:
                links.pop(f"e{detail}").kill()
            elif what == "drain" and f"e{detail}" in links:
                link = links.pop(f"e{detail}")
                proxy.drain_engine(f"e{detail}")
                drained.append((link, len(link.sent)))
            elif what == "add":
                # Under the name of a running one it is a restart that nobody saw coming.
                if f"e{detail}" in links:
                    links[f"e{detail}"].kill()
                links[f"e{detail}"] = await engine_link(latency=latency)
                await links[f"e{detail}"].engine.load_weights({}, version)
                proxy.add_engine(f"e{detail}", links[f"e{detail}"])
                already = already | {f"e{detail}": 0} if is_suspended else {}
            elif what == "wait":
                await asyncio.sleep(detail / 2000)
            if is_suspended:
                await turns_of_the_loop(5)
                assert {name: len(link.sent) for name, link in links.items()} == {
                    name: already[name] for name in links
                }
        proxy.resume()
        if "last" not in links:
            proxy.add_engine("last", await engine_link())
        for future, asking in asked.items():
            if future.cancelled():
                continue
            result = await soon(future)
            assert_whole(result, asking)
            if asking.request_id in told:
                assert_told(told[asking.request_id], result)
        await turns_of_the_loop(5)
        assert set(num_resolved.values()) <= {1}
        assert not proxy._pending
        for link, num_sent in drained:
            assert len(link.sent) == num_sent
            assert link not in proxy._links.values()
        for engine in proxy._router.engines:
            await asyncio.sleep(0)
            assert proxy._router.outstanding_tokens(engine) >= 0


# One thing at a time


@in_virtual_time
async def test_a_suspended_proxy_holds_what_is_queued_and_lets_it_go_in_its_order() -> None:
    link = await engine_link(latency={"kind": "constant", "mean_s": 0.05})
    async with running_proxy({"e": link}) as proxy:
        running = [proxy.generate(request(i)) for i in range(8)]
        proxy.suspend()
        queued = [proxy.generate(request(i)) for i in range(8, 40)]
        await asyncio.gather(*running)
        await asyncio.sleep(0.05)
        assert len(link.sent) == 8
        assert not any(future.done() for future in queued)
        queued[3].cancel()
        await asyncio.sleep(0)
        proxy.resume()
        assert [r.request_id for r in link.sent[8:]] == [f"r{i}" for i in range(8, 40) if i != 11]
        del queued[3]
        await asyncio.gather(*queued)


@in_virtual_time
async def test_cancelling_frees_the_engine_and_its_place_in_the_balance() -> None:
    link = await engine_link(latency=FOREVER)
    async with running_proxy({"e": link}) as proxy:
        future = proxy.generate(request(0))
        await asyncio.sleep(0)
        assert proxy._router.outstanding_tokens("e") > 0
        future.cancel()
        await turns_of_the_loop(5)
        assert link.aborted == ["r0"]
        assert link.engine.health().num_running == 0
        assert proxy._router.outstanding_tokens("e") == 0


@in_virtual_time
async def test_the_tokens_of_a_reply_are_told_before_it_is_over() -> None:
    link = await engine_link()
    told: list[TokenDelta] = []
    async with running_proxy({"e": link}) as proxy:
        future = proxy.generate(request(0), on_tokens=told.append)
        future.add_done_callback(lambda _: told.append(None))  # type: ignore[arg-type]
        result = await soon(future)
    assert told[-1] is None
    assert [token for delta in told[:-1] for token in delta.token_ids.tolist()] == result.token_ids.tolist()


@in_virtual_time
async def test_an_overdue_turn_is_answered_with_an_error_and_taken_off_the_engine() -> None:
    link = await engine_link(latency=FOREVER)
    async with running_proxy({"e": link}, turn_timeout_s=0.1) as proxy:
        result = await soon(proxy.generate(request(0)))
        assert result.finish_reason is FinishReason.ERROR
        assert result.error == "turn_timeout: no reply within turn_timeout_s=0.1"
        await turns_of_the_loop(5)
        assert link.engine.health().num_running == 0
        assert len(link.sent) == 1


@in_virtual_time
async def test_time_spent_suspended_is_not_counted_against_a_turn() -> None:
    link = await engine_link()
    async with running_proxy({"e": link}, turn_timeout_s=0.2) as proxy:
        proxy.suspend()
        asking = request(0)
        future = proxy.generate(asking)
        await asyncio.sleep(0.5)
        assert not future.done()
        proxy.resume()
        assert_whole(await soon(future), asking)


@in_virtual_time
async def test_what_a_lost_engine_had_is_played_again_elsewhere() -> None:
    slow, fast = await engine_link(latency=FOREVER), await engine_link()
    async with running_proxy({"slow": slow}) as proxy:
        asked = [request(i, session="s") for i in range(4)]
        futures = [proxy.generate(asking) for asking in asked]
        proxy.add_engine("fast", fast)
        slow.kill()
        for future, asking in zip(futures, asked, strict=True):
            assert_whole(await soon(future), asking)
        assert [r.request_id for r in fast.sent] == ["r0", "r1", "r2", "r3"]


@in_virtual_time
async def test_without_an_engine_requests_wait_for_one_to_come_back() -> None:
    dead = await engine_link(latency=FOREVER)
    async with running_proxy({"e": dead}) as proxy:
        asking = request(0)
        future = proxy.generate(asking)
        dead.kill()
        await turns_of_the_loop(5)
        later = proxy.generate(request(1))
        await asyncio.sleep(0.02)
        assert not future.done()
        proxy.add_engine("e", await engine_link())
        assert_whole(await soon(future), asking)
        await soon(later)


@in_virtual_time
async def test_a_late_answer_of_a_replaced_engine_counts_for_nothing() -> None:
    first, second = await engine_link(latency=FOREVER), await engine_link(latency=SLOW)
    async with running_proxy({"e": first}) as proxy:
        asking = request(0)
        future = proxy.generate(asking)
        proxy.add_engine("e", second)
        assert len(second.sent) == 1
        first.abort(["r0"])
        await turns_of_the_loop(5)
        assert len(second.sent) == 1
        assert_whole(await soon(future), asking)


@in_virtual_time
async def test_a_broken_engine_is_given_up_while_another_works() -> None:
    broken = await engine_link(failure={"rate": 1.0, "kind": "crash"})
    well = await engine_link(latency={"kind": "constant", "mean_s": 0.01})
    async with running_proxy({"broken": broken, "well": well}) as proxy:
        asked = [request(i) for i in range(30)]
        futures = [proxy.generate(asking) for asking in asked]
        for future, asking in zip(futures, asked, strict=True):
            assert_whole(await soon(future), asking)
        assert proxy._router.engines == ("well",)


@in_virtual_time
async def test_what_runs_on_a_drained_engine_ends_there_and_then_the_engine_is_forgotten() -> None:
    leaving, staying = await engine_link(latency=SLOW), await engine_link()
    async with running_proxy({"leaving": leaving}) as proxy:
        running = proxy.generate(request(0, session="s"))
        proxy.add_engine("staying", staying)
        proxy.drain_engine("leaving")
        assert_whole(await soon(proxy.generate(request(1, session="s"))), request(1))
        assert not running.done()
        assert "leaving" in proxy._links
        assert_whole(await soon(running), request(0))
        assert [len(link.sent) for link in (leaving, staying)] == [1, 1]
        assert list(proxy._links) == ["staying"]
        proxy.drain_engine("leaving")  # it is gone: nothing to do


@in_virtual_time
async def test_an_idle_engine_that_is_drained_is_forgotten_at_once_and_requests_wait_for_another() -> None:
    async with running_proxy({"e": await engine_link()}) as proxy:
        proxy.drain_engine("e")
        assert not proxy._links
        future = proxy.generate(request(0))
        await turns_of_the_loop(5)
        assert not future.done()
        proxy.add_engine("e", await engine_link())
        assert_whole(await soon(future), request(0))


@in_virtual_time
async def test_a_drained_engine_that_is_lost_leaves_its_turns_to_the_others() -> None:
    leaving, staying = await engine_link(latency=FOREVER), await engine_link()
    async with running_proxy({"leaving": leaving}) as proxy:
        running = proxy.generate(request(0))
        proxy.add_engine("staying", staying)
        proxy.drain_engine("leaving")
        leaving.kill()
        assert_whole(await soon(running), request(0))
        assert [r.request_id for r in staying.sent] == ["r0"]


@in_virtual_time
async def test_a_canceled_turn_does_not_hold_up_a_drain() -> None:
    link = await engine_link(latency=FOREVER)
    async with running_proxy({"e": link}) as proxy:
        running = proxy.generate(request(0))
        proxy.drain_engine("e")
        running.cancel()
        await turns_of_the_loop(5)
        assert not proxy._links


@in_virtual_time
async def test_the_last_engines_errors_are_the_answer() -> None:
    broken = await engine_link(failure={"rate": 1.0, "kind": "crash"})
    async with running_proxy({"broken": broken}) as proxy:
        result = await soon(proxy.generate(request(0)))
        assert result.finish_reason is FinishReason.ERROR
        assert "crashed" in result.error


@in_virtual_time
async def test_the_last_engines_requests_wait_where_it_will_come_back() -> None:
    broken = await engine_link(failure={"rate": 1.0, "kind": "crash"})
    async with running_proxy({"engine": broken}, engines_return=True) as proxy:
        future = proxy.generate(request(0))
        await turns_of_the_loop(5)
        assert not future.done()
        proxy.add_engine("engine", await engine_link())
        assert_whole(await soon(future), request(0))


async def restart(link: MortalLink, version: int) -> None:
    """A weight update in mode `restart`."""
    await link.engine.pause(PauseMode.ABORT)
    await link.engine.load_weights({}, version)
    await link.engine.resume()
    await turns_of_the_loop(5)


@in_virtual_time
async def test_an_interrupted_turn_starts_over_under_the_new_weights() -> None:
    link = await engine_link(reply=list(range(1, 11)), latency=HALF_A_SECOND)
    async with running_proxy({"e": link}) as proxy:
        future = proxy.generate(request(0))
        await until_known(proxy, 2)
        await restart(link, 1)
        result = await soon(future)
        assert result.version_spans == (VersionSpan(version=1, start=0, end=10),)
        assert [len(r.prompt_ids) for r in link.sent] == [3, 3]


@in_virtual_time
async def test_with_interrupted_tokens_kept_a_turn_goes_on_from_them_and_says_which_weights_wrote_what() -> (
    None
):
    link = await engine_link(reply=list(range(1, 11)), latency=HALF_A_SECOND)
    async with running_proxy({"e": link}, keep_interrupted_tokens=True) as proxy:
        future = proxy.generate(request(0))
        await until_known(proxy, 2)
        await restart(link, 1)
        result = await soon(future)
    first, second = result.version_spans
    kept = first.end
    assert 0 < kept < 10
    assert (first.version, second.version) == (0, 1)
    assert (second.start, second.end) == (kept, 10)
    assert link.sent[1].prompt_ids.tolist() == [1, 2, 3, *range(1, kept + 1)]
    assert link.sent[1].sampling.max_new_tokens == 10 - kept
    assert link.sent[1].sampling.seed != link.sent[0].sampling.seed
    # The mock's script begins again with each request.
    assert result.token_ids.tolist() == [*range(1, kept + 1), *range(1, 11 - kept)]


@in_virtual_time
async def test_a_turn_longer_than_the_time_between_updates_is_not_restarted_for_ever() -> None:
    link = await engine_link(latency={"kind": "per_token", "token_s": 0.02}, vocab_size=40)
    async with running_proxy({"e": link}) as proxy:
        asking = request(0, max_new_tokens=20)
        future = proxy.generate(asking)
        num_updates = 0
        while not future.done():
            await asyncio.sleep(0.1)
            num_updates += 1
            await restart(link, num_updates)
            assert num_updates < 50, "it makes no progress"
        assert_whole(future.result(), asking)
        assert num_updates > MAX_INTERRUPTIONS


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


@pytest.mark.parametrize(
    ("token_ids", "reason"), [([7, 8, 9], FinishReason.LENGTH), ([7, 0], FinishReason.STOP)]
)
@in_virtual_time
async def test_a_turn_interrupted_after_its_last_token_is_over(
    token_ids: list[int], reason: FinishReason
) -> None:
    link = ScriptedLink()
    async with running_proxy({"e": link}, keep_interrupted_tokens=True) as proxy:
        future = proxy.generate(request(0, max_new_tokens=3))
        link.answer(token_ids, FinishReason.ABORT)
        result = await soon(future)
        assert (result.finish_reason, result.token_ids.tolist()) == (reason, token_ids)
        assert len(link.sent) == 1


@in_virtual_time
async def test_a_second_answer_to_the_same_request_is_ignored() -> None:
    link = ScriptedLink()
    async with running_proxy({"e": link}) as proxy:
        future = proxy.generate(request(0))
        link.answer([7], FinishReason.LENGTH)
        link.answer([8], FinishReason.LENGTH)
        assert (await soon(future)).token_ids.tolist() == [7]
        assert proxy._router.outstanding_tokens("e") == 0


@in_virtual_time
async def test_an_interruption_while_suspended_waits_for_the_end_of_the_suspension() -> None:
    link = ScriptedLink()
    async with running_proxy({"e": link}) as proxy:
        future = proxy.generate(request(0))
        proxy.suspend()
        link.answer([7], FinishReason.ABORT)
        assert len(link.sent) == 1
        proxy.resume()
        assert len(link.sent) == 2
        link.answer([9], FinishReason.LENGTH)
        assert (await soon(future)).token_ids.tolist() == [9]


# What a lost engine had sampled


@in_virtual_time
async def test_a_turn_goes_on_elsewhere_from_the_tokens_it_had_and_its_session_with_it() -> None:
    first = await engine_link(reply=list(range(1, 41)), latency={"kind": "per_token", "token_s": 0.05})
    second = await engine_link(reply=list(range(41, 81)))
    await second.engine.load_weights({}, 1)
    asking = request(0, max_new_tokens=40, session="s")
    told: list[TokenDelta] = []
    half = asyncio.Event()

    def tell(delta: TokenDelta) -> None:
        told.append(delta)
        if sum(len(delta.token_ids) for delta in told) >= 5:
            half.set()

    async with running_proxy({"first": first}) as proxy:
        future = proxy.generate(asking, tell)
        await asyncio.wait_for(half.wait(), 10)
        proxy.add_engine("second", second)
        first.kill()
        result = await soon(future)
        before, after = result.version_spans
        assert 5 <= before.end < 40
        assert (before.version, after.version) == (0, 1)
        assert second.sent[0].prompt_ids.tolist() == [1, 2, 3, *range(1, before.end + 1)]
        assert result.token_ids.tolist() == [*range(1, before.end + 1), *range(41, 81 - before.end)]
        assert_whole(result, asking)
        assert_told(told, result)
        proxy.add_engine("idle", await engine_link())
        await soon(proxy.generate(request(1, session="s")))
        assert [r.request_id for r in second.sent] == ["r0", "r1"]


@in_virtual_time
async def test_a_lost_turn_that_had_its_last_token_is_over() -> None:
    lost, other = ScriptedLink(), ScriptedLink()
    async with running_proxy({"lost": lost}) as proxy:
        future = proxy.generate(request(0, max_new_tokens=3))
        lost.tell([7, 8])
        lost.tell([0])
        proxy.add_engine("lost", other)
        result = await soon(future)
        assert (result.finish_reason, result.token_ids.tolist()) == (FinishReason.STOP, [7, 8, 0])
        assert not other.sent


@pytest.mark.parametrize(
    ("newest", "keeps", "goes_on"), [(1, False, True), (2, False, False), (2, True, True)]
)
@in_virtual_time
async def test_tokens_of_older_weights_than_the_newest_are_treated_as_a_weight_update_would_treat_them(
    newest: int, keeps: bool, goes_on: bool
) -> None:
    lost, other = ScriptedLink(), ScriptedLink()
    async with running_proxy({"lost": lost}, keep_interrupted_tokens=keeps) as proxy:
        future = proxy.generate(request(0))
        lost.tell([7], version=0)
        lost.tell([8], version=1)
        proxy.add_engine("other", other)
        other.now_at(newest)
        proxy.drain_engine("other")
        following = ScriptedLink()
        proxy.add_engine("lost", following)
        assert following.sent[0].prompt_ids.tolist() == ([1, 2, 3, 7, 8] if goes_on else [1, 2, 3])
        following.answer([9, 0], FinishReason.STOP)
        assert (await soon(future)).token_ids.tolist() == ([7, 8, 9, 0] if goes_on else [9, 0])


@in_virtual_time
async def test_a_turn_whose_tokens_were_read_never_starts_over() -> None:
    link = ScriptedLink()
    told: list[TokenDelta] = []
    async with running_proxy({"e": link}) as proxy:
        future = proxy.generate(request(0), told.append)
        link.tell([7])
        link.answer([7, 8], FinishReason.ABORT)
        assert link.sent[1].prompt_ids.tolist() == [1, 2, 3, 7, 8]
        link.tell([9])
        link.answer([9, 0], FinishReason.STOP)
        result = await soon(future)
        assert result.token_ids.tolist() == [7, 8, 9, 0]
        assert [delta.token_ids.tolist() for delta in told] == [[7], [8], [9], [0]]


@in_virtual_time
async def test_an_overdue_turn_is_answered_with_the_tokens_it_has() -> None:
    link = ScriptedLink()
    async with running_proxy({"e": link}, turn_timeout_s=0.1) as proxy:
        future = proxy.generate(request(0))
        link.tell([7, 8])
        result = await soon(future)
        assert (result.finish_reason, result.token_ids.tolist()) == (FinishReason.ERROR, [7, 8])
        link.tell([9])  # what it says from now on counts for nothing
        link.answer([7, 8, 9], FinishReason.ABORT)
