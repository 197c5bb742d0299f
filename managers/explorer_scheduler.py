"""Shell: ExplorerScheduler, the scheduler of an explorer: groups are assigned, and leave one by one.

start -> publish -> (report -> assign | unassign)* -> close
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from envsdk.buffer.contract import ClaimedGroup, FinishedGroup
from envsdk.buffer.payload import pack_all
from envsdk.managers.assigned_ledger import AssignedLedger
from envsdk.managers.ledger_types import Command, GroupDropped, LedgerState
from envsdk.managers.rollout_batch import RolloutBatch, RolloutTally
from envsdk.managers.scheduler import RolloutScheduler, SchedulerSetup
from envsdk.trajectory import Trajectory


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


class ExplorerScheduler(RolloutScheduler):
    """Body of the actor."""

    _ledger: AssignedLedger

    def __init__(self, setup: SchedulerSetup, state: LedgerState | None = None) -> None:
        super().__init__(setup, state)
        self._is_awaited = True  # by the buffer, which gives no more groups than it can use

    def _new_ledger(self, state: LedgerState | None) -> AssignedLedger:
        self._dropped: dict[int, str] = {}
        self._num_reported = 0
        """Groups that the last report asked for."""
        return AssignedLedger(self._setup.ledger, state)

    async def publish(self, version: int) -> None:
        """As `RolloutScheduler.publish`. Trajectories discarded from now on are filed under this version."""
        if self._files:
            self._files.begin(version)
        await super().publish(version)

    async def assign(self, groups: Sequence[ClaimedGroup]) -> None:
        """Play these groups."""
        self._execute(self._ledger.assign(groups, time.monotonic()))
        self._num_reported = len(self._ledger.wanted())

    async def unassign(self, group_ids: Sequence[int]) -> None:
        """Play these groups no longer."""
        self._execute(self._ledger.unassign(group_ids, time.monotonic()))

    async def report(self) -> ExplorerReport:
        """Wait until groups are complete or dropped, or more could begin. Raises as `get_batch` does."""
        while True:
            self._raise_if_fatal()
            self._changed.clear()
            delivered, commands = self._ledger.deliver(time.monotonic())
            groups = [
                (group.group_id, [self._delivered(group, lease) for lease in group.lease_ids])
                for group in delivered
            ]
            self._execute(commands)
            dropped, self._dropped = self._dropped, {}
            wanted = self._ledger.wanted()
            if groups or dropped or len(wanted) > self._num_reported:
                break
            await self._changed.wait()
        self._num_reported = len(wanted)
        if groups:
            self._restarts.reset()
        return ExplorerReport(
            finished=await asyncio.to_thread(_packed, groups),
            counted=self._counted([members for _, members in groups]) if groups else None,
            num_succeeded=sum(member.success for _, members in groups for member in members),
            num_failed=sum(member.failure is not None for _, members in groups for member in members),
            dropped=dropped,
            wanted=wanted,
        )

    def _counted(self, groups: Sequence[Sequence[Trajectory]]) -> RolloutBatch:
        tally, self._tally = self._tally, RolloutTally()
        counts, filtered = self._ledger.counts, self._filters.delivered()
        batch = tally.batch(self._ledger.version, groups, counts, filtered)
        return replace(batch, groups=(), workers=self._pool.counts)

    def _execute(self, commands: Iterable[Command]) -> None:
        own = list(commands)
        for command in own:
            if isinstance(command, GroupDropped):
                self._dropped[command.group_id] = str(command.reason)
        super()._execute(own)
        if self._dropped or len(self._ledger.wanted()) > self._num_reported:
            self._changed.set()


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
