"""AssignedLedger: the ledger of an explorer, whose groups are assigned by the buffer. Pure.

    wanted -> (the buffer gives some) -> assign -> ... -> deliver
                                         unassign: another explorer plays them

Members, slots, deadlines, versions and spares are as in the ledger. How many groups there are, which tasks
they play and which batch they end in is for the buffer to say.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable

from envsdk.buffer.contract import ClaimedGroup
from envsdk.managers.ledger import RolloutLedger
from envsdk.managers.ledger_parts import Group
from envsdk.managers.ledger_types import (
    BatchGroup,
    CancelReason,
    Command,
    GroupDropped,
    LeaseEnd,
    LedgerConfig,
    LedgerState,
)

MOST_OPEN_PER_SLOT = 2
"""Groups that an explorer holds at most, for each group that its slots can play at a time."""


class AssignedLedger(RolloutLedger):
    """See the module."""

    def __init__(self, config: LedgerConfig, state: LedgerState | None = None) -> None:
        super().__init__(config, state)
        self._next_tags: deque[str] = deque()
        """Of the groups to be asked for, in the order of the tags' shares."""

    def wanted(self) -> list[str]:
        """Tags of groups that could begin now, and of one more per tag, so that no slot waits for the buffer.

        They are in the order of the tags' shares: a tag whose episodes are quick is not played more often.
        """
        size = self.config.members_per_group
        lacking = {
            tag: math.ceil((room + size) / size)
            for tag in self.config.tag_weights
            if self._pool.num_slots(tag) and (room := self._pool.room(tag)) + size > 0
        }
        num_slots = sum(self._pool.num_slots(tag) for tag in self.config.tag_weights)
        most = MOST_OPEN_PER_SLOT * max(1, num_slots // size) - len(self._groups)
        found: list[str] = []
        while len(found) < most and any(number > 0 for number in lacking.values()):
            if len(found) == len(self._next_tags):
                self._next_tags.append(self._task_sampler.next_task().tag)
            tag = self._next_tags[len(found)]
            found.append(tag)
            if tag in lacking:
                lacking[tag] -= 1
        return found

    def publish(self, version: int, now: float) -> list[Command]:
        """As `RolloutLedger.publish`. An earlier version: the trainer went back, and nothing counts that is
        played now."""
        stopped: list[Command] = []
        if version < self.version:
            stopped = self.unassign(list(self._groups), now)
            self.version = version
        return [*stopped, *super().publish(version, now)]

    def assign(self, groups: Iterable[ClaimedGroup], now: float) -> list[Command]:
        """Play these groups. One that is played already is left as it is."""
        for group in groups:
            if group.task.tag in self._next_tags:
                self._next_tags.remove(group.task.tag)
            if group.group_id not in self._groups:
                self._add_group(group.group_id, group.task, attempt=0)
        return self._advance(now)

    def unassign(self, group_ids: Iterable[int], now: float) -> list[Command]:
        """Play these groups no longer; unknown ones are ignored."""
        for group_id in group_ids:
            group = self._groups.get(group_id)
            if group is not None:
                super()._drop_group(group, LeaseEnd.CANCELLED, CancelReason.UNASSIGNED)
                self._dropped.clear()
        return self._advance(now)

    def deliver(self, now: float) -> tuple[list[BatchGroup], list[Command]]:
        """Every group that is ready, in the order of completion."""
        self._sweep(self._ready.values(), self.version - self.config.staleness_bound)
        delivered = [self._deliver(group) for group in list(self._ready.values())]
        if delivered:
            self._guard.delivered()
        return delivered, self._advance(now)

    def _start_groups(self) -> None:
        """Groups are assigned."""

    def _drop_group(self, group: Group, finished_end: LeaseEnd, reason: CancelReason) -> None:
        super()._drop_group(group, finished_end, reason)
        self._dropped.clear()  # the buffer writes it down
        self._commands.append(GroupDropped(group_id=group.group_id, reason=reason))
