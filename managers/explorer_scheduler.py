"""Shell: ExplorerScheduler, the scheduler of an explorer: groups are assigned, and leave one by one.

start -> publish -> (report -> assign | unassign)* -> close
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from envsdk.algorithms.task_samplers.contract import PlayedGroup
from envsdk.buffer.contract import ClaimedGroup, FinishedGroup
from envsdk.buffer.payload import pack_all
from envsdk.contracts.trajectory import RolloutBatch, Trajectory
from envsdk.managers.assigned_ledger import AssignedLedger
from envsdk.managers.ledger_types import Command, GroupDropped
from envsdk.managers.scheduler import Scheduler, SchedulerSetup


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
