"""OpenGroups: the groups of a ledger, and the leases that their members have on slots. Pure.

    group:  added -> open -> ready -> delivered          dropped
    member: pending -> running -> valid -> delivered     stale, failed or worker lost: pending again
                               -> failed                 (counts towards the group, masked)

Owner: the ledger, which adds groups and says when a group is delivered or dropped. What follows for slots and
results is collected in `commands`.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable

from envsdk.algorithms.task_samplers.contract import PlayedGroup
from envsdk.contracts.trajectory import Task
from envsdk.managers.ledger_parts import Group, GroupMember, ProgressGuard, SlotPool, Status
from envsdk.managers.ledger_types import (
    BatchGroup,
    Cancel,
    CancelReason,
    Command,
    Discard,
    DroppedGroup,
    Grant,
    GroupReady,
    Lease,
    LeaseEnd,
    LedgerConfig,
    LedgerCounts,
    UnfinishedGroup,
)


class OpenGroups:
    """See the module."""

    def __init__(self, config: LedgerConfig) -> None:
        self._config = config
        self.version = 0
        """The trainer's."""
        self.pool = SlotPool(config.tag_weights)
        self.guard = ProgressGuard(config)
        self.commands: list[Command] = []
        """Commands of the event being handled."""
        self.open: dict[int, Group] = {}
        self.ready: dict[int, Group] = {}
        """In the order of completion."""
        self.running: OrderedDict[int, GroupMember] = OrderedDict()
        """Members by lease. All leases have one time limit, so the order of grants is that of deadlines."""
        self.finished: dict[int, GroupMember] = {}
        """Members by lease: those that finished (valid or failed), and neither delivered nor discarded."""
        self._dropped: list[DroppedGroup] = []
        self._over: dict[int, PlayedGroup] = {}
        """Groups that are over, until the task sampler has seen them."""
        self.ends = dict.fromkeys(LeaseEnd, 0)
        self.next_lease_id = 0
        self._next_finish = 0
        self.on_drop: Callable[[str], None] = lambda tag: None
        """Called with the tag of each group that is dropped."""

    @property
    def counts(self) -> LedgerCounts:
        """Number of leases so far, by state."""
        num_waiting = sum(member.status is Status.VALID for member in self.finished.values())
        return LedgerCounts(
            started=self.next_lease_id,
            open=len(self.running) + num_waiting,
            **{str(end): count for end, count in self.ends.items()},
        )

    @property
    def unfinished(self) -> tuple[UnfinishedGroup, ...]:
        """The groups that are open, as a checkpoint keeps them."""
        return tuple(
            UnfinishedGroup(
                group_id=group.group_id,
                tag=group.task.tag,
                index=group.task.index,
                attempt=max(member.attempt for member in group.members),
            )
            for group in self.open.values()
        )

    def add(self, group_id: int, task: Task, attempt: int = 0) -> None:
        """Open a group, whose members wait for slots from now on."""
        group = Group(group_id, task)
        for index in range(self._config.members_per_group):
            member = GroupMember(group, index, attempt, Status.PENDING)
            group.members.append(member)
            self.pool.queue(member)
        group.num_outstanding = len(group.members)
        self.open[group_id] = group

    def grant(self, now: float, *, suspended_s: float) -> None:
        """Give idle slots to the members that wait. `suspended_s` is how far the ledger's clock is behind."""
        for member, slot_id in self.pool.matches():
            lease = Lease(
                lease_id=self.next_lease_id,
                group_id=member.group.group_id,
                member=member.index,
                attempt=member.attempt,
                task=member.group.task,
                version=self.version,
                deadline=now + self._config.episode_deadline_s,
            )
            self.next_lease_id += 1
            member.status = Status.RUNNING
            member.lease_id = lease.lease_id
            member.slot_id = slot_id
            member.version = self.version
            member.deadline = lease.deadline - suspended_s
            self.running[lease.lease_id] = member
            self.pool.occupy(slot_id, lease.lease_id)
            self.commands.append(Grant(lease=lease, slot_id=slot_id))

    def record(self, member: GroupMember, failure: CancelReason | None, oldest_version: int | None) -> None:
        """A running member's episode ended, with a result or with a failure."""
        self._finish_member(member, failure, oldest_version)
        self._settle(member.group)

    def end_late(self, clock: float) -> None:
        """End the leases whose deadline has passed on the ledger's clock."""
        while self.running:
            member = next(iter(self.running.values()))
            if member.deadline > clock:
                break
            self.commands.append(self._cancel(member, CancelReason.DEADLINE))
            self.record(member, CancelReason.DEADLINE, None)

    def hand_over(self, slot_ids: Iterable[str]) -> None:
        """Cancel the episodes on these slots and queue them again. This uses up no attempt."""
        leases = [self.pool.lease_on(slot_id) for slot_id in slot_ids]
        # Backwards, as each member goes to the front of the queue.
        for lease_id in reversed(leases):
            member = None if lease_id is None else self.running.get(lease_id)
            if member is not None:
                self._vacate(member, LeaseEnd.CANCELLED, CancelReason.DRAINED)
                self._queue_again(member)

    def lose_slots(self, slot_ids: Iterable[str]) -> None:
        """These slots are gone; the episodes on them are played elsewhere."""
        lost = [
            self.running[lease_id]
            for slot_id in slot_ids
            if (lease_id := self.pool.remove(slot_id)) is not None and lease_id in self.running
        ]
        for member in reversed(lost):
            if member.attempt + 1 < self._config.max_group_attempts:
                self._vacate(member, LeaseEnd.CANCELLED, CancelReason.WORKER_LOST)
                self._lease_again(member)
            else:
                # This episode may be what kills the workers, so it counts as failed.
                self._finish_member(member, CancelReason.WORKER_LOST, None)
        for group in dict.fromkeys(member.group for member in lost):
            if group.group_id in self.open:
                self._settle(group)

    def sweep(self, groups: Iterable[Group], min_version: int) -> None:
        """Play again the members, running or finished, that are older than `min_version`."""
        # Backwards, as each member goes to the front of the queue: the oldest is then played first.
        for group in reversed(list(groups)):
            is_changed = False
            for member in reversed(group.members):
                version = member.version if member.status is Status.RUNNING else member.oldest_version
                if version is not None and version < min_version:
                    self._vacate(member, LeaseEnd.STALE, CancelReason.TOO_OLD)
                    self._lease_again(member)
                    is_changed = True
            if is_changed and group.group_id in self.open:
                self._settle(group)

    def deliver(self, group: Group) -> BatchGroup:
        """Take a ready group out of the ledger."""
        delivered = BatchGroup(
            group_id=group.group_id,
            task=group.task,
            lease_ids=group.lease_ids(Status.VALID, Status.FAILED),
            failures={
                member.lease_id: member.failure
                for member in group.members
                if member.status is Status.FAILED and member.failure is not None
            },
        )
        for lease_id in delivered.lease_ids:
            del self.finished[lease_id]
        self.ends[LeaseEnd.DELIVERED] += group.num_valid
        self._end_group(group)
        del self.open[group.group_id]
        del self.ready[group.group_id]
        return delivered

    def drop(self, group: Group, finished_end: LeaseEnd, reason: CancelReason) -> None:
        """End a group without delivery: finished members end with `finished_end`, running ones cancelled."""
        del self.open[group.group_id]
        self.ready.pop(group.group_id, None)
        task = group.task
        self._dropped.append(
            DroppedGroup(group_id=group.group_id, tag=task.tag, index=task.index, reason=str(reason))
        )
        self._end_group(group, reason)
        self.on_drop(task.tag)
        for member in group.members:
            end = LeaseEnd.CANCELLED if member.status is Status.RUNNING else finished_end
            self._vacate(member, end, reason)

    def take_over(self) -> dict[int, PlayedGroup]:
        """The groups that are over since the last call, by id, in the order in which they were started."""
        over, self._over = self._over, {}
        return dict(sorted(over.items()))

    def take_dropped(self) -> tuple[DroppedGroup, ...]:
        """The groups that were dropped since the last call."""
        dropped, self._dropped = tuple(self._dropped), []
        return dropped

    def _end_group(self, group: Group, reason: CancelReason | None = None) -> None:
        """Tell the task sampler; a group that was dropped has no results, unless a filter rejected it."""
        if self._config.task_sampler is not None and reason is not CancelReason.UNASSIGNED:
            counts = reason in (None, CancelReason.REJECTED)
            valid = [member.outcome for member in group.members if member.status is Status.VALID]
            outcomes = [outcome for outcome in valid if outcome is not None and counts]
            self._over[group.group_id] = PlayedGroup(
                task=group.task,
                successes=[success for success, _ in outcomes],
                rewards=[reward for _, reward in outcomes],
            )

    def _settle(self, group: Group) -> None:
        """After a change: complete the group, or play its failed members again if too few can be valid."""
        config = self._config
        is_complete = group.num_valid >= config.group_size or (
            group.num_outstanding == 0 and group.num_valid >= config.min_valid
        )
        if is_complete:
            if group.group_id not in self.ready:
                self._complete(group)
            return
        self.ready.pop(group.group_id, None)
        if group.num_valid + group.num_outstanding < config.min_valid:
            for member in reversed(group.members):
                if member.status is Status.FAILED:
                    self._vacate(member, LeaseEnd.FAILED, CancelReason.EPISODE_FAILED)
                    self._lease_again(member)

    def _complete(self, group: Group) -> None:
        """Keep the first valid members, then the first failed ones; drop the spare ones."""
        finished = [member for member in group.members if member.status in (Status.VALID, Status.FAILED)]
        finished.sort(key=lambda member: (member.status is Status.FAILED, member.finish_order))
        winners = {member.index for member in finished[: self._config.group_size]}
        for member in group.members:
            if member.index not in winners:
                self._vacate(member, LeaseEnd.CANCELLED, CancelReason.SPARE)
        self.ready[group.group_id] = group
        self.commands.append(
            GroupReady(group_id=group.group_id, lease_ids=group.lease_ids(Status.VALID, Status.FAILED))
        )

    def _finish_member(
        self, member: GroupMember, failure: CancelReason | None, oldest_version: int | None
    ) -> None:
        group = member.group
        self._leave_running(member)
        self.finished[member.lease_id] = member
        member.failure = failure
        member.oldest_version = oldest_version
        member.finish_order = self._next_finish
        self._next_finish += 1
        group.num_outstanding -= 1
        if failure is None:
            member.status = Status.VALID
            group.num_valid += 1
        else:
            member.status = Status.FAILED
            self._end(LeaseEnd.FAILED, failure)

    def _vacate(self, member: GroupMember, end: LeaseEnd, reason: CancelReason) -> None:
        """Remove the member's episode; if its lease is still open, it ends with `end`."""
        group = member.group
        if member.status is Status.RUNNING:
            self._leave_running(member)
            self._end(end, reason)
            group.num_outstanding -= 1
            if self.pool.is_occupied_by(member.lease_id):
                self.commands.append(self._cancel(member, reason))
        elif member.status is Status.VALID:
            del self.finished[member.lease_id]
            self._end(end, reason)
            group.num_valid -= 1
            self.commands.append(Discard(lease_id=member.lease_id, end=end, reason=reason))
        elif member.status is Status.FAILED:
            del self.finished[member.lease_id]
            self.commands.append(Discard(lease_id=member.lease_id, end=LeaseEnd.FAILED, reason=reason))
        elif member.status is Status.PENDING:
            group.num_outstanding -= 1
        member.status = Status.DROPPED
        member.lease_id = -1
        member.oldest_version = None

    def _lease_again(self, member: GroupMember) -> None:
        """Queue a vacated member before younger ones, or give up its group after `max_group_attempts`."""
        group = member.group
        if group.group_id not in self.open:
            return
        member.attempt += 1
        if member.attempt >= self._config.max_group_attempts:
            self.drop(group, LeaseEnd.FILTERED, CancelReason.GIVEN_UP)
            return
        self._queue_again(member)

    def _queue_again(self, member: GroupMember) -> None:
        member.status = Status.PENDING
        member.group.num_outstanding += 1
        self.pool.queue(member, first=True)

    def _leave_running(self, member: GroupMember) -> None:
        del self.running[member.lease_id]
        self.pool.stop_counting(member.group.task.tag)

    @staticmethod
    def _cancel(member: GroupMember, reason: CancelReason) -> Cancel:
        return Cancel(lease_id=member.lease_id, slot_id=member.slot_id, reason=reason)

    def _end(self, end: LeaseEnd, reason: CancelReason) -> None:
        self.ends[end] += 1
        # While a batch is ready the run waits for the trainer, so what is thrown away then does not count.
        if reason.is_waste and len(self.ready) < self._config.groups_per_batch:
            self.guard.waste(reason)
