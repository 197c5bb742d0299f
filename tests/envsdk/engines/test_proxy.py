from __future__ import annotations

import asyncio
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from proxy_links import (
    FOREVER,
    SLOW,
    MortalLink,
    assert_told,
    assert_whole,
    engine_link,
    request,
    running_proxy,
    soon,
    turns_of_the_loop,
)
from simulated_engines import in_virtual_time, run

from envsdk.contracts.trajectory import FinishReason
from envsdk.engines.engine import ErrorKind, GenerationRequest, GenerationResult, PauseMode, TokenDelta
from envsdk.engines.proxy import LocalLink

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
            last = await engine_link()
            await last.engine.load_weights({}, version)
            proxy.add_engine("last", last)
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
        assert (result.error_kind, result.error) == (
            ErrorKind.TURN_TIMEOUT,
            "no reply within turn_timeout_s=0.1",
        )
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


@in_virtual_time
async def test_a_proxy_that_is_closed_answers_what_is_open_and_whatever_comes_later() -> None:
    link = await engine_link(latency=FOREVER)
    async with running_proxy({"e": link}) as proxy:
        running = proxy.generate(request(0))
        proxy.suspend()
        waiting = proxy.generate(request(1))
    for future in (running, waiting, proxy.generate(request(2))):
        result = await soon(future)
        assert (result.finish_reason, result.error) == (FinishReason.ERROR, "the proxy is closed")
    assert len(link.sent) == 1


@in_virtual_time
async def test_engines_that_come_and_go_leave_nothing_behind() -> None:
    async with running_proxy({}) as proxy:
        before = len(asyncio.all_tasks())
        for number in range(5):
            proxy.add_engine("e", LocalLink((await engine_link()).engine))
            await soon(proxy.generate(request(number), lambda _: None))
            proxy.drain_engine("e")
            await turns_of_the_loop(5)
        assert len(asyncio.all_tasks()) == before
