"""A scheduler that was stopped neither ends episodes nor kills workers that were on time."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_scheduler_machine import DEADLINE_S, GRACE_S, TICK_S, SchedulerMachine

from envsdk.managers.ledger_types import CancelReason
from envsdk.managers.slot_activity import AwakeClock


@given(st.lists(st.floats(0, 1e4)), st.floats(0.1, 10))
def test_no_gap_between_readings_counts_for_more_than_the_longest(
    gaps: list[float], longest_s: float
) -> None:
    clock, now, expected = AwakeClock(5.0, longest_s=longest_s), 5.0, 5.0
    for gap in gaps:
        counted = min((now + gap) - now, longest_s)
        now, expected = now + gap, expected + counted
        assert clock.at(now) == expected


@pytest.fixture
def machine() -> Iterator[SchedulerMachine]:
    """Two workers whose slots play."""
    machine = SchedulerMachine()
    machine.start(
        group_size=2,
        num_groups=3,
        alpha=1,
        redundancy=0,
        spare_groups=0,
        min_group_size=None,
        has_filter=False,
        is_evaluation=False,
    )
    yield machine
    machine.teardown()


def told_to_stop(machine: SchedulerMachine) -> int:
    """Number of slots."""
    return sum(len(worker.told_to_stop) for worker in machine.workers.values())


def stop_one(machine: SchedulerMachine) -> None:
    """Cancel an episode, which does not stop."""
    shell = machine.scheduler.shell
    slot_id, order = next(iter(shell.slots.playing.items()))
    shell.stop(slot_id, order.lease_id, CancelReason.SURPLUS)
    machine.time_passes(TICK_S)
    assert told_to_stop(machine) == 1


def test_a_scheduler_that_was_stopped_past_the_deadline_lets_episodes_go_on(
    machine: SchedulerMachine,
) -> None:
    playing = {name: dict(worker.playing) for name, worker in machine.workers.items()}
    assert any(playing.values())
    machine.time_passes(TICK_S)
    machine.the_scheduler_is_stopped(3 * DEADLINE_S)
    machine.time_passes(TICK_S)
    assert {name: worker.playing for name, worker in machine.workers.items()} == playing
    assert not told_to_stop(machine)


def test_a_scheduler_that_was_stopped_waits_for_the_reports_before_it_kills_a_worker(
    machine: SchedulerMachine,
) -> None:
    before = machine.ray.num_workers
    stop_one(machine)
    machine.the_scheduler_is_stopped(60 * GRACE_S)
    machine.loop.run_until_complete(asyncio.sleep(TICK_S / 2))
    assert not any(worker.is_killed for worker in machine.workers.values())
    machine.time_passes(3 * TICK_S)
    assert machine.ray.num_workers == before + 1, "this one does hang, and is replaced"


def test_a_scheduler_whose_turns_are_always_late_ends_what_hangs(machine: SchedulerMachine) -> None:
    before = machine.ray.num_workers
    stop_one(machine)
    for _ in range(4):
        machine.the_scheduler_is_stopped(3 * TICK_S)
        machine.time_passes(TICK_S)
    assert machine.ray.num_workers == before + 1
