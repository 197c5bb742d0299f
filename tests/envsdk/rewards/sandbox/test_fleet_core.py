"""The core of a fleet: single rules, any events in any order, and bad hosts in virtual time."""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from envsdk.rewards.sandbox.fleet.core import FleetCore
from envsdk.rewards.sandbox.fleet.parts import (
    Command,
    End,
    Lease,
    Lost,
    News,
    Refuse,
    Release,
    Start,
)
from envsdk.rewards.sandbox.settings import FleetLimits, HostSettings
from tests.by_day import examples


def fleet(*names: str, places: int = 4, starts_at_once: int = 4, **config: Any) -> FleetCore:
    hosts = [
        HostSettings(name=name, places=places, starts_at_once=starts_at_once) for name in names or ("a", "b")
    ]
    return FleetCore(hosts, FleetLimits(**config))


def of_type(commands: Iterable[Command], kind: type) -> list[Any]:
    return [command for command in commands if isinstance(command, kind)]


def lease(core: FleetCore, request: int, kind: str = "k") -> int:
    (start,) = of_type(core.request(request, kind), Start)
    (leased,) = of_type(core.started(start.sandbox), Lease)
    sandbox: int = leased.sandbox
    return sandbox


def wait(core: FleetCore, seconds: float, *, hears: Iterable[str] = ("a", "b")) -> list[Command]:
    """So much time, in steps that count in full, while these hosts answer."""
    commands: list[Command] = []
    for _ in range(math.ceil(seconds)):
        for name in hears:
            core.heard(name)
        commands += core.tick(min(1.0, seconds))
        seconds -= 1
    return commands


def test_a_request_gets_the_sandbox_that_is_started_for_it_and_it_is_closed_when_given_back() -> None:
    core = fleet("a")
    assert core.request(0, "k") == [Start(0, "a", "k")]
    assert core.started(0) == [Lease(0, 0, was_warm=False)]
    assert core.given_back(0) == [End(0)]
    assert core.given_back(0) == []
    assert not core.is_idle
    assert core.ended(0) == []
    assert core.is_idle


def test_starts_go_where_most_places_are_free() -> None:
    core = FleetCore([HostSettings(name="small", places=2), HostSettings(name="large", places=4)])
    hosts = [of_type(core.request(number, "k"), Start)[0].host for number in range(6)]
    assert hosts == ["large", "large", "small", "large", "small", "large"]
    assert of_type(core.request(6, "k"), Start) == []


def test_a_start_that_fails_is_made_up_for_on_another_host() -> None:
    core = fleet()
    (first,) = of_type(core.request(0, "k"), Start)
    (second,) = of_type(core.failed(first.sandbox, "no disk"), Start)
    assert {first.host, second.host} == {"a", "b"}
    assert of_type(core.started(second.sandbox), Lease)


def test_a_start_that_takes_too_long_is_given_up_and_its_late_success_is_nobodys() -> None:
    core = fleet(attempt_timeout_s=10.0)
    (first,) = of_type(core.request(0, "k"), Start)
    commands = wait(core, 10)
    assert of_type(commands, End) == [End(first.sandbox)]
    (second,) = of_type(commands, Start)
    assert second.host != first.host
    assert core.started(first.sandbox) == []
    assert core.started(second.sandbox) == [Lease(0, second.sandbox, was_warm=False)]


def test_a_request_that_no_host_answers_is_refused_when_its_budget_is_over_and_says_why() -> None:
    core = fleet(start_timeout_s=20.0)
    (first,) = of_type(core.request(0, "k"), Start)
    core.failed(first.sandbox, "no disk")
    assert of_type(wait(core, 19), Refuse) == []
    (refused,) = of_type(wait(core, 1), Refuse)
    assert refused.request == 0
    assert "a: no disk; b: 1 of 4 places taken, 1 starting" in refused.why


