"""Which workers play: a pool under random loads and deaths, and under loads that stay as they are."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from envsdk.managers.worker_pool import (
    EndWorker,
    Life,
    RetireWorker,
    StartWorker,
    WorkerCommand,
    WorkerDemandConfig,
    WorkerLoad,
    WorkerPool,
    WorkerPoolConfig,
)
from tests.by_day import examples

SLOTS = 4


def pool_config(fewest: int, most: int, begin: int) -> WorkerPoolConfig:
    demand = WorkerDemandConfig(slots_per_worker=SLOTS, grow_s=10, idle_s=60)
    return WorkerPoolConfig(min_workers=fewest, max_workers=most, num_workers=begin, demand=demand)


def new_pool(fewest: int, most: int, begin: int) -> WorkerPool:
    pool = WorkerPool([f"w-{index}" for index in range(most)], pool_config(fewest, most, begin))
    check_in(pool, pool.begin())
    return pool


def check_in(pool: WorkerPool, commands: Iterable[WorkerCommand]) -> None:
    for command in commands:
        if isinstance(command, StartWorker):
            pool.checked_in(command.life.name)


def load(pool: WorkerPool, episodes: int, *, is_awaited: bool = True) -> WorkerLoad:
    """So many episodes want to be played."""
    num_workers = len(pool.names)
    playing = min(episodes, num_workers * SLOTS)
    return WorkerLoad(
        num_workers=num_workers,
        num_waiting=episodes - playing,
        num_playing=playing,
        is_awaited=is_awaited,
    )


def test_a_queue_starts_workers_on_the_first_empty_seats() -> None:
    pool = new_pool(1, 4, 1)
    assert pool.look(load(pool, 20), 10.0) == [StartWorker(Life("w-1", 0))]
    assert pool.look(load(pool, 20), 60.0) == [], "one that starts is waited for"
    pool.checked_in("w-1")
    commands = pool.look(load(pool, 20), 10.0)
    assert commands == [StartWorker(Life("w-2", 0)), StartWorker(Life("w-3", 0))]
    assert (pool.num_added, pool.num_retired) == (3, 0)


def test_the_last_worker_is_retired_and_ended_when_it_plays_nothing() -> None:
    pool = new_pool(1, 3, 3)
    assert pool.look(load(pool, 5), 60.0) == [RetireWorker("w-2")]
    assert (pool.names, pool.is_leaving("w-2")) == (["w-0", "w-1"], True)
    assert pool.emptied("w-1") == []
    assert pool.emptied("w-2") == [EndWorker("w-2")]
    assert pool.emptied("w-2") == []


def test_a_seat_that_is_taken_again_has_a_worker_of_another_name() -> None:
    pool = new_pool(1, 2, 2)
    pool.look(load(pool, 0), 60.0)
    assert pool.look(load(pool, 9), 10.0) == [StartWorker(Life("w-1", 1))]
    assert pool.names == ["w-0", "w-1.1"]


def test_a_worker_that_must_leave_is_replaced_at_once() -> None:
    pool = new_pool(2, 2, 2)
    assert pool.leave(["w-0", "gone"]) == [RetireWorker("w-0"), StartWorker(Life("w-0", 1))]
    assert pool.names == ["w-0.1", "w-1"]
    assert not pool.is_complete
    assert pool.leave(["w-0"]) == []


@pytest.mark.parametrize("leaves", [True, False])
def test_only_a_worker_that_stays_is_started_again_when_it_dies(leaves: bool) -> None:
    pool = new_pool(2, 2, 2)
    if leaves:
        pool.leave(["w-1"])
    assert pool.died("w-1") is not leaves
    assert pool.emptied("w-1") == []


@settings(deadline=None, derandomize=True, max_examples=60)
@given(
    st.integers(1, 4),
    st.integers(0, 6),
    st.integers(0, 6),
    st.lists(st.integers(0, 60), min_size=1, max_size=4),
    st.sampled_from([2.0, 7.0]),
)
def test_each_load_that_stays_is_followed_in_one_direction_and_then_left_alone(
    fewest: int, more: int, begin: int, loads: list[int], tick_s: float
) -> None:
    most = fewest + more
    pool = new_pool(fewest, most, min(fewest + begin, most))
    for episodes in loads:
        numbers = [len(pool.names)]
        for _ in range(int(1200 / tick_s)):
            for command in pool.look(load(pool, episodes), tick_s):
                check_in(pool, [command])
                if isinstance(command, RetireWorker):
                    pool.emptied(command.name)
            numbers.append(len(pool.names))
        rising, falling = sorted(numbers), sorted(numbers, reverse=True)
        assert numbers in (rising, falling), "it went up and down under the same load"
        assert numbers[-1] == numbers[len(numbers) * 3 // 4], "it found no rest"
        assert min(most * SLOTS, episodes) <= numbers[-1] * SLOTS, "episodes wait, and there is room for more"
        spare = numbers[-1] - 1 >= fewest and episodes <= 0.8 * SLOTS * (numbers[-1] - 1)
        assert not spare, "a worker is kept for nothing"


class PoolMachine(RuleBasedStateMachine):
    """Loads, deaths, drained nodes and episodes that end, in any order."""

    @initialize(fewest=st.integers(1, 3), more=st.integers(0, 3), begin=st.integers(0, 3))
    def begin(self, fewest: int, more: int, begin: int) -> None:
        self.fewest, self.most = fewest, fewest + more
        seats = [f"w-{index}" for index in range(self.most)]
        self.pool = WorkerPool(seats, pool_config(fewest, self.most, min(fewest + begin, self.most)))
        self.starting: set[str] = set()
        self.playing: dict[str, int] = {}
        """Episodes of each worker that has checked in and was not ended."""
        self.retired: set[str] = set()
        self.used: set[str] = set()
        self.follow(self.pool.begin())

    def follow(self, commands: list[WorkerCommand]) -> None:
        for command in commands:
            if isinstance(command, StartWorker):
                assert command.life.name not in self.used, "a name was used twice"
                self.used.add(command.life.name)
                self.starting.add(command.life.name)
            elif isinstance(command, RetireWorker):
                assert command.name in self.playing or command.name in self.starting
                self.retired.add(command.name)
                self.look_whether_empty(command.name)
            else:
                assert command.name in self.retired, "a worker was ended that nobody retired"
                assert not self.playing.pop(command.name, 0), "a worker that plays was ended"
                self.starting.discard(command.name)
                self.retired.discard(command.name)

    def look_whether_empty(self, name: str) -> None:
        if not self.playing.get(name):
            self.follow(self.pool.emptied(name))

    @precondition(lambda self: self.starting)
    @rule(data=st.data())
    def a_worker_checks_in(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.starting)))
        self.starting.discard(name)
        self.playing[name] = 0
        self.pool.checked_in(name)

    @rule(
        episodes=st.integers(0, 40),
        is_awaited=st.booleans(),
        node_cpu=st.sampled_from([0.1, 0.95]),
        seconds=st.sampled_from([1.0, 10.0, 60.0]),
    )
    def load_is_looked_at(self, episodes: int, is_awaited: bool, node_cpu: float, seconds: float) -> None:
        before = len(self.pool.names)
        look = WorkerLoad(
            num_workers=before,
            num_waiting=max(0, episodes - before * SLOTS),
            num_playing=min(episodes, before * SLOTS),
            is_awaited=is_awaited,
            node_cpu=node_cpu,
        )
        commands = self.pool.look(look, seconds)
        started = [command for command in commands if isinstance(command, StartWorker)]
        assert not started or (look.num_waiting and is_awaited and node_cpu < 0.9)
        assert len(commands) - len(started) <= 1, "more than one retired at a time"
        self.follow(commands)
        for name in self.pool.names:
            if name in self.playing:
                self.playing[name] = min(SLOTS, episodes)

    @precondition(lambda self: self.playing)
    @rule(data=st.data())
    def a_worker_plays_to_the_end(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.playing)))
        self.playing[name] = 0
        self.look_whether_empty(name)

    @precondition(lambda self: self.playing)
    @rule(data=st.data())
    def a_worker_dies(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.playing)))
        del self.playing[name]
        if self.pool.died(name):
            assert name not in self.retired
            self.starting.add(name)
        else:
            self.retired.remove(name)

    @rule(data=st.data())
    def a_node_leaves(self, data: st.DataObject) -> None:
        self.follow(self.pool.leave(data.draw(st.sets(st.sampled_from(sorted(self.used))))))

    @invariant()
    def there_are_as_many_as_allowed(self) -> None:
        if not hasattr(self, "pool"):
            return
        names = self.pool.names
        assert self.fewest <= len(names) <= self.most
        assert [name.partition(".")[0] for name in names] == [f"w-{i}" for i in range(len(names))]
        assert {*names} | self.retired == self.starting | self.playing.keys()
        assert self.pool.is_complete is not bool(self.starting & {*names})


PoolMachine.TestCase.settings = settings(
    max_examples=examples(35), stateful_step_count=40, deadline=None, derandomize=True
)
TestPool = PoolMachine.TestCase
