"""A scheduler that was stopped neither ends episodes nor kills workers that were on time."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_scheduler_machine import DEADLINE_S, GRACE_S, TICK_S, SchedulerMachine

from envsdk.managers import scheduler as scheduler_module
from envsdk.managers.awake_clock import AwakeClock
from envsdk.managers.ledger_types import CancelReason


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


async def ticks(machine: SchedulerMachine, monkeypatch: pytest.MonkeyPatch, *lasting_s: float) -> None:
    """The scheduler's timer, each turn of which takes so long."""
    left = iter(lasting_s)

    class Over(BaseException):
        pass

    async def sleep(_: float) -> None:
        if (seconds := next(left, None)) is None:
            raise Over
        machine.now += seconds

    with monkeypatch.context() as patch:
        patch.setattr(scheduler_module.asyncio, "sleep", sleep)
        with pytest.raises(Over):
            await machine.scheduler.tick()


def test_a_scheduler_that_was_stopped_past_the_deadline_lets_episodes_go_on(
    machine: SchedulerMachine, monkeypatch: pytest.MonkeyPatch
) -> None:
    playing = dict(machine.scheduler.shell.slots.playing)
    assert playing
    machine.loop.run_until_complete(ticks(machine, monkeypatch, TICK_S, 3 * DEADLINE_S, TICK_S))
    assert machine.scheduler.shell.slots.playing == playing
    assert not machine.scheduler.shell.slots.stop_deadlines


def test_a_scheduler_that_was_stopped_waits_for_the_reports_before_it_kills_a_worker(
    machine: SchedulerMachine, monkeypatch: pytest.MonkeyPatch
) -> None:
    scheduler = machine.scheduler
    slot_id, order = next(iter(scheduler.shell.slots.playing.items()))
    scheduler.shell.stop(slot_id, order.lease_id, CancelReason.SURPLUS)
    machine.loop.run_until_complete(ticks(machine, monkeypatch, TICK_S, 60 * GRACE_S))
    assert not machine.killed
    machine.loop.run_until_complete(ticks(machine, monkeypatch, *[TICK_S] * 3))
    assert len(machine.killed) == 1, "this one does hang"


def test_a_scheduler_whose_turns_are_always_late_ends_what_hangs(
    machine: SchedulerMachine, monkeypatch: pytest.MonkeyPatch
) -> None:
    scheduler = machine.scheduler
    slot_id, order = next(iter(scheduler.shell.slots.playing.items()))
    scheduler.shell.stop(slot_id, order.lease_id, CancelReason.SURPLUS)
    machine.loop.run_until_complete(ticks(machine, monkeypatch, *[4 * TICK_S] * 4))
    assert len(machine.killed) == 1
