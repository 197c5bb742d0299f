from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from envsdk.engines.router import Order, Router, RouterConfig

ENGINES = ["a", "b", "c"]
CONFIG = RouterConfig(
    spill_factor=1.5, spill_slack=100, max_sessions=4, max_queued=3, max_kv_usage=0.8, max_queued_when_full=1
)


@dataclass
class Look:
    """What was last heard of an engine."""

    num_queued: int = 0
    kv_usage: float = 0.0
    num_since: int = 0


class RouterMachine(RuleBasedStateMachine):
    """A router beside plain lists of what waits and what is outstanding where."""

    def __init__(self) -> None:
        super().__init__()
        self.router = Router(CONFIG)
        self.engines: dict[str, Look] = {}
        self.draining: set[str] = set()
        self.pinned: dict[str, str] = {}
        self.waiting: dict[str, tuple[Order, str, int]] = {}
        self.outstanding: dict[str, tuple[str, int]] = {}
        self.num_requests = 0

    def load(self, engine: str) -> int:
        return sum(tokens for where, tokens in self.outstanding.values() if where == engine)

    def has_room(self, engine: str) -> bool:
        if engine not in {where for where, _ in self.outstanding.values()}:
            return True
        look = self.engines[engine]
        if look.kv_usage >= CONFIG.max_kv_usage:
            return look.num_queued + look.num_since < CONFIG.max_queued_when_full
        return look.num_queued == 0 or look.num_queued + look.num_since < CONFIG.max_queued

    def runs_at_once(self, engine: str) -> bool:
        look = self.engines[engine]
        return look.num_queued == 0 and look.kv_usage < CONFIG.max_kv_usage

    @rule(engine=st.sampled_from(ENGINES))
    def add(self, engine: str) -> None:
        self.router.add_engine(engine)
        self.engines.setdefault(engine, Look())
        self.draining.discard(engine)

    @precondition(lambda self: self.engines)
    @rule(data=st.data())
    def drain(self, data: st.DataObject) -> None:
        engine = data.draw(st.sampled_from(sorted(self.engines)))
        self.router.drain_engine(engine)
        self.draining.add(engine)
        self.unpin(engine)

    def unpin(self, engine: str) -> None:
        self.pinned = {request: where for request, where in self.pinned.items() if where != engine}

    @rule(engine=st.sampled_from(ENGINES))
    def remove(self, engine: str) -> None:
        lost = [request for request, (where, _) in self.outstanding.items() if where == engine]
        assert self.router.remove_engine(engine) == lost
        for request in lost:
            del self.outstanding[request]
        self.engines.pop(engine, None)
        self.draining.discard(engine)
        self.unpin(engine)

    @rule(engine=st.sampled_from(ENGINES), num_queued=st.integers(0, 4), kv_usage=st.sampled_from([0.1, 0.9]))
    def look(self, engine: str, num_queued: int, kv_usage: float) -> None:
        self.router.look(engine, num_queued=num_queued, kv_usage=kv_usage)
        if engine in self.engines:
            self.engines[engine] = Look(num_queued, kv_usage)

    @rule(
        session=st.sampled_from(["", "s", "t", "u", "v", "w"]),
        tokens=st.integers(0, 400),
        priority=st.integers(0, 1),
    )
    def submit(self, session: str, tokens: int, priority: int) -> None:
        request, order = f"r{self.num_requests}", (priority, self.num_requests)
        self.num_requests += 1
        self.router.submit(request, session, tokens, order)
        self.waiting[request] = order, session, tokens

    @rule(group=st.integers(0, 5), tokens=st.integers(0, 400))
    def submit_of_group(self, group: int, tokens: int) -> None:
        request, order = f"r{self.num_requests}", (0, self.num_requests)
        self.num_requests += 1
        session = f"session of {request}"
        self.router.submit(request, session, tokens, order, group=group)
        self.waiting[request] = order, session, tokens
        if takes := sorted(self.engines.keys() - self.draining):
            self.pinned[request] = takes[group % len(takes)]

    @rule()
    def take(self) -> None:
        takes = [name for name in self.engines if name not in self.draining]
        with_room = [name for name in takes if self.has_room(name)]
        loads = {name: self.load(name) for name in takes}
        taken = self.router.take()
        if taken is None:
            # Whatever still waits, waits for the engine of its session, which answers something first.
            if with_room and self.waiting:
                assert all(session for _, session, _ in self.waiting.values())
                assert len(with_room) < len(takes)
                assert all(self.pinned.get(request) not in with_room for request in self.waiting)
                if self.waiting.keys() - self.pinned.keys():
                    assert all(loads[name] or not self.runs_at_once(name) for name in with_room)
            return
        request, engine = taken
        order, session, tokens = self.waiting.pop(request)
        assert engine in with_room
        limit = CONFIG.spill_factor * min(loads.values()) + CONFIG.spill_slack
        is_freest = loads[engine] == min(loads[name] for name in with_room)
        at_once = [loads[name] for name in with_room if self.runs_at_once(name)]
        pinned_to = self.pinned.pop(request, None)
        assert pinned_to in (None, engine)
        assert (
            pinned_to or is_freest or (session and (loads[engine] <= limit or loads[engine] == min(at_once)))
        )
        if not session:
            assert all(order < other for other, at, _ in self.waiting.values() if not at)
        self.outstanding[request] = (engine, tokens)
        self.engines[engine].num_since += 1

    @precondition(lambda self: self.outstanding or self.waiting)
    @rule(data=st.data())
    def answer_or_withdraw(self, data: st.DataObject) -> None:
        request = data.draw(st.sampled_from(sorted([*self.outstanding, *self.waiting])))
        where = self.outstanding[request][0] if request in self.outstanding else None
        assert self.router.engine_of(request) == where
        assert self.router.done(request)
        self.outstanding.pop(request, None)
        self.waiting.pop(request, None)
        assert not self.router.done(request)
        assert self.router.engine_of(request) is None

    @invariant()
    def loads_are_what_is_outstanding(self) -> None:
        assert set(self.router.engines) == self.engines.keys() - self.draining
        for engine in self.engines:
            assert self.router.outstanding_tokens(engine) == self.load(engine) >= 0

    @invariant()
    def an_engine_is_drained_when_nothing_is_outstanding_there_any_more(self) -> None:
        busy = {engine for engine, _ in self.outstanding.values()}
        for engine in ENGINES:
            assert self.router.is_drained(engine) == (engine in self.draining - busy)

    def teardown(self) -> None:
        """When every engine answers what it has, nothing waits for ever."""
        self.add(ENGINES[0])
        while self.waiting:
            num_waiting = len(self.waiting)
            self.take()
            if len(self.waiting) == num_waiting:
                assert self.outstanding, "nothing runs and nothing can"
                self.router.done(next(iter(self.outstanding)))
                del self.outstanding[next(iter(self.outstanding))]