def test_a_request_that_waits_long_says_so_once_with_what_it_waits_for() -> None:
    core = fleet("a", places=1)
    held = lease(core, 0)
    for request in (1, 2):
        core.request(request, "k")
    said = of_type(wait(core, 60), News)
    assert [news.text for news in said] == [
        "a sandbox waits for a place, for at most 110 s more (a: 1 of 1 places taken, 0 starting)"
    ]
    core.given_back(held)
    (start,) = of_type(core.ended(held), Start)
    held = of_type(core.started(start.sandbox), Lease)[0].sandbox
    assert of_type(wait(core, 30), News) == []


def test_a_host_that_is_full_is_asked_again_later_and_has_not_failed() -> None:
    core = fleet("a", max_failures=1)
    core.request(0, "k")
    assert core.full(0, "64 sandboxes, and no more") == []
    assert of_type(wait(core, 1), Start) == []
    assert of_type(wait(core, 1), Start)
    core = fleet("a", "b", max_failures=1)
    core.request(0, "k")
    (elsewhere,) = of_type(core.full(0, "64 sandboxes, and no more"), Start)
    assert elsewhere.host == "b"


def test_an_image_that_no_host_takes_is_refused_at_once_and_is_no_hosts_fault() -> None:
    core = fleet()
    (first,) = of_type(core.request(0, "k"), Start)
    (second,) = of_type(core.unfit(first.sandbox, "no containers here"), Start)
    (refused,) = of_type(core.unfit(second.sandbox, "no containers here"), Refuse)
    assert refused == Refuse(0, "no containers here", is_unfit=True)
    assert of_type(core.request(1, "other"), Start)[0].host == "a"


def test_a_host_that_fails_again_and_again_is_left_out_and_asked_again_after_all_others() -> None:
    core = fleet("a", "b", max_failures=2, first_backoff_s=8.0, places=2)
    core.request(0, "k")
    assert of_type(core.failed(0, "broken"), News) == []
    core.full(1, "b has no place")
    assert core.failed(2, "broken") == [News("sandbox host a is left out for 8 s: broken")]
    (elsewhere,) = of_type(wait(core, 7), Start)
    assert elsewhere.host == "b"
    assert of_type(core.started(elsewhere.sandbox), Lease)
    assert of_type(core.request(1, "k"), Start)[0].host == "b"
    assert of_type(core.request(2, "k"), Start) == [], "b has two places"
    (again,) = of_type(wait(core, 1), Start)
    assert again.host == "a"
    assert of_type(core.request(3, "k"), Start) == [], "one at a time"
    assert core.failed(again.sandbox, "broken") == [News("sandbox host a is left out for 16 s: broken")]
    (again,) = of_type(wait(core, 16), Start)
    commands = core.started(again.sandbox)
    assert News("sandbox host a starts sandboxes again") in commands
    assert of_type(commands, Lease) == [Lease(1, again.sandbox, was_warm=False)]
    assert of_type(commands, Start), "as many as it has places"


def test_a_host_that_was_left_out_is_asked_after_others_however_many_places_it_has() -> None:
    core = fleet("a", "b", max_failures=1, first_backoff_s=8.0)
    core.request(0, "k")
    (instead,) = of_type(core.failed(0, "broken"), Start)
    core.started(instead.sandbox)
    wait(core, 9)
    starts = [start.host for number in range(1, 5) for start in of_type(core.request(number, "k"), Start)]
    assert starts == ["b", "b", "b", "a"]


def test_a_host_that_starts_sandboxes_in_which_nothing_works_is_left_out_too() -> None:
    core = fleet("a", max_failures=3)
    for request in range(3):
        commands = core.lost(lease(core, request), "commands do not run")
    assert of_type(commands, News)


def test_failures_count_in_a_row_and_older_sandboxes_do_not_end_the_row() -> None:
    core = fleet("a", places=9, max_failures=2)
    old = lease(core, 0)
    core.lost(lease(core, 1), "gone")
    core.worked(old)
    assert of_type(core.lost(lease(core, 2), "gone"), News)

    core = fleet("a", places=9, max_failures=2)
    core.lost(lease(core, 0), "gone")
    core.worked(lease(core, 1))
    assert not of_type(core.lost(lease(core, 2), "gone"), News)


