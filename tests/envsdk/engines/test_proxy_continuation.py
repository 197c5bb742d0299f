"""Turns that are cut short, by a weight update or with their engine, and what becomes of their tokens."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from proxy_links import (
    HALF_A_SECOND,
    MortalLink,
    ScriptedLink,
    assert_told,
    assert_whole,
    engine_link,
    request,
    restart,
    running_proxy,
    soon,
    until_known,
)
from simulated_engines import in_virtual_time

from envsdk.contracts.trajectory import FinishReason, VersionSpan
from envsdk.engines.engine import GenerationRequest, TokenDelta
from envsdk.engines.proxy import MAX_INTERRUPTIONS, LocalLink
from envsdk.engines.sampling import OutputStructure


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
        await asyncio.wait_for(half.wait(), 60)
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


class _Unstructured(MortalLink):
    """To a mock engine that takes no structures and is not told of them."""

    def send(self, request: GenerationRequest) -> None:
        self.sent.append(request)
        plain = replace(request.sampling, structure=None)
        LocalLink.send(self, replace(request, sampling=plain, stream=True))


@in_virtual_time
async def test_a_reply_with_a_structure_begins_anew_elsewhere() -> None:
    """An engine takes the first token that it samples for the structure's first."""
    slow = _Unstructured((await engine_link(latency=HALF_A_SECOND)).engine)
    asking = request(0)
    asking = replace(asking, sampling=replace(asking.sampling, structure=OutputStructure(regex="a*")))
    async with running_proxy({"slow": slow}, keep_interrupted_tokens=True) as proxy:
        future = proxy.generate(asking)
        await until_known(proxy, 2)
        other = _Unstructured((await engine_link()).engine)
        proxy.add_engine("other", other)
        slow.kill()
        assert_whole(await soon(future), asking)
        assert other.sent[0].prompt_ids.tolist() == asking.prompt_ids.tolist()
        assert other.sent[0].sampling == asking.sampling


@pytest.mark.parametrize("is_read", [False, True])
@in_virtual_time
async def test_a_reply_with_a_structure_outlasts_updates_once_it_began_anew_too_often_or_was_read(
    is_read: bool,
) -> None:
    link = _Unstructured((await engine_link(latency={"kind": "per_token", "token_s": 0.02})).engine)
    asking = request(0, max_new_tokens=20)
    asking = replace(asking, sampling=replace(asking.sampling, structure=OutputStructure(regex="a*")))
    told: list[TokenDelta] = []
    async with running_proxy({"e": link}) as proxy:
        future = proxy.generate(asking, told.append if is_read else None)
        for version in range(1, 50):
            await asyncio.sleep(0.1)
            await restart(link, version)
            if future.done():
                break
        result = await soon(future)
        assert_whole(result, asking)
    num_starts = 1 if is_read else 1 + MAX_INTERRUPTIONS
    assert [sent.survives_weight_update for sent in link.sent] == [False] * (num_starts - 1) + [True]
    assert {len(sent.prompt_ids) for sent in link.sent} == {3}
    assert len(result.version_spans) > 1
    if is_read:
        assert_told(told, result)


@in_virtual_time
async def test_a_reply_with_a_structure_that_was_read_and_is_cut_short_is_an_error() -> None:
    slow = _Unstructured((await engine_link(latency=HALF_A_SECOND)).engine)
    asking = request(0)
    asking = replace(asking, sampling=replace(asking.sampling, structure=OutputStructure(regex="a*")))
    told: list[TokenDelta] = []
    async with running_proxy({"slow": slow}, engines_return=True) as proxy:
        future = proxy.generate(asking, told.append)
        await until_known(proxy, 2)
        slow.kill()
        result = await soon(future)
        assert result.finish_reason is FinishReason.ERROR
        assert "cannot continue" in result.error
        assert_told(told, result)
