"""The rollout ledger: decides who plays what and which groups are ready. Pure: events in, commands out.

    group:  started -> open -> ready -> taken            rejected, given up or surplus: dropped
    member: pending -> running -> valid -> delivered     stale, failed or worker lost: pending again
                               -> failed                 (counts towards the group, masked)
    slot:   idle -> granted -> idle                      cancelled: busy until reported free
                                                         retired: removed instead of idle

Owner: the scheduler. It feeds in one event at a time and carries out the returned commands in order.

    ledger = RolloutLedger(LedgerConfig(batch_size=8, group_size=4, alpha=1, tag_weights={"maze": 1}))
    for command in ledger.add_slots({"worker0/0": "maze"}, now=0.0):
        ...                                    # Grant(lease=Lease(lease_id=0, ...), slot_id="worker0/0")
    commands = ledger.finished(0, now=3.5, oldest_version=0)
    batch, commands = ledger.take(8, now=3.5)  # None until two groups of four are ready

docs/ledger.md lists the promises that the ledger keeps, and for each one the change that would break it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Mapping

from envsdk.managers.ledger_parts import Group, GroupMember, ProgressGuard, SlotPool, Status, TaskSampler
from envsdk.managers.ledger_types import (
    Batch,
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
    LedgerState,
    Stalled,
    UnfinishedGroup,
)
from envsdk.trajectory import Task


class RolloutLedger:
    """See the module. `now` is a time in seconds on any clock that never runs backwards."""

    def __init__(self, config: LedgerConfig, state: LedgerState | None = None) -> None:
        self.config = config
        self.version = 0
        self.alpha = config.alpha
        """How many batches generation may run ahead now."""
        self._capacity_groups = config.capacity_groups(config.alpha)
        self._task_sampler = TaskSampler(config.tag_weights, config.split)
        self._pool = SlotPool(config.tag_weights)
        self._guard = ProgressGuard(config)
        self._commands: list[Command] = []
        """Of the event being handled; `_advance` returns them."""
        self._groups: dict[int, Group] = {}
        self._ready: dict[int, Group] = {}
        """In the order of completion."""
        self._running: OrderedDict[int, GroupMember] = OrderedDict()
        """By lease. All leases have the same time limit, so the order of grants is the order of deadlines."""
        self._finished_members: dict[int, GroupMember] = {}
        """By lease: finished (valid or failed), and neither delivered nor discarded."""
        self._groups_in_training = 0
        self._next_group_id = 0
        self._next_lease_id = 0
        self._next_finish = 0
        self._ends = dict.fromkeys(LeaseEnd, 0)
        self._dropped: list[DroppedGroup] = []
        """Since the last batch."""
        self._dropped_with_batch: tuple[DroppedGroup, ...] = ()
        """Before the last batch and after the one before it."""
        self._suspended_at: float | None = None
        self._suspended_s = 0.0
        if state is not None:
            self._restore(state)

    @property
    def counts(self) -> LedgerCounts:
        """Number of leases so far, by state."""
        num_waiting = sum(member.status is Status.VALID for member in self._finished_members.values())
        return LedgerCounts(
            started=self._next_lease_id,
            open=len(self._running) + num_waiting,
            **{str(end): count for end, count in self._ends.items()},
        )

    @property
    def num_ready_groups(self) -> int:
        """Groups that the next `take` may choose from."""
        return len(self._ready)

    def is_open(self, group_id: int) -> bool:
        """Whether this group was started, and neither delivered nor dropped."""
        return group_id in self._groups

    @property
    def num_waiting(self) -> int:
        """Members that wait for a slot."""
        return self._pool.num_waiting

    @property
    def has_idle_slot(self) -> bool:
        """Whether a slot has nothing to play: more groups could be open."""
        return self._pool.has_idle_slot

    @property
    def is_suspended(self) -> bool:
        """Whether `suspend` was called last, not `resume`."""
        return self._suspended_at is not None

    def active_s(self, now: float) -> float:
        """The clock that stands still while the ledger is suspended."""
        return (now if self._suspended_at is None else self._suspended_at) - self._suspended_s

    def next_deadline(self) -> float | None:
        """When `tick` is next needed, on the caller's clock; None when only another event can change that."""
        if self._suspended_at is not None:
            return None
        times = []
        starved_since = self._pool.starved_since()
        if starved_since is not None and not self._guard.has_stalled:
            times.append(starved_since + self.config.episode_deadline_s)
        if self._running:
            times.append(next(iter(self._running.values())).deadline)
        return min(times) + self._suspended_s if times else None

    def state(self) -> LedgerState:
        """For a checkpoint: a ledger made from it continues without playing a delivered task again."""
        counts = self.counts
        ends = {str(end): count for end, count in self._ends.items()}
        ends[LeaseEnd.CANCELLED.value] += counts.open
        return LedgerState(
            version=self.version,
            next_group_id=self._next_group_id,
            next_lease_id=self._next_lease_id,
            cursors=dict(self._task_sampler.cursors),
            shares=dict(self._task_sampler.shares),
            tag_weights=dict(self.config.tag_weights),
            ends=ends,
            unfinished=tuple(
                UnfinishedGroup(
                    group_id=group.group_id,
                    tag=group.task.tag,
                    index=group.task.index,
                    attempt=max(member.attempt for member in group.members),
                )
                for group in self._groups.values()
            ),
            alpha=self.alpha,
            dropped=self._dropped_with_batch,
        )

    def add_slots(self, slots: Mapping[str, str], now: float) -> list[Command]:
        """Add slots, as slot id -> tag. An id that is already known is a slot that was lost and came back."""
        for slot_id, tag in slots.items():
            self._pool.check_tag(slot_id, tag)
        self._lose_slots([slot_id for slot_id in slots if slot_id in self._pool])
        for slot_id, tag in slots.items():
            self._pool.add(slot_id, tag)
        return self._advance(now)

    def slots_idle(self, slot_ids: Iterable[str], now: float) -> list[Command]:
        """These slots are free after a Cancel. `finished` of the cancelled lease has the same effect.

        A slot whose lease is still running is ignored: the report is about an earlier lease.
        """
        for slot_id in slot_ids:
            lease_id = self._pool.lease_on(slot_id)
            if lease_id is not None and lease_id not in self._running:
                self._pool.free(lease_id)
        return self._advance(now)

    def remove_slots(self, slot_ids: Iterable[str], now: float) -> list[Command]:
        """A worker was lost: the episodes on its slots are cancelled and played elsewhere."""
        self._lose_slots(slot_ids)
        return self._advance(now)

    def retire_slots(self, slot_ids: Iterable[str], now: float) -> list[Command]:
        """Grant no lease on these slots again; episodes that run there end as usual. Idempotent."""
        for slot_id in slot_ids:
            self._pool.retire(slot_id)
        return self._advance(now)

    def hand_over(self, slot_ids: Iterable[str], now: float) -> list[Command]:
        """Cancel the episodes on these slots and play them elsewhere. This uses up no attempt.

        Retire the slots first, or the episodes may come back to them.
        """
        leases = [self._pool.lease_on(slot_id) for slot_id in slot_ids]
        # Backwards, as each member goes to the front of the queue.
        for lease_id in reversed(leases):
            member = None if lease_id is None else self._running.get(lease_id)
            if member is not None:
                self._vacate(member, LeaseEnd.CANCELLED, CancelReason.DRAINED)
                self._queue_again(member)
        return self._advance(now)

    def finished(
        self, lease_id: int, now: float, *, oldest_version: int | None, failed: bool = False
    ) -> list[Command]:
        """An episode ended and its slot is free. `oldest_version` is None when no token was sampled.

        The report of a lease that has already ended frees the slot and is discarded. A repeated report
        changes nothing.
        """
        is_first_report = self._pool.free(lease_id)
        member = self._running.get(lease_id)
        if member is not None:
            self._record(member, CancelReason.EPISODE_FAILED if failed else None, oldest_version)
        elif is_first_report or lease_id not in self._finished_members:
            end = LeaseEnd.FAILED if lease_id in self._finished_members else LeaseEnd.CANCELLED
            self._commands.append(Discard(lease_id=lease_id, end=end, reason=CancelReason.LATE))
        return self._advance(now)

    def reject_group(self, group_id: int, now: float) -> list[Command]:
        """The group filter rejected this group: start another task. An unknown group is ignored."""
        group = self._groups.get(group_id)
        if group is not None:
            self._drop_group(group, LeaseEnd.FILTERED, CancelReason.REJECTED)
        return self._advance(now)

    def publish(self, version: int, now: float) -> list[Command]:
        """The engines sample under `version` and the trainer has consumed the last batch.

        Publishing the same version again means that a batch was consumed without a change of the weights.
        """
        if version < self.version:
            raise ValueError(f"version {version} was published after version {self.version}")
        self.version = version
        self._groups_in_training = 0
        self._sweep(self._groups.values(), version - self.config.staleness_bound)
        return self._advance(now)

    def tick(self, now: float) -> list[Command]:
        """End the leases that are past their deadline."""
        if self._suspended_at is None:
            clock = now - self._suspended_s
            while self._running:
                member = next(iter(self._running.values()))
                if member.deadline > clock:
                    break
                self._commands.append(self._cancel(member, CancelReason.DEADLINE))
                self._record(member, CancelReason.DEADLINE, None)
        return self._advance(now)

    def set_depth(self, alpha: float, now: float) -> list[Command]:
        """Generation may run ahead by `alpha` batches from now on. Groups that are open beyond that stay."""
        if self.config.alpha == 0 or not 0 < alpha <= self.config.staleness_bound:
            raise ValueError(
                f"alpha cannot become {alpha}: it must be above 0 and at most {self.config.staleness_bound}, "
                "and the ledger asynchronous from the start"
            )
        self.alpha = alpha
        self._capacity_groups = self.config.capacity_groups(alpha)
        return self._advance(now)

    def suspend(self, now: float) -> list[Command]:
        """Grant no lease and stop the deadlines until `resume`. Idempotent."""
        if self._suspended_at is None:
            self._suspended_at = now
        return []

    def resume(self, now: float) -> list[Command]:
        """Continue after `suspend`. Idempotent."""
        if self._suspended_at is not None:
            self._suspended_s += now - self._suspended_at
            self._suspended_at = None
        return self._advance(now)

    def take(self, num_trajectories: int, now: float) -> tuple[Batch | None, list[Command]]:
        """Deliver the oldest ready groups, or None while there are too few.

        A delivered batch counts towards the capacity until the next `publish`.
        """
        num_groups, rest = divmod(num_trajectories, self.config.group_size)
        if rest or not 0 < num_groups <= self._capacity_groups:
            raise ValueError(
                f"cannot take {num_trajectories} trajectories: it must be a positive multiple of group_size "
                f"{self.config.group_size} and at most {self._capacity_groups} groups"
            )
        if len(self._ready) < num_groups:
            return None, []
        self._sweep(self._ready.values(), self.version - self.config.staleness_bound)
        if len(self._ready) < num_groups:
            return None, self._advance(now)

        # The sort is stable: among groups of the same age, those that completed first are chosen.
        chosen = sorted(self._ready.values(), key=self._oldest_version)[:num_groups]
        # In the order of their tasks, so that a synchronous run does not depend on which episode was faster.
        chosen.sort(key=lambda group: group.group_id)
        batch = Batch(version=self.version, groups=tuple(self._deliver(group) for group in chosen))
        self._groups_in_training += num_groups
        self._guard.delivered()
        if self._groups_in_training >= self.config.groups_per_batch:
            self._drop_what_cannot_be_delivered()
        self._dropped_with_batch, self._dropped = tuple(self._dropped), []
        return batch, self._advance(now)

    def _start_groups(self) -> None:
        """Start tasks up to the capacity."""
        for _ in range(self._max_open_groups() - len(self._groups)):
            self._add_group(self._next_group_id, self._task_sampler.next_task(), attempt=0)
            self._next_group_id += 1

    def _max_open_groups(self) -> int:
        """How many groups may be open now."""
        if self.config.alpha == 0 and self._groups_in_training >= self.config.groups_per_batch:
            return 0
        capacity = self._capacity_groups + self.config.num_groups_redundancy
        return capacity - self._groups_in_training

    def _add_group(self, group_id: int, task: Task, attempt: int) -> None:
        group = Group(group_id, task)
        for index in range(self.config.members_per_group):
            member = GroupMember(group, index, attempt, Status.PENDING)
            group.members.append(member)
            self._pool.queue(member)
        group.num_outstanding = len(group.members)
        self._groups[group_id] = group

    def _settle(self, group: Group) -> None:
        """After a change: complete the group, or play its failed members again if too few can be valid."""
        config = self.config
        is_complete = group.num_valid >= config.group_size or (
            group.num_outstanding == 0 and group.num_valid >= config.min_valid
        )
        if is_complete:
            if group.group_id not in self._ready:
                self._complete(group)
            return
        self._ready.pop(group.group_id, None)
        if group.num_valid + group.num_outstanding < config.min_valid:
            for member in reversed(group.members):
                if member.status is Status.FAILED:
                    self._vacate(member, LeaseEnd.FAILED, CancelReason.EPISODE_FAILED)
                    self._lease_again(member)

    def _complete(self, group: Group) -> None:
        """Keep the first valid members, then the first failed ones; drop the spare ones."""
        finished = [member for member in group.members if member.status in (Status.VALID, Status.FAILED)]
        finished.sort(key=lambda member: (member.status is Status.FAILED, member.finish_order))
        winners = {member.index for member in finished[: self.config.group_size]}
        for member in group.members:
            if member.index not in winners:
                self._vacate(member, LeaseEnd.CANCELLED, CancelReason.SPARE)
        self._ready[group.group_id] = group
        self._commands.append(
            GroupReady(group_id=group.group_id, lease_ids=group.lease_ids(Status.VALID, Status.FAILED))
        )

    def _deliver(self, group: Group) -> BatchGroup:
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
            del self._finished_members[lease_id]
        self._ends[LeaseEnd.DELIVERED] += group.num_valid
        del self._groups[group.group_id]
        del self._ready[group.group_id]
        return delivered

    def _drop_group(self, group: Group, finished_end: LeaseEnd, reason: CancelReason) -> None:
        """End a group without delivery: finished members end with `finished_end`, running ones cancelled."""
        del self._groups[group.group_id]
        self._ready.pop(group.group_id, None)
        self._dropped.append(
            DroppedGroup(
                group_id=group.group_id, tag=group.task.tag, index=group.task.index, reason=str(reason)
            )
        )
        for member in group.members:
            end = LeaseEnd.CANCELLED if member.status is Status.RUNNING else finished_end
            self._vacate(member, end, reason)

    def _oldest_version(self, group: Group) -> int:
        versions = [member.oldest_version for member in group.members if member.oldest_version is not None]
        return min(versions, default=self.version)

    def _sweep(self, groups: Iterable[Group], min_version: int) -> None:
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
            if is_changed and group.group_id in self._groups:
                self._settle(group)

    def _drop_what_cannot_be_delivered(self) -> None:
        """The next batch is taken one version later: end now the members that will be too old by then."""
        if self.config.alpha == 0:
            for group in list(self._groups.values()):
                self._drop_group(group, LeaseEnd.CANCELLED, CancelReason.SURPLUS)
        else:
            self._sweep(self._groups.values(), self.version + 1 - self.config.staleness_bound)

    def _record(self, member: GroupMember, failure: CancelReason | None, oldest_version: int | None) -> None:
        """A running member's episode ended, with a result or with a failure."""
        self._finish_member(member, failure, oldest_version)
        self._settle(member.group)

    def _finish_member(
        self, member: GroupMember, failure: CancelReason | None, oldest_version: int | None
    ) -> None:
        group = member.group
        self._leave_running(member)
        self._finished_members[member.lease_id] = member
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
            if self._pool.is_occupied_by(member.lease_id):
                self._commands.append(self._cancel(member, reason))
        elif member.status is Status.VALID:
            del self._finished_members[member.lease_id]
            self._end(end, reason)
            group.num_valid -= 1
            self._commands.append(Discard(lease_id=member.lease_id, end=end, reason=reason))
        elif member.status is Status.FAILED:
            del self._finished_members[member.lease_id]
            self._commands.append(Discard(lease_id=member.lease_id, end=LeaseEnd.FAILED, reason=reason))
        elif member.status is Status.PENDING:
            group.num_outstanding -= 1
        member.status = Status.DROPPED
        member.lease_id = -1
        member.oldest_version = None

    def _lease_again(self, member: GroupMember) -> None:
        """Queue a vacated member before younger ones, or give up its group after `max_group_attempts`."""
        group = member.group
        if group.group_id not in self._groups:
            return
        member.attempt += 1
        if member.attempt >= self.config.max_group_attempts:
            self._drop_group(group, LeaseEnd.FILTERED, CancelReason.GIVEN_UP)
            return
        self._queue_again(member)

    def _queue_again(self, member: GroupMember) -> None:
        member.status = Status.PENDING
        member.group.num_outstanding += 1
        self._pool.queue(member, first=True)

    def _leave_running(self, member: GroupMember) -> None:
        del self._running[member.lease_id]
        self._pool.stop_counting(member.group.task.tag)

    @staticmethod
    def _cancel(member: GroupMember, reason: CancelReason) -> Cancel:
        return Cancel(lease_id=member.lease_id, slot_id=member.slot_id, reason=reason)

    def _end(self, end: LeaseEnd, reason: CancelReason) -> None:
        self._ends[end] += 1
        # While a batch is ready the run waits for the trainer, so what is thrown away then does not count.
        if reason.is_waste and len(self._ready) < self.config.groups_per_batch:
            self._guard.waste(reason)

    def _lose_slots(self, slot_ids: Iterable[str]) -> None:
        lost = [
            self._running[lease_id]
            for slot_id in slot_ids
            if (lease_id := self._pool.remove(slot_id)) is not None and lease_id in self._running
        ]
        for member in reversed(lost):
            if member.attempt + 1 < self.config.max_group_attempts:
                self._vacate(member, LeaseEnd.CANCELLED, CancelReason.WORKER_LOST)
                self._lease_again(member)
            else:
                # This episode may be what kills the workers, so it counts as failed.
                self._finish_member(member, CancelReason.WORKER_LOST, None)
        for group in dict.fromkeys(member.group for member in lost):
            if group.group_id in self._groups:
                self._settle(group)

    def _advance(self, now: float) -> list[Command]:
        """After an event: start groups, grant leases, report a stall. Returns the commands of the event."""
        starved_tag = None
        if self._suspended_at is None:
            self._start_groups()
            for member, slot_id in self._pool.matches():
                self._commands.append(self._grant(member, slot_id, now))
            starved_tag = self._pool.starved_tag(now - self._suspended_s, self.config.episode_deadline_s)
        message = self._guard.verdict(starved_tag, self._pool.num_slots(starved_tag) if starved_tag else 0)
        if message is not None:
            self._commands.append(Stalled(message=message))
        commands, self._commands = self._commands, []
        return commands

    def _grant(self, member: GroupMember, slot_id: str, now: float) -> Grant:
        lease = Lease(
            lease_id=self._next_lease_id,
            group_id=member.group.group_id,
            member=member.index,
            attempt=member.attempt,
            task=member.group.task,
            version=self.version,
            deadline=now + self.config.episode_deadline_s,
        )
        self._next_lease_id += 1
        member.status = Status.RUNNING
        member.lease_id = lease.lease_id
        member.slot_id = slot_id
        member.version = self.version
        member.deadline = lease.deadline - self._suspended_s
        self._running[lease.lease_id] = member
        self._pool.occupy(slot_id, lease.lease_id)
        return Grant(lease=lease, slot_id=slot_id)

    def _restore(self, state: LedgerState) -> None:
        self.version = state.version
        self._next_group_id = state.next_group_id
        self._next_lease_id = state.next_lease_id
        self._ends = {end: state.ends[end.value] for end in LeaseEnd}
        if self.config.max_wait_share is not None and state.alpha is not None:
            self.alpha = min(state.alpha, self.config.staleness_bound)
            self._capacity_groups = self.config.capacity_groups(self.alpha)
        self._task_sampler.restore(state.cursors, state.shares, state.tag_weights)
        for group in state.unfinished:
            if group.tag in self.config.tag_weights:
                task = Task(tag=group.tag, split=self.config.split, index=group.index)
                self._add_group(group.group_id, task, group.attempt)