def test_a_silent_hosts_leases_are_lost_once_and_given_back_as_any_other() -> None:
    core = fleet(silence_s=10.0, demand_s=1e6)
    held = [lease(core, request) for request in range(4)]
    lost = of_type(wait(core, 30, hears=["b"]), Lost)
    assert [each.sandbox for each in lost] == held[::2]
    assert lost[0].why == "host a: it did not answer for 10 s"
    assert core.lost(held[0], "a command failed") == []
    assert core.given_back(held[0]) == [End(held[0])]


def test_a_pause_of_the_shell_is_not_taken_for_the_hosts_silence() -> None:
    core = fleet(silence_s=10.0)
    lease(core, 0)
    assert core.tick(3600.0) == []


def test_the_warm_pool_holds_what_is_asked_for_while_a_sandbox_starts() -> None:
    core = fleet("a", places=40, starts_at_once=40, silence_s=1e6, demand_s=10.0)
    requests = itertools.count()
    due: list[tuple[int, int]] = []
    for second in range(60):
        for _ in range(2):
            commands = core.request(next(requests), "k")
            due += [(second + 4, start.sandbox) for start in of_type(commands, Start)]
            for leased in of_type(commands, Lease):
                core.given_back(leased.sandbox)
                core.ended(leased.sandbox)
        commands = core.tick(1.0)
        for _, sandbox in [each for each in due if each[0] == second]:
            commands += core.started(sandbox)
        for leased in of_type(commands, Lease):
            core.given_back(leased.sandbox)
            core.ended(leased.sandbox)
        due += [(second + 4, start.sandbox) for start in of_type(commands, Start)]
    assert 6 <= core.warm["k"][1] <= 9, "two a second, each starting for four"
    assert of_type(core.request(next(requests), "k"), Lease)
    wait(core, 60, hears=["a"])
    assert core.warm["k"] == (0, 0)


def test_what_is_asked_for_once_is_not_kept_warm() -> None:
    core = fleet("a")
    (start,) = of_type(core.request(0, "k"), Start)
    wait(core, 20)
    assert of_type(core.started(start.sandbox), Lease)
    assert core.warm["k"] == (0, 0)


def test_a_withdrawn_requests_sandbox_is_closed_or_serves_another() -> None:
    core = fleet("a")
    core.request(0, "k")
    assert core.withdraw(0) == []
    assert core.started(0) == [End(0)]
    core.request(1, "k")
    core.withdraw(1)
    assert core.request(2, "k") == []
    assert core.started(1) == [Lease(2, 1, was_warm=False)]


def test_a_drained_host_keeps_its_leases_and_is_let_go_after_the_last() -> None:
    core = fleet()
    first, second = lease(core, 0), lease(core, 1)
    assert core.drain("a") == []
    assert of_type(core.request(2, "k"), Start)[0].host == "b"
    assert core.given_back(first) == [End(first)]
    assert core.ended(first) == [Release("a")]
    assert core.given_back(second) == [End(second)]


def test_a_copy_counts_and_is_held_as_any_other_sandbox() -> None:
    core = fleet("a", places=2)
    parent = lease(core, 0)
    copy = core.adopted(parent)
    assert copy is not None
    assert core.request(1, "k") == []
    assert core.given_back(copy) == [End(copy)]
    assert core.adopted(copy) is None
    assert of_type(core.ended(copy), Start)


def test_a_start_that_was_given_up_keeps_its_host_busy_until_it_has_ended() -> None:
    core = fleet("a", starts_at_once=1, attempt_timeout_s=5.0)
    core.request(0, "k")
    assert of_type(wait(core, 5), Start) == []
    assert of_type(core.ended(0), Start)


def test_a_warm_sandbox_makes_room_for_a_request_of_another_kind() -> None:
    core = fleet("a", places=2, starts_at_once=2, demand_s=10.0)
    core.request(0, "k"), core.request(1, "k")
    wait(core, 10)
    for request in range(2, 22):
        core.request(request, "k")
    for request in range(2, 22):
        core.withdraw(request)
    core.started(0), core.started(1)
    core.given_back(0)
    (start,) = of_type(core.ended(0), Start)
    core.started(start.sandbox)
    assert core.warm["k"][0] == 1
    assert core.request(22, "other") == [End(start.sandbox)]
    assert core.request(23, "other") == []
    assert of_type(core.ended(start.sandbox), Start)[0].kind == "other"


