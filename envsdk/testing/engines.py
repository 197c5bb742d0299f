"""The conformance suites of engines. Subclass one, name the engine, and run pytest.

`CoreSuite` tests a core behind `EngineFront`; `EngineSuite` also tests queue, refusals and pauses, for an
engine that does not use the front.

    class TestMyEngine(CoreSuite):
        engine_class = MyEngine
        def config(self, **changes): return EngineConfig(model=FOLDER, sequence_length=512, **changes)
        def weights(self): return FOLDER

Abilities that an engine does not declare are not tested. Each test builds its own engine, and `long_reply`
tokens must take it at least `long_reply_s`, so that a test can interrupt a reply. Slow a fast engine down in
`make_engine`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from envsdk.contracts.failures import ConfigurationError, EngineError
from envsdk.contracts.held import Held
from envsdk.contracts.trajectory import FinishReason
from envsdk.engines.continuation import joined, spans_within
from envsdk.engines.engine import Engine, GenerationRequest, GenerationResult, PauseMode, TokenDelta
from envsdk.testing.engine_abilities import AdapterTests, LogitTests
from envsdk.testing.engine_harness import check_result, gather, on_engine, until
from envsdk.testing.engine_structures import StructureTests

__all__ = ["CoreSuite", "EngineSuite", "check_result", "gather", "until"]

Action = tuple[str, int]


class CoreSuite(StructureTests, LogitTests, AdapterTests):
    """What a core adds to the front: how it samples, freezes, ends replies and takes weights."""

    @on_engine(max_running=8)
    async def test_every_request_is_answered_exactly_once(self, engine: Engine) -> None:
        requests = [self.request(n, length=1 + n % 13, num_tokens=1 + n % 7) for n in range(40)]
        results = await gather(engine, requests)
        assert [result.request_id for result in results] == [request.request_id for request in requests]
        for request, result in zip(requests, results, strict=True):
            check_result(request, result, sequence_length=self.sequence_length)
            assert result.finish_reason in (FinishReason.LENGTH, FinishReason.STOP)
        health = engine.health()
        assert (health.num_running, health.num_queued, health.error) == (0, 0, "")
        assert health.num_tokens_sampled == sum(len(result.token_ids) for result in results)
        assert health.num_prompt_tokens == sum(len(request.prompt_ids) for request in requests)

    @on_engine()
    async def test_a_reply_ends_at_max_new_tokens(self, engine: Engine) -> None:
        for count in (1, 2, 9):
            result = await engine.submit(self.request(count, num_tokens=count))
            assert (len(result.token_ids), result.finish_reason) == (count, FinishReason.LENGTH)

    @on_engine()
    async def test_a_reply_ends_where_the_context_ends(self, engine: Engine) -> None:
        length = self.sequence_length - 3
        result = await engine.submit(self.request(length=length, num_tokens=50))
        assert (len(result.token_ids), result.finish_reason) == (3, FinishReason.LENGTH)

    @on_engine()
    async def test_a_stop_token_ends_the_reply_and_is_its_last_token(self, engine: Engine) -> None:
        free = await engine.submit(self.request("free", num_tokens=12, seed=5))
        stop = int(free.token_ids[4])
        first = free.token_ids.tolist().index(stop)
        request = self.request(
            "stopped", num_tokens=12, seed=5, stop_token_ids=(stop,), prompt_ids=self.prompt_of("free")
        )
        stopped = await engine.submit(request)
        assert stopped.finish_reason is FinishReason.STOP
        assert stopped.token_ids.tolist() == free.token_ids[: first + 1].tolist()

    @on_engine(max_running=8)
    async def test_a_seed_gives_the_same_reply_alone_and_in_company(self, engine: Engine) -> None:
        settings = {"temperature": 0.8, "top_p": 0.9, "top_k": 20}
        requests = [self.request(n, length=2 + n % 11, num_tokens=10, **settings) for n in range(12)]
        together = await gather(engine, requests)
        for request, in_company in zip(requests, together, strict=True):
            alone = await engine.submit(request)
            assert alone.token_ids.tolist() == in_company.token_ids.tolist()
            np.testing.assert_allclose(alone.logprobs, in_company.logprobs, atol=1e-4)

    @on_engine()
    async def test_temperature_zero_needs_no_seed(self, engine: Engine) -> None:
        requests = [self.request(name, temperature=0.0, seed=None, prompt_ids=self.prompt()) for name in "ab"]
        first, second = await gather(engine, requests)
        if engine.abilities.processed_logprobs:
            check_result(requests[0], first, sequence_length=self.sequence_length)
        assert first.token_ids.tolist() == second.token_ids.tolist()

    def test_an_unknown_setting_is_refused_with_the_nearest_known_one(self) -> None:
        with pytest.raises(ConfigurationError, match=f"{self.unknown_key}: .*`{self.nearest_key}`"):
            self.make_engine(strategy_config={self.unknown_key: 1})

    @on_engine(max_running=2)
    async def test_abort_returns_what_was_sampled_and_leaves_the_others_alone(self, engine: Engine) -> None:
        requests = [self.long_request("doomed"), self.long_request("spared"), self.request("queued")]
        doomed, spared, queued = [engine.submit(request) for request in requests]
        await self.mid_reply(engine, num_running=2)
        engine.abort(["doomed", "queued", "unknown"])
        partial, empty = await doomed, await queued
        check_result(requests[0], partial, sequence_length=self.sequence_length)
        assert partial.finish_reason is FinishReason.ABORT
        assert 0 < len(partial.token_ids) < self.long_reply
        assert (empty.finish_reason, len(empty.token_ids)) == (FinishReason.ABORT, 0)
        assert not spared.done()
        assert len((await spared).token_ids) == self.long_reply

    @on_engine()
    async def test_the_tokens_of_a_reply_are_counted_while_it_runs(self, engine: Engine) -> None:
        running = engine.submit(self.long_request())
        await until(lambda: engine.health().num_tokens_sampled > 0)
        assert engine.health().num_tokens_sampled < self.long_reply
        assert len((await running).token_ids) == engine.health().num_tokens_sampled

    @on_engine()
    async def test_a_reply_that_survives_updates_continues_after_a_pause_that_ended_the_others(
        self, engine: Engine
    ) -> None:
        request = self.long_request("lasting", survives_weight_update=True)
        lasting, other = engine.submit(request), engine.submit(self.long_request("other"))
        await self.mid_reply(engine, num_running=2)
        await engine.pause(PauseMode.ABORT)
        assert (await other).finish_reason is FinishReason.ABORT
        if engine.abilities.weight_updates:
            await engine.load_weights(self.weights(), 1)
        await engine.resume()
        result = await lasting
        check_result(request, result, sequence_length=self.sequence_length)
        assert (len(result.token_ids), result.finish_reason) == (self.long_reply, FinishReason.LENGTH)
        if engine.abilities.inflight_update:
            assert [span.version for span in result.version_spans] == [0, 1]

    @on_engine()
    async def test_requests_paused_midway_get_the_reply_they_would_have_got(self, engine: Engine) -> None:
        undisturbed = await engine.submit(self.long_request())
        again = engine.submit(self.long_request())
        await self.mid_reply(engine)
        await engine.pause(PauseMode.KEEP)
        await engine.resume()
        assert (await again).token_ids.tolist() == undisturbed.token_ids.tolist()

    @on_engine(needs="inflight_update")
    async def test_a_running_reply_goes_on_through_an_update_and_carries_both_versions(
        self, engine: Engine
    ) -> None:
        request = self.long_request()
        running = engine.submit(request)
        await self.mid_reply(engine)
        await engine.load_weights(self.weights(), 1)
        assert not running.done()
        result = await running
        check_result(request, result, sequence_length=self.sequence_length)
        assert [span.version for span in result.version_spans] == [0, 1]
        assert len(result.token_ids) == self.long_reply

    @on_engine(takes_turns=True)
    async def test_replies_go_on_when_the_engine_had_given_its_memory_back(self, engine: Engine) -> None:
        try:
            await engine.hold(Held.ALL)
        except EngineError:
            pytest.skip("the engine does not give its memory back")
        request = self.long_request(session_id="episode")
        running = engine.submit(request)
        await self.mid_reply(engine)
        for version in (1, 2):
            await engine.pause(PauseMode.KEEP)
            for held in (Held.NOTHING, Held.NOTHING, Held.WEIGHTS):
                await engine.hold(held)
            later = engine.submit(self.request(f"later {version}"))
            await engine.load_weights(self.weights(), version)
            await engine.hold(Held.ALL)
            assert not later.done()
            await engine.resume()
            reply = await later
            assert [span.version for span in reply.version_spans] == [version], reply.error
        result = await running
        check_result(request, result, sequence_length=self.sequence_length)
        assert len(result.token_ids) == self.long_reply
        assert [span.version for span in result.version_spans][:1] == [0]

    @on_engine(needs="prefix_reuse")
    async def test_a_session_computes_only_what_is_new_and_gets_the_same_reply(self, engine: Engine) -> None:
        first = self.request("first", length=40, session_id="episode")
        reply = await engine.submit(first)
        longer = np.concatenate([first.prompt_ids, reply.token_ids, self.prompt(4)])
        before = engine.health().num_prefilled_tokens
        turn = self.request("turn", prompt_ids=longer, session_id="episode", seed=1)
        reused = await engine.submit(turn)
        assert engine.health().num_prefilled_tokens - before < 6 + self.prefix_block
        fresh = await engine.submit(self.request("fresh", prompt_ids=longer, seed=1))
        assert reused.token_ids.tolist() == fresh.token_ids.tolist()
        np.testing.assert_allclose(reused.logprobs, fresh.logprobs, atol=1e-4)

    @on_engine(needs="prefix_reuse weight_updates")
    async def test_a_session_does_not_reuse_what_older_weights_computed(self, engine: Engine) -> None:
        first = self.request("first", length=40, session_id="episode")
        reply = await engine.submit(first)
        await engine.load_weights(self.weights(), 1)
        longer = np.concatenate([first.prompt_ids, reply.token_ids, self.prompt(4)])
        old = await engine.submit(self.request("old", prompt_ids=longer, session_id="episode", seed=1))
        fresh = await engine.submit(self.request("fresh", prompt_ids=longer, seed=1))
        np.testing.assert_allclose(old.logprobs, fresh.logprobs, atol=1e-4)

    @on_engine(needs="progress", max_running=1)
    async def test_progress_tells_how_the_result_begins(self, engine: Engine) -> None:
        request = self.long_request()
        running = engine.submit(request)
        waiting = engine.submit(self.request("waiting"))
        deltas_so_far: list[TokenDelta] = []
        for step in range(4):
            await self.mid_reply(engine)
            num_known = sum(len(delta.token_ids) for delta in deltas_so_far)
            deltas = await engine.progress({"long": num_known, "waiting": 0, "unknown": 0})
            assert [delta.request_id for delta in deltas] == ["long"]
            deltas_so_far += deltas
            if step == 1 and engine.abilities.inflight_update:
                await engine.load_weights(self.weights(), 1)
        assert not running.done()
        result = await running
        check_result(request, result, sequence_length=self.sequence_length)
        known = joined(deltas_so_far)
        assert known is not None
        count = len(known.token_ids)
        assert known.token_ids.dtype == np.int32
        assert known.logprobs.dtype == np.float32
        assert known.token_ids.tolist() == result.token_ids[:count].tolist()
        assert known.logprobs.tolist() == result.logprobs[:count].tolist()
        assert known.version_spans == spans_within(result.version_spans, 0, count)
        await waiting
        assert await engine.progress({"long": 0, "waiting": 0}) == []

    @on_engine(max_running=1)
    async def test_close_ends_everything_and_may_be_called_twice(self, engine: Engine) -> None:
        running = engine.submit(self.long_request())
        queued = engine.submit(self.request("queued"))
        await self.mid_reply(engine)
        await engine.close()
        await engine.close()
        assert (await running).finish_reason is FinishReason.ABORT
        assert (await queued).finish_reason is FinishReason.ABORT
        assert (await engine.submit(self.request("late"))).finish_reason is FinishReason.ERROR

    @on_engine()
    async def test_the_event_loop_runs_while_the_engine_samples(self, engine: Engine) -> None:
        running = engine.submit(self.long_request())
        ticks = 0
        while not running.done():
            await asyncio.sleep(self.long_reply_s / 50)
            ticks += 1
        assert ticks > 10

    @settings(
        max_examples=25,
        deadline=None,
        suppress_health_check=[HealthCheck.differing_executors, HealthCheck.too_slow],
    )
    @given(
        st.lists(
            st.tuples(
                st.sampled_from(["submit", "submit", "submit", "abort", "pause", "resume", "load", "wait"]),
                st.integers(0, 30),
            ),
            max_size=25,
        )
    )
    def test_any_order_of_events_answers_every_request_once_with_versions_in_order(
        self, actions: Sequence[Action]
    ) -> None:
        async def test(engine: Engine) -> None:
            requests: list[GenerationRequest] = []
            futures: list[asyncio.Future[GenerationResult]] = []
            aborted: set[str] = set()
            version = 0
            for action, number in actions:
                if action == "submit":
                    session = f"s{number % 3}" if number % 4 else ""
                    request = self.request(
                        len(requests),
                        length=1 + number,
                        num_tokens=1 + number % 6,
                        session_id=session,
                        survives_weight_update=number % 5 == 2,
                    )
                    requests.append(request)
                    futures.append(engine.submit(request))
                elif action == "abort" and requests:
                    aborted.add(str(number % len(requests)))
                    engine.abort([str(number % len(requests))])
                elif action == "pause":
                    mode = list(PauseMode)[number % 3]
                    if mode is PauseMode.ABORT:
                        aborted.update(
                            each.request_id for each in requests if not each.survives_weight_update
                        )
                    await engine.pause(mode)
                elif action == "resume":
                    await engine.resume()
                elif action == "load" and engine.abilities.weight_updates:
                    version += 1
                    await engine.load_weights(self.weights(), version)
                else:
                    await asyncio.sleep(number / 10_000)
            await engine.resume()
            results = await asyncio.gather(*futures)
            for request, result in zip(requests, results, strict=True):
                check_result(request, result, sequence_length=self.sequence_length)
                versions = [span.version for span in result.version_spans]
                assert versions == sorted(set(versions))
                assert all(0 <= number <= version for number in versions)
                if request.request_id not in aborted:
                    assert result.finish_reason is FinishReason.LENGTH
                    assert len(result.token_ids) == request.sampling.max_new_tokens
            health = engine.health()
            assert (health.num_running, health.num_queued) == (0, 0)
            assert health.version == version

        self.run(test, max_running=3)


class EngineSuite(CoreSuite):
    """All that an engine promises."""

    @on_engine()
    async def test_a_request_that_cannot_be_run_is_answered_with_an_error(self, engine: Engine) -> None:
        for impossible in (
            self.request("too long", length=self.sequence_length),
            self.request("empty", length=0),
            self.request("no tokens", num_tokens=0),
        ):
            result = await engine.submit(impossible)
            assert result.finish_reason is FinishReason.ERROR
            assert result.error
            assert len(result.token_ids) == 0
        assert (await engine.submit(self.request())).finish_reason is FinishReason.LENGTH
        assert engine.health().error == ""

    @on_engine()
    async def test_a_request_id_in_use_is_refused_and_its_owner_undisturbed(self, engine: Engine) -> None:
        await engine.pause(PauseMode.KEEP)
        first, second = engine.submit(self.request("same")), engine.submit(self.request("same"))
        assert (await second).finish_reason is FinishReason.ERROR
        await engine.resume()
        assert (await first).finish_reason is FinishReason.LENGTH

    @on_engine(max_running=1)
    async def test_a_canceled_future_frees_its_place(self, engine: Engine) -> None:
        canceled = engine.submit(self.long_request("canceled"))
        waiting = engine.submit(self.request("waiting"))
        await self.mid_reply(engine)
        canceled.cancel()
        with suppress(asyncio.CancelledError):
            await canceled
        assert (await waiting).finish_reason is FinishReason.LENGTH
        await until(lambda: engine.health().num_running == 0)

    @on_engine(max_running=4)
    async def test_a_paused_engine_holds_what_is_queued_and_samples_nothing(self, engine: Engine) -> None:
        running = [engine.submit(self.long_request(n)) for n in range(4)]
        queued = [engine.submit(self.request(f"q{n}")) for n in range(36)]
        await self.mid_reply(engine, num_running=4)
        await engine.pause(PauseMode.KEEP)
        late = engine.submit(self.request("late"))
        sampled = engine.health().num_tokens_sampled
        await asyncio.sleep(self.long_reply_s / 5)
        assert engine.health().num_tokens_sampled == sampled
        assert engine.health().num_queued == 37
        assert not any(future.done() for future in [*running, *queued, late])
        await engine.resume()
        results = await asyncio.gather(*running, *queued, late)
        assert all(result.finish_reason is FinishReason.LENGTH for result in results)
        assert len(results[0].token_ids) == self.long_reply

    @on_engine(max_running=2)
    async def test_pause_abort_returns_what_runs_and_holds_what_is_queued(self, engine: Engine) -> None:
        running = [engine.submit(self.long_request(n)) for n in range(2)]
        queued = [engine.submit(self.request(f"q{n}")) for n in range(5)]
        await self.mid_reply(engine, num_running=2)
        await engine.pause(PauseMode.ABORT)
        for result in await asyncio.gather(*running):
            assert result.finish_reason is FinishReason.ABORT
            assert 0 < len(result.token_ids) < self.long_reply
        assert not any(future.done() for future in queued)
        await engine.resume()
        assert all(r.finish_reason is FinishReason.LENGTH for r in await asyncio.gather(*queued))

    @on_engine(max_running=1)
    async def test_pause_wait_lets_what_runs_finish_and_holds_what_is_queued(self, engine: Engine) -> None:
        running = engine.submit(self.long_request())
        queued = engine.submit(self.request("queued"))
        await self.mid_reply(engine)
        await engine.pause(PauseMode.WAIT)
        assert len((await running).token_ids) == self.long_reply
        await asyncio.sleep(self.long_reply_s / 10)
        assert not queued.done()
        await engine.resume()
        await engine.resume()
        assert (await queued).finish_reason is FinishReason.LENGTH

    @on_engine()
    async def test_pauses_that_wait_or_abort_end_replies_that_another_pause_froze(
        self, engine: Engine
    ) -> None:
        endings = {PauseMode.WAIT: FinishReason.LENGTH, PauseMode.ABORT: FinishReason.ABORT}
        for mode, ending in endings.items():
            frozen = engine.submit(self.long_request())
            await self.mid_reply(engine)
            await engine.pause(PauseMode.KEEP)
            await engine.pause(mode)
            assert (await frozen).finish_reason is ending
            await engine.resume()

    @on_engine(needs="weight_updates")
    async def test_replies_after_an_update_carry_its_version(self, engine: Engine) -> None:
        before = await engine.submit(self.request("before"))
        await engine.load_weights(self.weights(), 3)
        after = await engine.submit(self.request("after"))
        assert [span.version for span in before.version_spans] == [0]
        assert [span.version for span in after.version_spans] == [3]
        assert engine.health().version == 3

    @on_engine(needs="weight_updates", max_running=1)
    async def test_weights_can_be_loaded_while_paused(self, engine: Engine) -> None:
        running = engine.submit(self.long_request())
        queued = engine.submit(self.request("queued"))
        await self.mid_reply(engine)
        await engine.pause(PauseMode.KEEP)
        await engine.load_weights(self.weights(), 1)
        await engine.load_weights(self.weights(), 2)
        assert not running.done()
        await engine.resume()
        assert [span.version for span in (await running).version_spans] == [0, 2]
        assert [span.version for span in (await queued).version_spans] == [2]

    @on_engine(needs="priority", max_running=1)
    async def test_a_lower_priority_number_runs_earlier(self, engine: Engine) -> None:
        await engine.pause(PauseMode.KEEP)
        order: list[str] = []
        for priority in (3, 1, 2):
            future = engine.submit(self.request(priority, priority=priority))
            future.add_done_callback(lambda done: order.append(done.result().request_id))
        await engine.resume()
        await until(lambda: len(order) == 3)
        assert order == ["1", "2", "3"]
