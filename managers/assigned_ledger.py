"""AssignedLedger: the ledger of an explorer, whose groups are assigned by the buffer. Pure.

    wanted -> (the buffer gives some) -> assign -> ... -> deliver
                                         unassign: another explorer plays them

Members, slots, deadlines, versions and spares are as in every ledger. How many groups there are, which tasks
they play and which batch they end in is for the buffer to say.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable

from envsdk.buffer.contract import ClaimedGroup
from envsdk.managers.ledger import Ledger
from envsdk.managers.ledger_parts import TagOrder
from envsdk.managers.ledger_types import (
    BatchGroup,
    CancelReason,
    Command,
    GroupDropped,
    LeaseEnd,
    LedgerConfig,
)

MOST_OPEN_PER_SLOT = 2
"""Groups that an explorer holds at most, for each group that its slots can play at a time."""


class AssignedLedger(Ledger):
    """See the module."""

    def __init__(self, config: LedgerConfig) -> None:
        super().__init__(config, start_groups=lambda groups: None)
        self._order = TagOrder(config.tag_weights, config.split)
        self._next_tags: deque[str] = deque()
        """Tags of the groups to be asked for, in the order of the tags' shares."""

    def wanted(self) -> list[str]:
        """Tags of groups that could begin now, and of one more per tag, so that no slot waits for the buffer.

        They are in the order of the tags' shares: a tag whose episodes are quick is not played more often.
        """
        size, pool = self.config.members_per_group, self.groups.pool
        num_slots = {tag: pool.num_slots(tag) for tag in self.config.tag_weights}
        lacking = {
            tag: math.ceil((room + size) / size)
            for tag, number in num_slots.items()
            if number and (room := pool.room(tag)) + size > 0
        }
        most = MOST_OPEN_PER_SLOT * max(1, sum(num_slots.values()) // size) - len(self.groups.open)
        found: list[str] = []
        while len(found) < most and any(number > 0 for number in lacking.values()):
            if len(found) == len(self._next_tags):
                self._next_tags.append(self._order.next_tag())
            tag = self._next_tags[len(found)]
            found.append(tag)
            if tag in lacking:
                lacking[tag] -= 1
        return found

    def publish(self, version: int, now: float) -> list[Command]:
        """As `Ledger.publish`. An earlier version: the trainer went back, and nothing counts that is played
        now."""
        stopped: list[Command] = []
        if version < self.version:
            stopped = self.unassign(list(self.groups.open), now)
            self.groups.version = version
        return [*stopped, *super().publish(version, now)]

    def assign(self, groups: Iterable[ClaimedGroup], now: float) -> list[Command]:
        """Play these groups. One that is played already is left as it is."""
        for group in groups:
            if group.task.tag in self._next_tags:
                self._next_tags.remove(group.task.tag)
            if not self.is_open(group.group_id):
                self.groups.add(group.group_id, group.task)
        return self.advance(now)

    def unassign(self, group_ids: Iterable[int], now: float) -> list[Command]:
        """Play these groups no longer; unknown ones are ignored."""
        for group_id in group_ids:
            if (group := self.groups.open.get(group_id)) is not None:
                self.groups.drop(group, LeaseEnd.CANCELLED, CancelReason.UNASSIGNED)
        self.groups.take_dropped()
        return self.advance(now)

    def deliver(self, now: float) -> tuple[list[BatchGroup], list[Command]]:
        """Every group that is ready, in the order of completion."""
        ready = self.groups.ready
        self.groups.sweep(ready.values(), self.config.min_version(self.version))
        delivered = [self.groups.deliver(group) for group in list(ready.values())]
        if delivered:
            self.groups.guard.delivered()
        return delivered, self.advance(now)

    def advance(self, now: float) -> list[Command]:
        """As `Ledger.advance`, with the groups that were dropped: the buffer writes them down."""
        commands = super().advance(now)
        dropped = self.groups.take_dropped()
        return commands + [
            GroupDropped(group_id=each.group_id, reason=CancelReason(each.reason)) for each in dropped
        ]
