from __future__ import annotations

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from envsdk.inference.router import NoEngineLeft, Router, RouterConfig

ENGINES = ["a", "b", "c"]
CONFIG = RouterConfig(spill_factor=1.5, spill_slack=100, max_sessions=4)


class RouterMachine(RuleBasedStateMachine):
    """A router beside a plain list of what is outstanding where."""

    def __init__(self) -> None:
        super().__init__()
        self.router = Router(CONFIG)
        self.engines: set[str] = set()
        self.draining: set[str] = set()
        self.outstanding: dict[str, tuple[str, int]] = {}
        self.num_requests = 0

    def load(self, engine: str) -> int:
        return sum(tokens for where, tokens in self.outstanding.values() if where == engine)

    @rule(engine=st.sampled_from(ENGINES))
    def add(self, engine: str) -> None:
        self.router.add_engine(engine)
        self.engines.add(engine)
        self.draining.discard(engine)

    @precondition(lambda self: self.engines)
    @rule(data=st.data())
    def drain(self, data: st.DataObject) -> None:
        engine = data.draw(st.sampled_from(sorted(self.engines)))
        self.router.drain_engine(engine)
        self.engines.discard(engine)
        self.draining.add(engine)

    @rule(engine=st.sampled_from(ENGINES))
    def remove(self, engine: str) -> None:
        lost = [request for request, (where, _) in self.outstanding.items() if where == engine]
        assert self.router.remove_engine(engine) == lost
        for request in lost:
            del self.outstanding[request]
        self.engines.discard(engine)
        self.draining.discard(engine)

    @precondition(lambda self: self.engines)
    @rule(session=st.sampled_from(["", "s", "t", "u", "v", "w"]), tokens=st.integers(0, 400))
    def dispatch(self, session: str, tokens: int) -> None:
        request = f"r{self.num_requests}"
        self.num_requests += 1
        least = min(map(self.load, self.engines))
        before = {engine: self.load(engine) for engine in self.engines}
        engine = self.router.dispatch(request, session, tokens)
        assert engine in self.engines
        assert before[engine] <= CONFIG.spill_factor * least + CONFIG.spill_slack
        if not session:
            assert before[engine] == least
        self.outstanding[request] = (engine, tokens)

    @precondition(lambda self: not self.engines)
    @rule()
    def dispatch_to_nobody(self) -> None:
        with pytest.raises(NoEngineLeft):
            self.router.dispatch("nobody", "s", 1)

    @precondition(lambda self: self.outstanding)
    @rule(data=st.data())
    def answer(self, data: st.DataObject) -> None:
        request = data.draw(st.sampled_from(sorted(self.outstanding)))
        assert self.router.engine_of(request) == self.outstanding[request][0]
        assert self.router.done(request)
        del self.outstanding[request]
        assert not self.router.done(request)
        assert self.router.engine_of(request) is None

    @invariant()
    def loads_are_what_is_outstanding(self) -> None:
        assert set(self.router.engines) == self.engines
        for engine in self.engines | self.draining:
            assert self.router.outstanding_tokens(engine) == self.load(engine) >= 0

    @invariant()
    def an_engine_is_drained_when_nothing_is_outstanding_there_any_more(self) -> None:
        busy = {engine for engine, _ in self.outstanding.values()}
        for engine in ENGINES:
            assert self.router.is_drained(engine) == (engine in self.draining - busy)


TestRouter = RouterMachine.TestCase


def two_engines(**config: float) -> Router:
    router = Router(RouterConfig(**config))  # type: ignore[arg-type]
    router.add_engine("a")
    router.add_engine("b")
    return router


def test_a_session_returns_to_the_engine_that_holds_its_prefix() -> None:
    router = two_engines()
    home = router.dispatch("r0", "s", 50)
    for i in range(1, 20):
        router.done(f"r{i - 1}")
        router.dispatch(f"other{i}", "", 10)
        assert router.dispatch(f"r{i}", "s", 50) == home


def test_a_session_moves_when_its_engine_has_too_much_more_to_do_and_stays_where_it_went() -> None:
    router = two_engines(spill_factor=2.0, spill_slack=100)
    assert router.dispatch("r0", "s", 0) == "a"
    router.dispatch("r1", "s", 100)
    assert router.dispatch("r2", "s", 1) == "a"
    assert router.dispatch("r3", "s", 1) == "b"
    router.done("r1")
    assert router.dispatch("r4", "s", 1) == "b"


def test_a_forgotten_session_goes_to_the_least_loaded_engine() -> None:
    router = two_engines(max_sessions=1)
    assert router.dispatch("r0", "s", 10) == "a"
    assert router.dispatch("r1", "t", 1) == "b"
    assert router.dispatch("r2", "s", 1) == "b"


def test_a_session_whose_engine_is_gone_goes_elsewhere() -> None:
    router = two_engines()
    assert router.dispatch("r0", "s", 10) == "a"
    assert router.remove_engine("a") == ["r0"]
    assert router.dispatch("r0", "s", 10) == "b"
    assert router.outstanding_tokens("b") == 10


def test_a_session_does_not_return_to_an_engine_that_restarted_under_its_name() -> None:
    router = two_engines()
    assert router.dispatch("r0", "s", 10) == "a"
    router.remove_engine("a")
    router.add_engine("a")
    assert router.dispatch("r0", "s", 10) == "b"


def test_a_session_does_not_return_to_an_engine_that_is_drained() -> None:
    router = two_engines()
    assert router.dispatch("r0", "s", 10) == "a"
    router.drain_engine("a")
    assert router.dispatch("r1", "s", 10) == "b"
    assert not router.is_drained("a")
    router.done("r0")
    assert router.is_drained("a")