TestRouter = RouterMachine.TestCase


def two_engines(**config: float) -> Router:
    router = Router(RouterConfig(**config))  # type: ignore[arg-type]
    router.add_engine("a")
    router.add_engine("b")
    return router


def submit(router: Router, request: str, *, session: str = "", priority: int = 0) -> None:
    number = int(request.strip("abcdefghijklmnopqrstuvwxyz"))
    router.submit(request, session, 10, (priority, number))


def dispatch(router: Router, request: str, session: str, num_tokens: int) -> str:
    """Submit a request that can go at once; returns its engine."""
    router.submit(request, session, num_tokens, (0, 0))
    taken = router.take()
    assert taken is not None
    assert taken[0] == request
    assert router.take() is None
    return taken[1]


def take_all(router: Router) -> list[tuple[str, str]]:
    taken = []
    while (found := router.take()) is not None:
        taken.append(found)
    return taken


def test_a_session_returns_to_the_engine_that_holds_its_prefix() -> None:
    router = two_engines()
    home = dispatch(router, "r0", "s", 50)
    for i in range(1, 20):
        router.done(f"r{i - 1}")
        dispatch(router, f"other{i}", "", 10)
        assert dispatch(router, f"r{i}", "s", 50) == home


def test_a_session_moves_when_its_engine_has_too_much_more_to_do_and_stays_where_it_went() -> None:
    router = two_engines(spill_factor=2.0, spill_slack=100)
    assert dispatch(router, "r0", "s", 0) == "a"
    dispatch(router, "r1", "s", 100)
    assert dispatch(router, "r2", "s", 1) == "a"
    assert dispatch(router, "r3", "s", 1) == "b"
    router.done("r1")
    assert dispatch(router, "r4", "s", 1) == "b"