class AnyEvents(RuleBasedStateMachine):
    """A shell that does what it is told, some day; hosts of which nothing can be expected."""

    @initialize(
        places=st.lists(st.integers(1, 4), min_size=1, max_size=3),
        starts_at_once=st.integers(1, 4),
        per_host=st.integers(1, 3),
        max_warm=st.integers(0, 3),
    )
    def begin(self, places: list[int], starts_at_once: int, per_host: int, max_warm: int) -> None:
        self.places = {f"h{number}": count for number, count in enumerate(places)}
        self.config = FleetLimits(
            starts_at_once=starts_at_once,
            max_warm=max_warm,
            demand_s=8.0,
            warm_s=20.0,
            start_timeout_s=12.0,
            attempt_timeout_s=5.0,
            silence_s=8.0,
            first_backoff_s=2.0,
            max_backoff_s=10.0,
        )
        self.per_host = per_host
        self.core = FleetCore(
            [
                HostSettings(name=name, places=count, starts_at_once=per_host)
                for name, count in self.places.items()
            ],
            self.config,
        )
        self.now_s = 0.0
        self.requests = itertools.count()
        self.open: dict[int, float] = {}
        self.host_of: dict[int, str] = {}
        """Every sandbox that the shell has not finished with."""
        self.starting: set[int] = set()
        self.ending: set[int] = set()
        self.held: set[int] = set()
        self.lost: set[int] = set()
        self.ever_leased: set[int] = set()
        self.released: set[str] = set()
        self.is_closed = False

    def carry_out(self, commands: list[Command]) -> None:
        for command in commands:
            match command:
                case Start(sandbox, host, _):
                    assert sandbox not in self.host_of
                    assert host not in self.released
                    self.host_of[sandbox] = host
                    self.starting.add(sandbox)
                    on_host = [one for one, where in self.host_of.items() if where == host]
                    assert len(on_host) <= self.places[host]
                    assert sum(one in self.starting for one in on_host) <= self.per_host
                    assert len(self.starting - self.ending) <= self.config.starts_at_once
                case End(sandbox):
                    assert sandbox in self.host_of
                    assert sandbox not in self.ending
                    assert sandbox not in self.held
                    self.ending.add(sandbox)
                case Lease(request, sandbox):
                    del self.open[request]
                    assert sandbox not in self.ever_leased
                    assert sandbox not in self.starting | self.ending
                    self.ever_leased.add(sandbox)
                    self.held.add(sandbox)
                case Refuse(request):
                    del self.open[request]
                case Lost(sandbox):
                    assert sandbox in self.held
                    assert sandbox not in self.lost
                    self.lost.add(sandbox)
                case Release(host):
                    assert host not in self.host_of.values()
                    self.released.add(host)

    @rule(kind=st.sampled_from("xy"))
    def request(self, kind: str) -> None:
        number = next(self.requests)
        self.open[number] = self.now_s + self.config.start_timeout_s
        self.carry_out(self.core.request(number, kind))

    @precondition(lambda self: self.open)
    @rule(data=st.data())
    def withdraw(self, data: st.DataObject) -> None:
        number = data.draw(st.sampled_from(sorted(self.open)))
        del self.open[number]
        self.carry_out(self.core.withdraw(number))

    @precondition(lambda self: self.starting)
    @rule(data=st.data(), how=st.sampled_from(["started", "started", "started", "failed", "full", "unfit"]))
    def a_start_ends(self, data: st.DataObject, how: str) -> None:
        sandbox = data.draw(st.sampled_from(sorted(self.starting)))
        self.starting.remove(sandbox)
        if how == "started":
            self.carry_out(self.core.started(sandbox))
            return
        if sandbox not in self.ending:
            del self.host_of[sandbox]
            self.carry_out(getattr(self.core, how)(sandbox, "x"))

    @precondition(lambda self: self.ending - self.starting)
    @rule(data=st.data())
    def an_end_ends(self, data: st.DataObject) -> None:
        sandbox = data.draw(st.sampled_from(sorted(self.ending - self.starting)))
        self.ending.remove(sandbox)
        del self.host_of[sandbox]
        self.carry_out(self.core.ended(sandbox))

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def give_back(self, data: st.DataObject) -> None:
        sandbox = data.draw(st.sampled_from(sorted(self.held)))
        self.held.remove(sandbox)
        self.lost.discard(sandbox)
        self.carry_out(self.core.given_back(sandbox))

    @precondition(lambda self: self.host_of)
    @rule(data=st.data(), how=st.sampled_from(["worked", "lost"]))
    def used(self, data: st.DataObject, how: str) -> None:
        sandbox = data.draw(st.sampled_from(sorted(self.host_of)))
        if how == "lost":
            self.carry_out(self.core.lost(sandbox, "broken"))
            assert sandbox not in self.held or sandbox in self.lost or self.is_closed
        else:
            self.core.worked(sandbox)

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def copied(self, data: st.DataObject) -> None:
        parent = data.draw(st.sampled_from(sorted(self.held)))
        copy = self.core.adopted(parent)
        assert (copy is None) == (parent in self.lost or self.is_closed)
        if copy is not None:
            self.host_of[copy] = self.host_of[parent]
            self.places[self.host_of[parent]] += 1  # copies may be more than there are places
            self.held.add(copy)
            self.ever_leased.add(copy)

    @rule(data=st.data())
    def hear(self, data: st.DataObject) -> None:
        self.core.heard(data.draw(st.sampled_from(sorted(self.places))))

    @precondition(lambda self: len(self.released) < len(self.places))
    @rule(data=st.data())
    def drain(self, data: st.DataObject) -> None:
        self.carry_out(self.core.drain(data.draw(st.sampled_from(sorted(set(self.places) - self.released)))))

    @rule(elapsed_s=st.sampled_from([0.5, 1.0, 2.0]))
    def tick(self, elapsed_s: float) -> None:
        self.now_s += elapsed_s
        self.carry_out(self.core.tick(elapsed_s))

    @rule()
    def wait_for_silence(self) -> None:
        for _ in range(5):
            self.tick(2.0)
        assert self.held <= self.lost, "a dead host's leases are lost"

    @precondition(lambda self: not self.is_closed)
    @rule()
    def close(self) -> None:
        self.held.clear()
        self.is_closed = True
        self.carry_out(self.core.close())

    @invariant()
    def everybody_is_answered_in_time(self) -> None:
        assert all(until_s > self.now_s for until_s in self.open.values())

    @invariant()
    def the_warm_pool_is_no_larger_than_its_target(self) -> None:
        if not self.is_closed:
            assert all(have <= target for have, target in self.core.warm.values())
            assert sum(target for _, target in self.core.warm.values()) <= self.config.max_warm

    def teardown(self) -> None:
        if not hasattr(self, "core"):
            return
        if not self.is_closed:
            self.close()
        assert not self.open
        for sandbox in sorted(self.ending):
            self.core.ended(sandbox)
            del self.host_of[sandbox]
        assert not self.host_of, "every sandbox has ended"
        assert self.core.is_idle


