"""Crowds of turns on simulated engines, in virtual time: whatever happens, each gets its one reply."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from simulated_engines import SimulatedEngine, SimulatedLink, assert_right, run

from envsdk.contracts.trajectory import FinishReason
from envsdk.engines.continuation import joined
from envsdk.engines.engine import GenerationRequest, GenerationResult, TokenDelta
from envsdk.engines.proxy import MAX_INTERRUPTIONS, InferenceProxy
from envsdk.engines.router import Router, RouterConfig
from envsdk.engines.sampling import OutputStructure, SamplingParams
from tests.by_day import examples

NUM_PROXIES = 2
HANG_NOTICED_S = 20.0
FOREVER_S = 10_000.0
TIGHT = RouterConfig(max_queued=2, max_kv_usage=0.8, max_queued_when_full=1, spill_slack=200)
"""Engines have no room most of the time."""


@dataclass
class Asked:
    request: GenerationRequest
    future: asyncio.Future[GenerationResult]
    told: list[TokenDelta] = field(default_factory=list)
    num_answers: int = 0


class CheckedLink(SimulatedLink):
    """Refuses what a proxy must not send."""

    def __init__(self, pool: Pool, proxy: int, engine: SimulatedEngine) -> None:
        super().__init__(engine)
        self._pool, self._proxy = pool, proxy
        self.is_drained = False

    def send(self, request: GenerationRequest) -> None:
        assert not self.is_drained, "it was drained"
        assert self._proxy not in self._pool.suspended, "dispatch is suspended"
        if not self.engine.is_dead:  # a proxy hears of a death some turns of the loop later
            assert self.engine.version >= self._pool.published, "its weights are too old"
        super().send(request)


class Pool:
    """Proxies and their engines, and what may happen to them."""

    def __init__(self, *, keeps_tokens: bool, num_engines: int = 2, num_proxies: int = NUM_PROXIES) -> None:
        self.published = 0
        self.suspended: set[int] = set()
        self.asked: list[Asked] = []
        self.links: list[CheckedLink] = []
        self._engines: dict[str, tuple[SimulatedEngine, list[CheckedLink]]] = {}
        self._sessions = itertools.cycle(["", "s", "t", "u", "v"])
        self.proxies = [
            InferenceProxy(
                {}, router=Router(TIGHT), keep_interrupted_tokens=keeps_tokens, engines_return=True
            )
            for _ in range(num_proxies)
        ]
        for proxy in self.proxies:
            proxy.start()
        for number in range(num_engines):
            self.join(f"e{number}")

    def ask(self, *, num_tokens: int, prompt: int = 3, priority: int = 0, session: str | None = None) -> None:
        """One turn, at the proxies in turn; every third is streamed, and every fifth has a structure."""
        number = len(self.asked)
        structure = OutputStructure(regex="a*") if number % 5 == 3 else None
        request = GenerationRequest(
            request_id=f"r{number}",
            prompt_ids=np.ones(prompt, np.int32),
            sampling=SamplingParams(
                max_new_tokens=num_tokens, seed=number, stop_token_ids=(0,), structure=structure
            ),
            session_id=next(self._sessions) if session is None else session,
            priority=priority,
        )
        told: list[TokenDelta] = []
        proxy = self.proxies[number % len(self.proxies)]
        asked = Asked(request, proxy.generate(request, told.append if number % 3 == 0 else None), told)
        asked.future.add_done_callback(lambda _: setattr(asked, "num_answers", asked.num_answers + 1))
        self.asked.append(asked)

    def join(self, name: str, token_s: float = 0.05) -> None:
        """A new engine with the newest weights, or one that takes the place of an old one."""
        engine = SimulatedEngine(version=self.published, token_s=token_s)
        if name in self._engines:
            self._engines.pop(name)[0].kill()
        links = [CheckedLink(self, proxy, engine) for proxy in range(len(self.proxies))]
        engine._links += links
        self.links += links
        self._engines[name] = engine, links
        for proxy, link in zip(self.proxies, links, strict=True):
            proxy.add_engine(name, link)

    def kill(self, name: str) -> None:
        if name in self._engines:
            self._engines.pop(name)[0].kill()

    def hang(self, name: str) -> None:
        """It is noticed some time later."""
        if name in self._engines:
            engine, _ = self._engines.pop(name)
            engine.hang()
            asyncio.get_running_loop().call_later(HANG_NOTICED_S, engine.kill)

    def drain(self, name: str) -> None:
        if name in self._engines:
            _, links = self._engines.pop(name)
            for proxy, link in zip(self.proxies, links, strict=True):
                proxy.drain_engine(name)
                link.is_drained = True

    async def update(self, *, restart: bool) -> None:
        """New weights, one engine after the other; one that cannot take them is ended."""
        version = self.published + 1
        for engine, _ in list(self._engines.values()):
            await asyncio.sleep(0.3)
            engine.update(version, restart=restart)
        for link in self.links:
            if link.engine.version < version and not link.is_drained:
                link.engine.kill()
        self.published = version

    def suspend(self, proxy: int) -> None:
        self.proxies[proxy].suspend()
        self.suspended.add(proxy)

    def resume(self, proxy: int) -> None:
        self.suspended.discard(proxy)
        self.proxies[proxy].resume()

    def assert_nobody_waits_while_an_engine_idles(self) -> None:
        """Where an engine has nothing of a proxy's to do, and nobody else's waits there, no turn waits."""
        for number, proxy in enumerate(self.proxies):
            router = proxy._router
            idle = [name for name in router.engines if not router.outstanding_tokens(name)]
            if idle and number not in self.suspended:
                assert "" not in router._waiting
                assert not set(idle) & router._waiting.keys()
                if any(router._runs_at_once(router._engines[name]) for name in idle):
                    assert not router._waiting

    async def settle(self) -> None:
        """Let everything end that can, and look at what came out."""
        self.join("last")
        for number in range(len(self.proxies)):
            self.resume(number)
        futures = [asked.future for asked in self.asked if not asked.future.cancelled()]
        await asyncio.wait_for(asyncio.gather(*futures), FOREVER_S)
        await asyncio.sleep(HANG_NOTICED_S)
        for asked in self.asked:
            assert asked.num_answers == 1
            if asked.future.cancelled():
                continue
            result = asked.future.result()
            if not self._was_torn(asked, result):
                assert_right(result, asked.request)
            if asked.told:
                tokens = joined(asked.told)
                assert tokens is not None
                assert tokens.token_ids.tolist() == result.token_ids.tolist()
                assert tokens.logprobs.tolist() == result.logprobs.tolist()
        for proxy in self.proxies:
            assert not proxy._pending
            assert not proxy._router._requests
            assert not proxy._router._waiting
        self._assert_updates_let_structures_end()
        for link in self.links:
            assert link.engine.is_dead or not link.engine.num_open
            assert not link.is_drained or link.is_closed

    def _was_torn(self, asked: Asked, result: GenerationResult) -> bool:
        """A reply with a structure that was read cannot continue when its engine is lost."""
        is_bound = asked.request.sampling.structure is not None
        was_lost = any(link.engine.is_dead for link in self.links)
        return bool(
            is_bound and asked.told and was_lost and result.finish_reason is FinishReason.ERROR
        ) and "cannot continue" in (result.error)

    def _assert_updates_let_structures_end(self) -> None:
        num_cuts = sum({id(link.engine): link.engine.num_cuts for link in self.links}.values(), Counter())
        for number, asked in enumerate(self.asked):
            if asked.request.sampling.structure is not None:
                is_streamed = number % 3 == 0
                assert num_cuts[asked.request.request_id] <= (0 if is_streamed else MAX_INTERRUPTIONS)

    async def close(self) -> None:
        for proxy in self.proxies:
            await proxy.close()


names = st.sampled_from(["e0", "e1", "e2", "e3"])
events = st.lists(
    st.one_of(
        st.tuples(st.just("ask"), st.integers(1, 12), st.integers(1, 80), st.integers(1, 60)),
        st.tuples(st.just("cancel"), st.integers(0, 99)),
        st.tuples(st.just("suspend"), st.integers(0, NUM_PROXIES - 1)),
        st.tuples(st.just("resume"), st.integers(0, NUM_PROXIES - 1)),
        st.tuples(st.just("update"), st.booleans()),
        st.tuples(st.just("kill"), names),
        st.tuples(st.just("hang"), names),
        st.tuples(st.just("drain"), names),
        st.tuples(st.just("join"), names, st.sampled_from([0.02, 0.05, 0.5])),
        st.tuples(st.just("wait"), st.sampled_from([0.01, 0.2, 1.0, 5.0, 30.0])),
    ),
    max_size=40,
)


async def happen(pool: Pool, event: tuple[Any, ...]) -> None:
    what, *details = event
    match what:
        case "ask":
            count, num_tokens, prompt = details
            for number in range(count):
                pool.ask(num_tokens=num_tokens, prompt=prompt, priority=number % 2)
        case "cancel" if pool.asked:
            pool.asked[details[0] % len(pool.asked)].future.cancel()
        case "update":
            await pool.update(restart=details[0])
        case "wait":
            await asyncio.sleep(details[0])
        case "suspend" | "resume" | "kill" | "hang" | "drain" | "join":
            getattr(pool, what)(*details)
    for _ in range(10):
        await asyncio.sleep(0)
    pool.assert_nobody_waits_while_an_engine_idles()


@settings(max_examples=examples(50))
@given(events=events, keeps_tokens=st.booleans())
def test_every_turn_gets_its_one_reply_whatever_happens(
    events: list[tuple[Any, ...]], keeps_tokens: bool
) -> None:
    async def scenario() -> None:
        pool = Pool(keeps_tokens=keeps_tokens)
        for event in events:
            await happen(pool, event)
        await pool.settle()
        await pool.close()

    run(scenario())


def test_a_thousand_turns_survive_a_bad_day_and_many_go_on_from_what_they_had() -> None:
    async def scenario() -> None:
        pool = Pool(keeps_tokens=False, num_engines=4)
        draw = random.Random(0)
        for _ in range(300):
            name = f"e{draw.randrange(4)}"
            trouble = draw.choice([("kill", name), ("hang", name), ("drain", name), ("update", False)])
            for event in (
                ("ask", draw.randrange(8), draw.randrange(20, 80), draw.randrange(1, 40)),
                trouble if draw.random() < 0.1 else ("wait", draw.random()),
                ("join", name, 0.05) if draw.random() < 0.2 else ("wait", draw.random()),
            ):
                await happen(pool, event)
        await pool.settle()
        asked = {item.request.request_id: len(item.request.prompt_ids) for item in pool.asked}
        num_longer = sum(
            len(sent.prompt_ids) > asked[sent.request_id] for link in pool.links for sent in link.sent
        )
        assert len(asked) > 900
        assert num_longer > 30
        await pool.close()

    run(scenario())


def test_who_last_heard_of_a_full_engine_gets_his_turns_all_the_same() -> None:
    async def scenario() -> None:
        pool = Pool(keeps_tokens=False, num_engines=1)
        for number in range(100):
            pool.ask(num_tokens=5 if number == 0 else 50, session="")
        first, others = pool.asked[0::2], pool.asked[1::2]
        for asked in first[1:]:
            asked.future.cancel()
        await asyncio.wait_for(first[0].future, FOREVER_S)
        assert pool.proxies[0].health["e0"].num_queued > TIGHT.max_queued
        pool.ask(num_tokens=5, session="")
        await asyncio.wait_for(asyncio.gather(*(asked.future for asked in others)), FOREVER_S)
        await asyncio.wait_for(pool.asked[-1].future, FOREVER_S)
        await pool.close()

    run(scenario())


def test_replies_with_a_structure_end_however_often_the_weights_change() -> None:
    async def scenario() -> None:
        pool = Pool(keeps_tokens=False)
        for _ in range(40):
            pool.ask(num_tokens=60)
        bound = [asked for asked in pool.asked if asked.request.sampling.structure is not None]
        for num_updates in itertools.count():  # each reply takes longer than the time between two updates
            if all(asked.future.done() for asked in bound):
                break
            assert num_updates < 200, "they make no progress"
            await pool.update(restart=True)
        assert not any(link.engine.is_dead for link in pool.links)
        await pool.settle()
        spans = [asked.future.result().version_spans for asked in bound]
        assert max(map(len, spans)) > 1
        await pool.close()

    run(scenario())


def time_for(num_engines: int) -> float:
    """Virtual seconds that 400 turns of 20 to 60 tokens take."""

    async def scenario() -> float:
        pool = Pool(keeps_tokens=False, num_engines=num_engines, num_proxies=1)
        draw = random.Random(0)
        for _ in range(400):
            pool.ask(num_tokens=draw.randrange(20, 60), session="")
        loop = asyncio.get_running_loop()
        begin = loop.time()
        await asyncio.wait_for(asyncio.gather(*(asked.future for asked in pool.asked)), FOREVER_S)
        took = loop.time() - begin
        await pool.close()
        return took

    return run(scenario())


def test_four_engines_do_nearly_four_times_what_one_does() -> None:
    assert time_for(1) / time_for(4) > 3.8