def test_a_forgotten_session_goes_to_the_least_loaded_engine() -> None:
    router = two_engines(max_sessions=1)
    assert dispatch(router, "r0", "s", 10) == "a"
    assert dispatch(router, "r1", "t", 1) == "b"
    assert dispatch(router, "r2", "s", 1) == "b"


def test_a_session_whose_engine_is_gone_goes_elsewhere() -> None:
    router = two_engines()
    assert dispatch(router, "r0", "s", 10) == "a"
    assert router.remove_engine("a") == ["r0"]
    assert dispatch(router, "r0", "s", 10) == "b"
    assert router.outstanding_tokens("b") == 10


def test_a_session_does_not_return_to_an_engine_that_restarted_under_its_name() -> None:
    router = two_engines()
    assert dispatch(router, "r0", "s", 10) == "a"
    router.remove_engine("a")
    router.add_engine("a")
    assert dispatch(router, "r0", "s", 10) == "b"


def test_a_session_does_not_return_to_an_engine_that_is_drained() -> None:
    router = two_engines()
    assert dispatch(router, "r0", "s", 10) == "a"
    router.drain_engine("a")
    assert dispatch(router, "r1", "s", 10) == "b"
    assert not router.is_drained("a")
    router.done("r0")
    assert router.is_drained("a")


def test_an_engine_where_enough_wait_gets_no_more_until_it_has_room_again() -> None:
    router = two_engines(max_queued=3)
    router.drain_engine("b")
    for number in range(9):
        submit(router, f"r{number}")
    assert len(take_all(router)) == 9  # nothing is known to wait there
    router.look("a", num_queued=1, kv_usage=0.5)
    for number in range(9, 19):
        submit(router, f"r{number}")
    assert [request for request, _ in take_all(router)] == ["r9", "r10"]
    router.look("a", num_queued=4, kv_usage=0.5)
    assert router.take() is None
    router.look("a", num_queued=2, kv_usage=0.5)
    assert [request for request, _ in take_all(router)] == ["r11"]
    router.look("a", num_queued=0, kv_usage=0.5)
    assert len(take_all(router)) == 7


def test_an_engine_with_a_full_cache_gets_few_requests_at_a_time() -> None:
    router = two_engines(max_kv_usage=0.9, max_queued_when_full=1)
    router.drain_engine("b")
    for number in range(4):
        submit(router, f"r{number}")
    router.look("a", num_queued=0, kv_usage=0.95)
    assert router.take() == ("r0", "a")  # with nothing outstanding there is room whatever the health says
    assert router.take() is None
    router.look("a", num_queued=0, kv_usage=0.95)
    assert [request for request, _ in take_all(router)] == ["r1"]
    router.look("a", num_queued=1, kv_usage=0.95)
    assert router.take() is None
    router.look("a", num_queued=1, kv_usage=0.85)
    assert len(take_all(router)) == 2


def test_an_engine_whose_last_look_is_old_gets_a_request_when_nothing_else_would_tell() -> None:
    router = two_engines(max_queued=1)
    router.drain_engine("b")
    router.look("a", num_queued=50, kv_usage=1.0)
    for number in range(3):
        submit(router, f"r{number}")
    assert take_all(router) == [("r0", "a")]
    router.done("r0")
    assert take_all(router) == [("r1", "a")]