TestAnyEvents = AnyEvents.TestCase
TestAnyEvents.settings = settings(max_examples=examples(50), stateful_step_count=60, deadline=None)


@dataclass
class Behavior:
    """How a host starts sandboxes: after so many seconds, or never; with success, or without."""

    start_s: float
    works: bool = True


@dataclass
class Simulation:
    """Hosts in virtual time. Leases are held for so many seconds."""

    behaviors: dict[str, Behavior]
    hold_s: float
    config: FleetLimits
    now_s: float = 0.0
    answers: dict[int, tuple[float, Command]] = field(default_factory=dict)
    starts: list[tuple[float, str]] = field(default_factory=list)
    _due: list[tuple[float, int, Callable[[], list[Command]]]] = field(default_factory=list)
    _order: Any = field(default_factory=itertools.count)

    def __post_init__(self) -> None:
        self.core = FleetCore([HostSettings(name=name, places=8) for name in self.behaviors], self.config)

    def run(self, arrivals: list[float], until_s: float) -> None:
        for number, at_s in enumerate(sorted(arrivals)):
            self._at(at_s, lambda number=number: self.core.request(number, "k"))  # type: ignore[misc]
        for step in range(math.ceil(until_s / 0.5)):
            self._at(0.5 * step, self._tick)
        while self._due:
            self.now_s, _, event = heapq.heappop(self._due)
            for command in event():
                self._carry_out(command)

    def _tick(self) -> list[Command]:
        for name, behavior in self.behaviors.items():
            if behavior.works:
                self.core.heard(name)
        return self.core.tick(0.5)

    def _at(self, at_s: float, event: Callable[[], list[Command]]) -> None:
        heapq.heappush(self._due, (at_s, next(self._order), event))

    def _carry_out(self, command: Command) -> None:
        match command:
            case Start(sandbox, host, _):
                behavior = self.behaviors[host]
                self.starts.append((self.now_s, host))
                if behavior.start_s < math.inf:
                    ended = self.core.started if behavior.works else lambda one: self.core.failed(one, "bad")
                    self._at(self.now_s + behavior.start_s, lambda: ended(sandbox))
            case Lease(request, sandbox):
                self.answers[request] = (self.now_s, command)
                self._at(self.now_s + self.hold_s, lambda: self.core.given_back(sandbox))
            case Refuse(request):
                self.answers[request] = (self.now_s, command)
            case End(sandbox):
                self._at(self.now_s, lambda: self.core.ended(sandbox))


