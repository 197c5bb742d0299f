"""The ledger of an explorer, and its shell ExplorerScheduler: groups are assigned, and leave one by one.

start -> publish -> (report -> assign | unassign)* -> close
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from envsdk.algorithms.task_samplers.contract import PlayedGroup
from envsdk.buffer.contract import ClaimedGroup, FinishedGroup
from envsdk.buffer.payload import pack_all
from envsdk.contracts.trajectory import RolloutBatch, Trajectory
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
from envsdk.managers.scheduler import Scheduler, SchedulerSetup

MOST_OPEN_PER_SLOT = 2
"""Groups that an explorer holds at most, for each group that its slots can play at a time."""


class AssignedLedger(Ledger):
    """The ledger of an explorer, whose groups are assigned by the buffer. Pure.

        wanted -> (the buffer gives some) -> assign -> ... -> deliver
                                             unassign: another explorer plays them

    Members, slots, deadlines, versions and spares are as in every ledger. How many groups there are, which
    tasks they play and which batch they end in is for the buffer to say.
    """

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


@dataclass(frozen=True, slots=True, kw_only=True)
class ExplorerReport:
    """What happened since the last report."""

    finished: Sequence[FinishedGroup]
    counted: RolloutBatch | None
    """What was counted since the last complete group, without trajectories; None when none came."""
    num_succeeded: int
    """Solved episodes among `finished`."""
    num_failed: int
    """Episodes among `finished` that have no outcome."""
    dropped: Mapping[int, str]
    """Groups that will not come, and why."""
    wanted: Sequence[str]
    """Tags of the groups that could begin now."""
    played: Mapping[int, PlayedGroup] = field(default_factory=dict)
    """Results of these groups by id, for the job's task sampler."""


class ExplorerScheduler(Scheduler[AssignedLedger]):
    """Body of the actor."""

    def __init__(self, setup: SchedulerSetup) -> None:
        self._dropped: dict[int, str] = {}
        self._num_reported = 0
        """Groups that the last report asked for."""
        super().__init__(setup, AssignedLedger(setup.ledger))
        self.workforce.is_awaited = True  # by the buffer, which gives no more groups than it can use

    async def publish(self, version: int) -> None:
        """As `Scheduler.publish`. Trajectories discarded from now on are filed under this version."""
        if self.episodes.files:
            self.episodes.files.begin(version)
        await super().publish(version)

    async def assign(self, groups: Sequence[ClaimedGroup]) -> None:
        """Play these groups."""
        self.shell.execute(self.shell.ledger.assign(groups, self.shell.now()))
        self._num_reported = len(self.shell.ledger.wanted())

    async def unassign(self, group_ids: Sequence[int]) -> None:
        """Play these groups no longer."""
        self.shell.execute(self.shell.ledger.unassign(group_ids, self.shell.now()))

    async def report(self) -> ExplorerReport:
        """Wait until groups are complete or dropped, or more could begin. Raises as `get_batch` does."""
        ledger = self.shell.ledger
        self.background.raise_if_failed()
        while True:
            delivered, commands = ledger.deliver(self.shell.now())
            counted = None
            if delivered:
                counted = self.episodes.batch(ledger.version, delivered, ledger.counts)
            self.shell.execute(commands)
            dropped, self._dropped = self._dropped, {}
            wanted = ledger.wanted()
            if delivered or dropped or len(wanted) > self._num_reported:
                break
            await self.background.next_change()
        self._num_reported = len(wanted)
        groups: Sequence[Sequence[Trajectory]] = ()
        if counted is not None:
            self.workforce.restarts.reset()
            groups = counted.groups
            counted = replace(counted, groups=(), workers=self.workforce.pool.counts)
        named = [(group.group_id, members) for group, members in zip(delivered, groups, strict=True)]
        return ExplorerReport(
            finished=await asyncio.to_thread(_packed, named),
            counted=counted,
            num_succeeded=sum(member.success for members in groups for member in members),
            num_failed=sum(member.failure is not None for members in groups for member in members),
            dropped=dropped,
            wanted=wanted,
            played=ledger.groups.take_over(),
        )

    def decided(self, command: Command) -> None:
        if isinstance(command, GroupDropped):
            self._dropped[command.group_id] = str(command.reason)
        super().decided(command)

    def executed(self) -> None:
        if self._dropped or len(self.shell.ledger.wanted()) > self._num_reported:
            self.background.changed.set()


def _packed(groups: Iterable[tuple[int, Sequence[Trajectory]]]) -> list[FinishedGroup]:
    """Each trajectory is named after its group: leases are counted by every explorer for itself."""
    named = [
        (
            group_id,
            [
                replace(member, trajectory_id=f"{member.task.split}-{group_id}.{position}")
                for position, member in enumerate(members)
            ],
        )
        for group_id, members in groups
    ]
    return pack_all(named) if named else []
