"""The ledger of an explorer: it plays what is assigned, and nothing else."""

from __future__ import annotations

import math

from hypothesis import given, settings
from hypothesis import strategies as st

from envsdk.buffer.contract import ClaimedGroup
from envsdk.contracts.trajectory import Task
from envsdk.managers.explorer_scheduler import MOST_OPEN_PER_SLOT, AssignedLedger
from envsdk.managers.ledger_types import Cancel, CancelReason, Command, Grant, GroupDropped, LedgerConfig

CONFIG = LedgerConfig(
    batch_size=4, group_size=2, alpha=1, tag_weights={"lake": 1, "rooms": 1}, max_group_attempts=2
)


def claimed(group_id: int, tag: str = "lake") -> ClaimedGroup:
    task = Task(tag=tag, split="train", index=group_id)
    return ClaimedGroup(group_id=group_id, task=task, attempt=0)


def ledger_with(**slots: int) -> AssignedLedger:
    ledger = AssignedLedger(CONFIG)
    ledger.publish(0, 0.0)
    ledger.add_slots({f"{tag}/{i}": tag for tag, count in slots.items() for i in range(count)}, 0.0)
    return ledger


def grants(commands: list[Command]) -> list[Grant]:
    return [each for each in commands if isinstance(each, Grant)]


def test_nothing_is_played_that_was_not_assigned() -> None:
    ledger = ledger_with(lake=4)
    assert ledger.publish(1, 1.0) == []
    assert len(grants(ledger.assign([claimed(7)], 2.0))) == 2
    assert ledger.assign([claimed(7)], 3.0) == []


def test_a_complete_group_is_delivered_once_under_its_own_number() -> None:
    ledger = ledger_with(lake=2)
    for grant in grants(ledger.assign([claimed(7)], 0.0)):
        assert ledger.deliver(0.5) == ([], [])
        ledger.finished(grant.lease.lease_id, 1.0, oldest_version=0)
    delivered, _ = ledger.deliver(1.0)
    assert [group.group_id for group in delivered] == [7]
    assert ledger.deliver(1.0) == ([], [])


def test_what_others_play_by_now_is_stopped_and_not_reported_as_dropped() -> None:
    ledger = ledger_with(lake=2)
    ledger.assign([claimed(7), claimed(8)], 0.0)
    commands = ledger.unassign([7, 99], 1.0)
    assert [each.reason for each in commands if isinstance(each, Cancel)] == [CancelReason.UNASSIGNED] * 2
    assert not any(isinstance(each, GroupDropped) for each in commands)
    commands = ledger.slots_idle(["lake/0", "lake/1"], 2.0)
    assert [grant.lease.group_id for grant in grants(commands)] == [8, 8]


def test_a_rejected_group_and_one_that_is_given_up_are_reported() -> None:
    ledger = ledger_with(lake=4)
    first = grants(ledger.assign([claimed(7)], 0.0))
    for grant in first:
        ledger.finished(grant.lease.lease_id, 1.0, oldest_version=0)
    assert GroupDropped(group_id=7, reason=CancelReason.REJECTED) in ledger.reject_group(7, 1.0)

    commands = ledger.assign([claimed(8)], 2.0)
    dropped: list[Command] = []
    while running := grants(commands):
        commands = []
        for grant in running:
            commands += ledger.finished(grant.lease.lease_id, 3.0, oldest_version=None, failed=True)
        dropped += [each for each in commands if isinstance(each, GroupDropped)]
    assert dropped == [GroupDropped(group_id=8, reason=CancelReason.GIVEN_UP)]


def test_a_group_that_grows_too_old_is_played_again_under_the_newer_weights() -> None:
    ledger = ledger_with(lake=2)
    for grant in grants(ledger.assign([claimed(7)], 0.0)):
        ledger.finished(grant.lease.lease_id, 1.0, oldest_version=0)
    ledger.publish(1, 2.0)
    again = grants(ledger.publish(2, 3.0))
    assert [grant.lease.version for grant in again] == [2, 2]
    assert ledger.deliver(3.0) == ([], [])


@settings(max_examples=60)
@given(
    lake=st.integers(1, 9),
    rooms=st.integers(0, 9),
    played=st.lists(st.sampled_from(["finish", "assign", "deliver"]), max_size=30),
)
def test_wanted_groups_fill_idle_slots_in_the_order_of_shares(
    lake: int, rooms: int, played: list[str]
) -> None:
    ledger = ledger_with(lake=lake, rooms=rooms)
    running: list[int] = []
    open_groups, next_id, asked = set[int](), 0, []
    most = MOST_OPEN_PER_SLOT * max(1, (lake + rooms) // 2)
    for action in played:
        commands: list[Command] = []
        wanted = ledger.wanted()
        assert wanted == ledger.wanted()
        assert len(open_groups) + len(wanted) <= max(most, len(open_groups))
        if action == "assign" and wanted:
            group = claimed(next_id, wanted[0])
            next_id += 1
            open_groups.add(group.group_id)
            asked.append(group.task.tag)
            commands = ledger.assign([group], 1.0)
        elif action == "finish" and running:
            commands = ledger.finished(running.pop(0), 1.0, oldest_version=0)
        elif action == "deliver":
            delivered, commands = ledger.deliver(1.0)
            open_groups -= {group.group_id for group in delivered}
        running += [grant.lease.lease_id for grant in grants(commands)]
    assert abs(asked.count("lake") - asked.count("rooms")) <= 1
    idle = math.ceil((lake - len(running)) / CONFIG.members_per_group)
    if not open_groups and not running:
        assert ledger.wanted().count("lake") >= min(idle, most // 2)