good = st.builds(Behavior, st.floats(0.01, 3.0))
bad = st.one_of(
    st.builds(Behavior, st.just(math.inf)), st.builds(Behavior, st.floats(0.01, 1.0), st.just(False))
)


@given(
    hosts=st.tuples(good, st.lists(bad, max_size=3), st.integers(0, 3)),
    arrivals=st.lists(st.floats(0.0, 200.0), min_size=1, max_size=30),
)
@settings(max_examples=60, deadline=None)
def test_with_one_good_host_every_request_gets_its_sandbox_whatever_the_others_do(
    hosts: tuple[Behavior, list[Behavior], int], arrivals: list[float]
) -> None:
    one, others, place = hosts
    behaviors = [*others[:place], one, *others[place:]]
    config = FleetLimits(attempt_timeout_s=10.0)
    simulation = Simulation(
        {f"h{number}": each for number, each in enumerate(behaviors)}, hold_s=1.0, config=config
    )
    simulation.run(arrivals, until_s=1000.0)
    assert all(isinstance(answer, Lease) for _, answer in simulation.answers.values())
    assert len(simulation.answers) == len(arrivals)
    assert simulation.core.is_idle


@pytest.mark.parametrize("behavior", [Behavior(math.inf), Behavior(0.1, works=False)], ids=["hangs", "fails"])
def test_a_bad_host_is_asked_ever_less_often(behavior: Behavior) -> None:
    simulation = Simulation(
        {"good": Behavior(0.5), "bad": behavior}, hold_s=0.5, config=FleetLimits(attempt_timeout_s=5.0)
    )
    simulation.run([0.25 * number for number in range(4000)], until_s=1200.0)
    assert len(simulation.answers) == 4000
    assert all(isinstance(answer, Lease) for _, answer in simulation.answers.values())
    tries = [at_s for at_s, host in simulation.starts if host == "bad"]
    assert len(tries) <= 20
    assert len([at_s for at_s in tries if at_s > 300.0]) <= 3
    waits = [answered_s - 0.25 * number for number, (answered_s, _) in simulation.answers.items()]
    assert sum(wait_s > 1.5 for wait_s in waits) <= 12, "those that met the bad host before it was known"
