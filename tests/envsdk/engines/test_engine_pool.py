"""The pool of engines: single rules, and deaths, hangs, updates and requests in any order."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from envsdk.contracts.trajectory import FinishReason, VersionSpan
from envsdk.engines.engine import EngineHealth, GenerationRequest, GenerationResult
from envsdk.engines.engine_pace import DemandConfig
from envsdk.engines.engine_pool import (
    End,
    EngineIncarnation,
    EnginePool,
    EngineState,
    Join,
    Leave,
    PoolCommand,
    PoolConfig,
    Start,
    Update,
)
from envsdk.engines.proxy import Deliver, EngineLink, InferenceProxy
from envsdk.engines.sampling import SamplingParams

FIRST, SECOND = EngineIncarnation("one", 0), EngineIncarnation("one", 1)


def serving_pool(*names: str, num_started: int | None = None, **config: object) -> EnginePool:
    names = names or ("one",)
    pool = EnginePool(names, PoolConfig(**config), num_started=num_started)  # type: ignore[arg-type]
    for name in names[:num_started]:
        assert pool.started(EngineIncarnation(name, 0)) == []
    assert pool.published(0, pool.incarnations) == []  # the workers know the first incarnations
    return pool


SECONDS = itertools.count()


def look(sampled: int = 0, *, running: int = 0, queued: int = 0) -> EngineHealth:
    return EngineHealth(version=0, num_running=running, num_queued=queued, num_tokens_sampled=sampled)


def pass_time(
    pool: EnginePool, seconds: int, tokens_per_s: dict[str, int], *, running: int = 1, queued: int = 0
) -> list[PoolCommand]:
    """Looks at the engines named, second by second; all commands."""
    commands: list[PoolCommand] = []
    for second in itertools.islice(SECONDS, seconds):
        for incarnation in pool.incarnations:
            if incarnation.name in tokens_per_s:
                sampled = tokens_per_s[incarnation.name] * second
                commands += pool.seen(incarnation, look(sampled, running=running, queued=queued))
        commands += pool.tick(1.0)
    return commands


def test_a_lost_engine_is_ended_started_again_updated_and_joins() -> None:
    pool = serving_pool()
    assert pool.lost(FIRST, "killed") == [End(FIRST)]
    assert pool.state("one") is EngineState.DOWN
    assert pool.tick(0.9) == []
    assert pool.tick(0.1) == [Start(SECOND)]
    assert pool.started(SECOND) == [Update(SECOND)]
    assert pool.version_for(SECOND) == 0
    assert pool.given(SECOND, 0) == [Join(SECOND)]
    assert pool.state("one") is EngineState.SERVING
    assert pool.num_restarts == 1


def test_each_loss_is_news_once_with_its_reason_and_what_comes_of_it() -> None:
    pool = serving_pool("one", "two", max_restarts=1)
    assert pool.take_news() == []
    pool.lost(FIRST, "its process ended:\n  killed")
    pool.lost(FIRST, "late news")
    assert pool.take_news() == [
        "one was lost, it is started again; the reason: its process ended: killed",
    ]
    assert pool.take_news() == []
    pool.tick(1.0)
    pool.lost(SECOND, "out of memory")
    assert pool.take_news() == [
        "one was lost, it stays away: actor_infer.max_engine_restarts=1; the reason: out of memory",
    ]


def test_an_engine_that_is_restarted_for_being_slow_is_news_and_one_that_leaves_is_none() -> None:
    pool = serving_pool("one", "two", slow_s=20, stretch_s=20)
    pass_time(pool, 20, {"one": 1, "two": 100})
    assert pool.take_news() == [
        "one was over 10 times as slow as the others for 20 s; it is started again",
    ]
    pool = serving_pool("one", "two", demand=DEMAND, min_engines=1)
    commands = pass_time(pool, 40, {"one": 9, "two": 9}, running=0)
    assert Leave(EngineIncarnation("two", 0)) in commands
    pool.lost(EngineIncarnation("two", 0), "killed while it left")
    assert pool.take_news() == []


def test_while_the_trainer_learns_an_engine_waits_for_the_next_publication() -> None:
    pool = serving_pool()
    pool.lost(FIRST, "killed")
    pool.tick(1.0)
    pool.weights_move()
    assert pool.started(SECOND) == []
    assert pool.version_for(SECOND) is None
    assert pool.incarnations == [SECOND]
    assert pool.published(1, [SECOND]) == [Join(SECOND)]


def test_an_update_that_newer_weights_overtook_is_repeated() -> None:
    pool = serving_pool()
    pool.lost(FIRST, "killed")
    pool.tick(1.0)
    pool.started(SECOND)
    assert pool.published(1, []) == [Update(SECOND)]
    assert pool.given(SECOND, 0) == [Update(SECOND)]
    assert pool.given(SECOND, 1) == [Join(SECOND)]


def test_an_engine_that_missed_a_publication_serves_no_more() -> None:
    pool = serving_pool("one", "two")
    assert pool.published(1, [EngineIncarnation("two", 0)]) == [End(FIRST)]
    assert pool.num_serving == 1


def test_silence_is_a_loss_and_a_sign_of_life_is_not() -> None:
    pool = serving_pool(silence_s=10)
    for _ in range(5):
        assert pool.tick(9) == []
        pool.heard(FIRST)
    assert pool.tick(9) == []
    assert pool.tick(2) == [End(FIRST)]


def test_a_start_may_take_longer_than_a_sign_of_life_but_not_for_ever() -> None:
    pool = EnginePool(["one"], PoolConfig(silence_s=10, start_s=100))
    assert pool.tick(99) == []
    assert pool.tick(2) == [End(FIRST)]


def test_each_loss_in_a_row_doubles_the_wait_up_to_its_limit() -> None:
    pool = serving_pool(max_restarts=5, max_backoff_s=5)
    for number, wait_s in enumerate([1.0, 2.0, 4.0, 5.0, 5.0]):
        pool.lost(EngineIncarnation("one", number), "killed")
        assert pool.tick(wait_s - 0.01) == []
        assert pool.tick(0.02) == [Start(EngineIncarnation("one", number + 1))]


def test_an_engine_lost_too_often_is_gone_and_the_last_ones_end_says_why() -> None:
    pool = serving_pool("one", "two", max_restarts=1)
    for name in ("one", "two"):
        assert pool.failure == ""
        pool.lost(EngineIncarnation(name, 0), "killed")
        pool.tick(1.0)
        assert pool.lost(EngineIncarnation(name, 1), "out of memory") == [End(EngineIncarnation(name, 1))]
        assert pool.state(name) is EngineState.GONE
    assert pool.tick(1000.0) == []
    assert "max_engine_restarts=1: one was lost 2 times in a row, last: out of memory; two" in pool.failure


def test_a_long_service_clears_the_count_of_losses() -> None:
    pool = serving_pool(max_restarts=1, steady_s=60, silence_s=100)
    for number in range(5):
        pool.tick(60)
        pool.lost(EngineIncarnation("one", number), "killed")
        pool.tick(1.0)
        pool.started(EngineIncarnation("one", number + 1))
        pool.given(EngineIncarnation("one", number + 1), 0)
    assert pool.state("one") is EngineState.SERVING


def test_what_an_earlier_life_does_counts_for_nothing() -> None:
    pool = serving_pool()
    pool.lost(FIRST, "killed")
    pool.tick(1.0)
    pool.started(SECOND)
    pool.given(SECOND, 0)
    assert pool.lost(FIRST, "late news") == pool.started(FIRST) == pool.given(FIRST, 0) == []
    assert pool.state("one") is EngineState.SERVING


def test_a_slow_engine_is_drained_started_again_and_joins() -> None:
    pool = serving_pool("one", "two", "three", slow_s=40, stretch_s=20, first_backoff_s=30)
    speeds = {"one": 1, "two": 100, "three": 100}
    assert pass_time(pool, 39, speeds) == []
    assert pass_time(pool, 1, speeds) == [Leave(FIRST)]
    assert pool.state("one") is EngineState.DRAINING
    assert pool.num_serving == 2
    assert pool.num_engines == 3
    assert pass_time(pool, 5, speeds) == []  # its turns go on
    assert pass_time(pool, 4, {"one": 0}, running=0) == [End(FIRST, is_well=True), Start(SECOND)]
    assert pool.started(SECOND) == [Update(SECOND)]
    assert pool.given(SECOND, 0) == [Join(SECOND)]
    assert pool.num_restarts == 1


def test_an_engine_that_is_slow_again_is_left_alone_for_longer() -> None:
    pool = serving_pool("one", "two", slow_s=20, stretch_s=20, drain_s=5, silence_s=1000)
    speeds = {"one": 1, "two": 100}
    waits = []
    for number in range(3):
        incarnation = EngineIncarnation("one", number)
        stretches = (pass_time(pool, 20, speeds) for _ in range(20))
        waits.append(next(n for n, commands in enumerate(stretches) if Leave(incarnation) in commands))
        pass_time(pool, 7, {"two": 100})
        assert pool.started(EngineIncarnation("one", number + 1)) == [
            Update(EngineIncarnation("one", number + 1))
        ]
        pool.given(EngineIncarnation("one", number + 1), 0)
    assert waits[0] < waits[1] < waits[2]


def test_slow_engines_are_drained_one_after_the_other() -> None:
    names = ("one", "two", "three", "four", "five")
    pool = serving_pool(*names, slow_s=20, stretch_s=20, drain_s=50)
    speeds = dict.fromkeys(names, 100) | {"one": 1, "two": 1}
    assert pass_time(pool, 60, speeds) == [Leave(FIRST)]
    assert pool.num_serving == 4
    assert pass_time(pool, 20, speeds) == [End(FIRST), Start(SECOND)]
    assert pass_time(pool, 20, speeds) == []
    pool.started(SECOND)
    pool.given(SECOND, 0)
    assert pass_time(pool, 20, speeds | {"one": 100}) == [Leave(EngineIncarnation("two", 0))]


def test_the_only_engine_is_never_too_slow() -> None:
    pool = serving_pool("one", "two", slow_s=20)
    pool.lost(EngineIncarnation("two", 0), "killed")
    assert pass_time(pool, 900, {"one": 1}) == [Start(EngineIncarnation("two", 1))]


def test_an_engine_that_has_requests_and_computes_nothing_is_lost() -> None:
    pool = serving_pool(stall_s=30, first_backoff_s=9)
    assert pass_time(pool, 31, {"one": 0}) == []
    assert pass_time(pool, 1, {"one": 0}) == [End(FIRST)]
    assert pool.num_restarts == 0


def test_an_idle_or_paused_engine_does_not_stall() -> None:
    pool = serving_pool(stall_s=30)
    assert pass_time(pool, 100, {"one": 0}, running=0) == []
    for _ in range(100):
        pool.heard(FIRST)
        pool.tick(1.0)
    assert pool.state("one") is EngineState.SERVING


def test_a_draining_engine_gets_new_weights_or_is_ended() -> None:
    pool = serving_pool("one", "two", slow_s=20, stretch_s=20)
    pass_time(pool, 20, {"one": 1, "two": 100})
    assert pool.state("one") is EngineState.DRAINING
    assert pool.published(1, [FIRST, EngineIncarnation("two", 0)]) == []
    assert pool.published(2, [EngineIncarnation("two", 0)]) == [End(FIRST)]


def test_turns_that_take_too_long_on_a_draining_engine_are_given_up_there() -> None:
    pool = serving_pool("one", "two", slow_s=20, stretch_s=20, drain_s=30)
    speeds = {"one": 1, "two": 100}
    pass_time(pool, 20, speeds)
    assert pass_time(pool, 30, speeds) == []
    assert pass_time(pool, 1, speeds) == [End(FIRST)]


def test_an_engine_whose_node_goes_away_ends_its_turns_and_is_started_elsewhere() -> None:
    pool = serving_pool("one", "two")
    assert pool.leave([FIRST], 30.0) == [Leave(FIRST)]
    assert pool.leave([FIRST], 30.0) == []
    speeds = {"one": 1, "two": 1}
    assert pass_time(pool, 3, speeds) == []
    assert pass_time(pool, 4, {"one": 0}, running=0) == [End(FIRST, is_well=True), Start(SECOND)]
    assert pool.leave([FIRST], 30.0) == []
    [news] = pool.take_news()
    assert "one leaves its node, which goes away in 30 s" in news


def test_turns_that_do_not_end_in_time_leave_enough_to_start_elsewhere() -> None:
    pool = serving_pool("one", "two")
    pool.leave([FIRST], 20.0)
    assert pass_time(pool, 14, {"one": 1, "two": 1}) == []
    assert pass_time(pool, 1, {"one": 1, "two": 1}) == [End(FIRST)]


def test_an_engine_that_starts_on_a_node_that_goes_away_is_started_elsewhere_at_once() -> None:
    pool = serving_pool("one", "two")
    pool.lost(FIRST, "killed")
    pool.tick(1.0)
    assert pool.leave([SECOND], 30.0) == [End(SECOND)]
    assert pool.tick(0.0) == [Start(EngineIncarnation("one", 2))]


DEMAND = DemandConfig(places=4, max_queued=2, grow_s=5, idle_s=30)


def test_a_long_queue_starts_engines_and_long_idleness_ends_them() -> None:
    pool = serving_pool("one", "two", "three", num_started=1, demand=DEMAND)
    two = EngineIncarnation("two", 1)
    assert pass_time(pool, 6, {"one": 9}, queued=3) == [Start(two)]
    assert pass_time(pool, 20, {"one": 9}, queued=3) == []  # one at a time
    assert pool.started(two) == [Update(two)]
    assert pool.given(two, 0) == [Join(two)]
    assert pool.num_restarts == 0
    assert pool.state("three") is EngineState.RESTING

    both = {"one": 9, "two": 9}
    assert pass_time(pool, 29, both, running=1) == []
    assert pass_time(pool, 1, both, running=1) == [Leave(two)]
    assert pass_time(pool, 4, both, running=0) == [End(two, is_well=True)]
    assert pool.state("two") is EngineState.RESTING
    assert pass_time(pool, 100, both, running=0) == []  # the last one stays
    assert pool.num_engines == 1


def test_no_engine_is_ended_below_the_fewest() -> None:
    pool = serving_pool("one", "two", "three", min_engines=2, demand=DEMAND)
    idle = dict.fromkeys(["one", "two", "three"], 0)
    assert Leave(EngineIncarnation("three", 0)) in pass_time(pool, 100, idle, running=0)
    assert pass_time(pool, 100, idle, running=0) == []
    assert pool.num_serving == 2


def test_a_resting_engine_takes_the_place_of_one_that_is_gone() -> None:
    pool = serving_pool("one", "two", num_started=1, max_restarts=0)
    assert pool.lost(FIRST, "killed") == [End(FIRST)]
    assert pool.failure == ""
    assert pool.tick(1.0) == [Start(EngineIncarnation("two", 1))]


def test_resting_engines_take_the_places_of_all_that_are_gone_at_once() -> None:
    pool = serving_pool("one", "two", "three", "four", num_started=2, max_restarts=0)
    for name in ("one", "two"):
        pool.lost(EngineIncarnation(name, 0), "killed")
    assert pool.tick(1.0) == [Start(EngineIncarnation("three", 1)), Start(EngineIncarnation("four", 1))]
    assert pool.num_engines == 2


def test_a_drained_engine_that_dies_rests_all_the_same() -> None:
    pool = serving_pool("one", "two", demand=DEMAND, max_restarts=0, min_engines=1)
    pass_time(pool, 30, {"one": 0, "two": 0}, running=0)
    assert pool.lost(EngineIncarnation("two", 0), "killed") == [End(EngineIncarnation("two", 0))]
    assert pool.state("two") is EngineState.RESTING


@dataclass(eq=False)
class SimulatedEngine(EngineLink):
    """A process and the link to it."""

    incarnation: EngineIncarnation
    version: int = -1
    has_started: bool = False
    hangs: bool = False
    """It answers no one."""
    tokens_per_s: int = 100
    """Of each running request; at most two run."""
    num_sampled: int = 0
    is_draining: bool = False
    requests: dict[str, GenerationRequest] = field(default_factory=dict)
    deliver: Deliver | None = None
    is_dead: asyncio.Event = field(default_factory=asyncio.Event)

    def connect(self, deliver: Deliver) -> None:
        self.deliver = deliver

    def send(self, request: GenerationRequest) -> None:
        assert not self.is_draining
        self.requests[request.request_id] = request

    def abort(self, request_ids: Sequence[str]) -> None:
        for request_id in request_ids:
            self.requests.pop(request_id, None)

    async def lost(self) -> str:
        await self.is_dead.wait()
        return "dead"

    def close(self) -> None:
        self.deliver = None

    def health(self) -> EngineHealth:
        num_running = min(2, len(self.requests))
        return EngineHealth(
            version=self.version,
            num_running=num_running,
            num_queued=len(self.requests) - num_running,
            num_tokens_sampled=self.num_sampled,
        )

    def answer(self, request_id: str) -> None:
        request = self.requests.pop(request_id)
        result = GenerationResult(
            request_id=request_id,
            token_ids=request.prompt_ids,
            logprobs=np.zeros(1, np.float32),
            version_spans=(VersionSpan(version=self.version, start=0, end=1),),
            finish_reason=FinishReason.STOP,
        )
        if self.deliver is not None:
            self.deliver([result], None)


class PoolMachine(RuleBasedStateMachine):
    """The pool, a real proxy, simulated engines; this is their shell."""

    names = ("one", "two", "three", "four")
    num_started = 3
    min_engines = 2

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.pool = EnginePool(
            self.names,
            PoolConfig(
                max_restarts=3,
                silence_s=5,
                start_s=50,
                steady_s=20,
                max_backoff_s=4,
                stall_s=5,
                slow_s=4,
                stretch_s=2,
                drain_s=6,
                min_engines=self.min_engines,
                demand=DemandConfig(places=2, max_queued=1, grow_s=3, idle_s=5),
            ),
            num_started=self.num_started,
        )
        self.engines = {name: SimulatedEngine(EngineIncarnation(name, 0)) for name in self.names}
        self.engines[self.names[-1]].is_dead.set()
        self.known = {name: EngineIncarnation(name, 0) for name in self.names[: self.num_started]}
        """Lives that the workers send requests to."""
        self.version = -1
        self.is_suspended = True
        self.updates: list[EngineIncarnation] = []
        self.under_way: list[tuple[SimulatedEngine, int]] = []
        self.answers: dict[str, asyncio.Future[GenerationResult]] = {}
        self.num_requests = 0

    @initialize(is_busy=st.booleans())
    def begin(self, is_busy: bool) -> None:
        self.a_node_left = False

        async def opened() -> InferenceProxy:
            first = {name: self.engines[name] for name in self.names[: self.num_started]}
            proxy = InferenceProxy(first, engines_return=True)
            proxy.start()
            proxy.suspend()
            return proxy

        self.proxy = self.loop.run_until_complete(opened())
        self.start_all()
        if is_busy:
            self.publish()
            self.many_ask()

    def on_loop(self, call: Callable[[], None]) -> None:
        self.loop.call_soon(call)
        self.pump()

    def pump(self) -> None:
        """Let the proxy notice what happened."""
        for _ in range(4):
            self.loop.run_until_complete(asyncio.sleep(0))

    def execute(self, commands: Iterable[PoolCommand]) -> None:
        for command in commands:
            incarnation = command.incarnation
            if isinstance(command, Start):
                assert self.engines[incarnation.name].is_dead.is_set(), "two processes of one name"
                self.engines[incarnation.name] = SimulatedEngine(incarnation)
            elif isinstance(command, End):
                assert not (command.is_well and self.engines[incarnation.name].requests)
                self.known.pop(incarnation.name, None)
                self.kill(self.engines[incarnation.name])
            elif isinstance(command, Update):
                self.updates.append(incarnation)
            elif isinstance(command, Leave):
                assert self.known.pop(incarnation.name) == incarnation
                assert self.pool.num_serving or self.a_node_left, "nobody is left"
                self.loop.call_soon(self.proxy.drain_engine, incarnation.name)
                self.pump()
                self.engines[incarnation.name].is_draining = True
            else:
                assert isinstance(command, Join)
                engine = self.engines[incarnation.name]
                assert engine.incarnation == incarnation
                assert not engine.is_draining
                assert engine.version == self.version
                self.known[incarnation.name] = incarnation
                self.loop.call_soon(self.proxy.add_engine, incarnation.name, engine)
            self.pump()

    def kill(self, engine: SimulatedEngine) -> None:
        engine.is_dead.set()
        engine.requests.clear()
        self.pump()

    def living(self) -> list[SimulatedEngine]:
        return [engine for engine in self.engines.values() if not engine.is_dead.is_set()]

    @rule(session=st.sampled_from(["", "a", "b", "c"]))
    def request(self, session: str) -> None:
        self.num_requests += 1
        request = GenerationRequest(
            request_id=f"r{self.num_requests}",
            prompt_ids=np.array([self.num_requests], np.int32),
            sampling=SamplingParams(max_new_tokens=4),
            session_id=session,
        )

        async def asked() -> asyncio.Future[GenerationResult]:
            return self.proxy.generate(request)

        self.answers[request.request_id] = self.loop.run_until_complete(asked())

    @rule(which=st.integers(0, 3))
    def answer(self, which: int) -> None:
        engine = self.engines[self.names[which]]
        if engine.requests and not engine.hangs:
            request_id = next(iter(engine.requests))
            assert not self.answers[request_id].done(), "answered twice"
            assert engine.version == self.version
            self.on_loop(lambda: engine.answer(request_id))
            assert self.answers[request_id].done()

    @rule(which=st.integers(0, 3), is_told=st.booleans())
    def die(self, which: int, is_told: bool) -> None:
        engine = self.engines[self.names[which]]
        if not engine.is_dead.is_set():
            self.kill(engine)
            if is_told:
                self.execute(self.pool.lost(engine.incarnation, "killed"))

    @rule()
    def die_together(self) -> None:
        for which in range(4):
            self.die(which, is_told=True)

    @rule(which=st.sets(st.integers(0, 3)), grace_s=st.sampled_from([0.0, 5.0, 60.0]))
    def node_leaves(self, which: set[int], grace_s: float) -> None:
        self.a_node_left = True
        there = [self.engines[self.names[each]].incarnation for each in sorted(which)]
        self.execute(self.pool.leave(there, grace_s))

    @rule(which=st.integers(0, 3))
    def hang(self, which: int) -> None:
        self.engines[self.names[which]].hangs = True

    @rule(which=st.integers(0, 3), tokens_per_s=st.sampled_from([0, 1]))
    def slow_down(self, which: int, tokens_per_s: int) -> None:
        self.engines[self.names[which]].tokens_per_s = tokens_per_s

    @rule(which=st.integers(0, 3))
    def start_up(self, which: int) -> None:
        engine = self.engines[self.names[which]]
        if not engine.has_started and not engine.hangs and not engine.is_dead.is_set():
            engine.has_started = True
            self.execute(self.pool.started(engine.incarnation))

    @rule(elapsed_s=st.sampled_from([0.5, 1.0, 3.0]), is_paused=st.booleans())
    def time_passes(self, elapsed_s: float, is_paused: bool) -> None:
        for engine in self.living():
            if engine.hangs or not engine.has_started:
                continue
            if is_paused:
                self.pool.heard(engine.incarnation)
                continue
            engine.num_sampled += int(engine.tokens_per_s * engine.health().num_running * elapsed_s)
            self.execute(self.pool.seen(engine.incarnation, engine.health()))
        self.execute(self.pool.tick(elapsed_s))
        are_resting = any(self.pool.state(name) is EngineState.RESTING for name in self.names)
        assert self.pool.num_engines >= self.min_engines or not are_resting

    @rule()
    def much_time_passes(self) -> None:
        for _ in range(8):
            self.recover(1.0)

    @rule(which=st.integers(0, 3), tokens_per_s=st.sampled_from([0, 1]))
    def be_slow_for_long(self, which: int, tokens_per_s: int) -> None:
        self.slow_down(which, tokens_per_s)
        self.much_time_passes()

    @rule()
    def many_ask(self) -> None:
        for _ in range(12):
            self.request("")

    def start_all(self) -> None:
        for which in range(4):
            self.start_up(which)

    @rule()
    def learn(self) -> None:
        self.pool.weights_move()

    @rule()
    def publish(self) -> None:
        self.version += 1
        incarnations = set(self.pool.incarnations)
        updated = [
            engine for engine in self.living() if engine.incarnation in incarnations and not engine.hangs
        ]
        for engine in updated:
            engine.version = self.version
        self.execute(self.pool.published(self.version, [engine.incarnation for engine in updated]))
        if self.version == 0:
            self.resume()

    @precondition(lambda self: self.updates)
    @rule()
    def begin_to_give(self) -> None:
        incarnation = self.updates.pop(0)
        version = self.pool.version_for(incarnation)
        engine = self.engines[incarnation.name]
        if version is not None and engine.incarnation == incarnation:
            self.under_way.append((engine, version))

    @precondition(lambda self: self.under_way)
    @rule()
    def end_to_give(self) -> None:
        engine, version = self.under_way.pop(0)
        if not engine.hangs and not engine.is_dead.is_set():
            engine.version = max(engine.version, version)
            self.execute(self.pool.given(engine.incarnation, version))

    @rule(elapsed_s=st.sampled_from([1.0, 3.0]))
    def recover(self, elapsed_s: float) -> None:
        self.time_passes(elapsed_s, False)
        self.start_all()
        while self.updates:
            self.begin_to_give()
        while self.under_way:
            self.end_to_give()
        for engine in self.living():
            if self.pool.state(engine.incarnation.name) is EngineState.WAITING and not engine.hangs:
                assert self.pool.version_for(engine.incarnation) is None, (
                    "it has the weights and does not serve"
                )

    @rule()
    def suspend(self) -> None:
        self.is_suspended = True
        self.on_loop(self.proxy.suspend)

    @precondition(lambda self: self.version >= 0)
    @rule()
    def resume(self) -> None:
        self.is_suspended = False
        self.on_loop(self.proxy.resume)

    @invariant()
    def only_serving_engines_with_the_newest_weights_have_requests(self) -> None:
        for engine in self.engines.values():
            if engine.requests:
                state = self.pool.state(engine.incarnation.name)
                assert state is (EngineState.DRAINING if engine.is_draining else EngineState.SERVING)
                assert engine.version == self.version

    @invariant()
    def the_workers_know_the_engines_that_serve_and_each_life_has_one_process(self) -> None:
        begun = {EngineState.STARTING, EngineState.WAITING, EngineState.SERVING, EngineState.DRAINING}
        for name, engine in self.engines.items():
            state = self.pool.state(name)
            if state is EngineState.SERVING:
                assert self.known[name] == engine.incarnation
            elif engine.incarnation.number:
                assert name not in self.known
            if state not in begun:
                assert engine.is_dead.is_set()

    @invariant()
    def each_open_request_is_in_one_place_and_waits_for_no_other_engine(self) -> None:
        places = [request_id for engine in self.engines.values() for request_id in engine.requests]
        assert len(places) == len(set(places))
        unanswered = {request_id for request_id, answer in self.answers.items() if not answer.done()}
        assert set(places) <= unanswered
        serving = [e for e in self.living() if self.pool.state(e.incarnation.name) is EngineState.SERVING]
        if serving and not self.is_suspended:
            assert set(places) == unanswered

    def teardown(self) -> None:
        """Without further trouble everything is answered, unless all engines are gone."""
        for _ in range(100):
            self.start_all()
            self.publish()
            self.resume()
            for which in range(4):
                while self.engines[self.names[which]].requests and not self.engines[self.names[which]].hangs:
                    self.answer(which)
            self.time_passes(1.0, False)
            are_answered = all(answer.done() for answer in self.answers.values())
            if self.pool.failure or (are_answered and self.pool.num_serving):
                break
        assert bool(self.pool.failure) == (self.pool.num_serving == 0)
        if not self.pool.failure:
            for request_id, answer in self.answers.items():
                assert answer.result().token_ids.tolist() == [int(request_id[1:])]
        self.loop.run_until_complete(self.proxy.close())
        self.pump()
        self.loop.close()


def test_engines_that_die_together_again_and_again_leave_no_fewer_than_the_fewest_while_others_rest() -> None:
    machine = PoolMachine()
    machine.begin(is_busy=False)
    machine.die_together()
    machine.publish()
    machine.be_slow_for_long(0, tokens_per_s=0)
    machine.die_together()
    machine.much_time_passes()
    machine.die_together()
    machine.be_slow_for_long(0, tokens_per_s=0)
    machine.die_together()
    assert machine.pool.num_engines == 0
    machine.time_passes(0.5, is_paused=False)
    assert machine.pool.num_engines == machine.min_engines
    machine.teardown()


TestPool = PoolMachine.TestCase
TestPool.settings = settings(max_examples=60, stateful_step_count=40, deadline=None, derandomize=True)