def queues_at_b(**config: float) -> Router:
    """The session `s` has its prefix at `a`, which is full; `b` has room, and something waits there too."""
    router = two_engines(max_queued=9, max_kv_usage=0.9, max_queued_when_full=1, **config)
    assert dispatch(router, "r0", "s", 10) == "a"
    router.look("a", num_queued=1, kv_usage=0.95)
    router.look("b", num_queued=1, kv_usage=0.5)
    return router


def test_what_waits_for_its_full_engine_holds_up_nobody_who_can_run_elsewhere() -> None:
    router = queues_at_b()
    submit(router, "r1", session="s")
    submit(router, "r2")
    submit(router, "r3", session="t")
    assert take_all(router) == [("r2", "b"), ("r3", "b")]
    router.look("a", num_queued=0, kv_usage=0.5)
    assert take_all(router) == [("r1", "a")]


def test_a_session_leaves_its_full_engine_for_a_less_loaded_one_that_runs_it_at_once() -> None:
    router = queues_at_b()
    for number in range(1, 5):
        submit(router, f"r{number}", session="s")
    assert router.take() is None
    router.look("b", num_queued=0, kv_usage=0.5)
    # Until as much runs at `b` as runs at `a` and waits for it before the next.
    assert take_all(router) == [("r1", "b"), ("r2", "b")]


def test_a_session_leaves_its_full_engine_when_too_much_waits_for_it() -> None:
    router = queues_at_b(spill_factor=1.0, spill_slack=25)
    for number in range(1, 5):
        submit(router, f"r{number}", session="s")
    # 10 tokens run at `a` and 30 wait beside r1: more than 25 beyond the nothing at `b`, until r1 runs there.
    assert take_all(router) == [("r1", "b")]


def test_what_waits_goes_by_priority_and_then_by_arrival_at_each_engine() -> None:
    router = two_engines(max_queued=9, max_queued_when_full=1)
    for number, session in enumerate("st"):
        dispatch(router, f"r{number}", session, 10)
    for engine in "ab":
        router.look(engine, num_queued=1, kv_usage=0.95)
    for number in range(2, 10):
        submit(router, f"r{number}", session="st"[number % 2], priority=int(number < 6))
    assert router.take() is None
    router.look("b", num_queued=1, kv_usage=0.5)
    assert take_all(router) == [("r7", "b"), ("r9", "b"), ("r3", "b"), ("r5", "b")]
    router.look("a", num_queued=1, kv_usage=0.5)
    assert take_all(router) == [("r6", "a"), ("r8", "a"), ("r2", "a"), ("r4", "a")]


@pytest.mark.parametrize("leave", [Router.drain_engine, Router.remove_engine])
def test_what_waits_for_an_engine_that_leaves_goes_elsewhere_in_its_order(leave: Any) -> None:
    router = queues_at_b()
    for number in range(1, 4):
        submit(router, f"r{number}", session="s")
    assert router.take() is None
    leave(router, "a")
    assert take_all(router) == [("r1", "b"), ("r2", "b"), ("r3", "b")]


def test_a_group_has_one_engine_that_every_router_knows_and_moves_when_that_one_goes() -> None:
    routers = [two_engines(max_queued=1) for _ in range(2)]
    routers[1].submit("r99", "", 10_000, (0, 99))  # the second one has other work
    assert routers[1].take() is not None
    for router in routers:
        for number in range(4):
            router.submit(f"r{number}", f"s{number}", 10, (0, number), group=7)
        assert {engine for _, engine in take_all(router)} == {"b"}
        router.look("b", num_queued=5, kv_usage=0.5)
        router.submit("r4", "s4", 10, (0, 4), group=7)
        assert router.take() is None  # the other one is idle, and has not the prompt
        router.drain_engine("b")
        assert router.take() == ("r4", "a")
