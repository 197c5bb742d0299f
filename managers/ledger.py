"""The rollout ledger: who plays what, and which groups are ready. Pure: events in, commands out.

    group:  started -> open -> ready -> taken            rejected, given up or surplus: dropped
    member: pending -> running -> valid -> delivered     stale, failed or worker lost: pending again
                               -> failed                 (counts towards the group, masked)
    slot:   idle -> granted -> idle                      cancelled: busy until reported free

Owner: the scheduler, which feeds events in, one at a time, and carries out the commands in order.

    ledger = RolloutLedger(LedgerConfig(batch_size=8, group_size=4, alpha=1, tag_weights={"maze": 1}))
    for command in ledger.add_slots({"worker0/0": "maze"}, now=0.0):
        ...                                    # Grant(lease=Lease(lease_id=0, ...), slot_id="worker0/0")
    commands = ledger.finished(0, now=3.5, oldest_version=0)
    batch, commands = ledger.take(8, now=3.5)  # None until two groups of four are ready

The promises it keeps are listed in docs/ledger.md, each with the test that would break with it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Mapping

from envsdk.managers.ledger_parts import Group, Mixture, ProgressGuard, Seat, SlotPool, Status
from envsdk.managers.ledger_types import (
    Batch,
    BatchGroup,
    Cancel,
    Command,
    Discard,
    Grant,
    GroupReady,
    Lease,
    LeaseEnd,
    LedgerConfig,
    LedgerCounts,
    LedgerState,
    Reason,
    Stalled,
    UnfinishedGroup,
)
from envsdk.trajectory import Task

__all__ = [
    "Batch",
    "BatchGroup",
    "Cancel",
    "Command",
    "Discard",
    "Grant",
    "GroupReady",
    "Lease",
    "LeaseEnd",
    "LedgerConfig",
    "LedgerCounts",
    "LedgerState",
    "Reason",
    "RolloutLedger",
    "Stalled",
    "UnfinishedGroup",
]


class RolloutLedger:
    """See the module. `now` is in seconds on any clock that does not run backwards."""

    def __init__(self, config: LedgerConfig, state: LedgerState | None = None) -> None:
        self.config = config
        self.version = 0
        self._mixture = Mixture(config.tag_weights, config.split)
        self._pool = SlotPool(config.tag_weights)
        self._guard = ProgressGuard(config)
        self._groups: dict[int, Group] = {}
        self._ready: dict[int, Group] = {}
        """In the order of completion."""
        self._running: OrderedDict[int, Seat] = OrderedDict()
        """By lease. All leases have the same time to finish: the order of grants is that of deadlines."""
        self._held: dict[int, Seat] = {}
        """By lease: finished, valid or failed, and neither delivered nor discarded."""
        self._groups_in_training = 0
        self._next_group_id = 0
        self._next_lease_id = 0
        self._next_finish = 0
        self._ends = dict.fromkeys(LeaseEnd, 0)
        self._suspended_at: float | None = None
        self._suspended_s = 0.0
        if state is not None:
            self._restore(state)

    @property
    def counts(self) -> LedgerCounts:
        num_waiting = sum(seat.status is Status.VALID for seat in self._held.values())
        return LedgerCounts(
            started=self._next_lease_id,
            open=len(self._running) + num_waiting,
            **{str(end): count for end, count in self._ends.items()},
        )

    @property
    def num_ready_groups(self) -> int:
        return len(self._ready)

    @property
    def num_running(self) -> int:
        """Leases granted and neither finished nor cancelled."""
        return len(self._running)

    @property
    def is_suspended(self) -> bool:
        return self._suspended_at is not None

    def next_deadline(self) -> float | None:
        """When `tick` is next due, on the shell's clock; None: not before another event."""
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
        """For a checkpoint: what a new ledger needs to go on without playing a delivered task again."""
        counts = self.counts
        ends = {str(end): count for end, count in self._ends.items()}
        ends[LeaseEnd.CANCELLED.value] += counts.open
        return LedgerState(
            version=self.version,
            next_group_id=self._next_group_id,
            next_lease_id=self._next_lease_id,
            cursors=dict(self._mixture.cursors),
            shares=dict(self._mixture.shares),
            tag_weights=dict(self.config.tag_weights),
            ends=ends,
            unfinished=tuple(
                UnfinishedGroup(
                    group_id=group.group_id,
                    tag=group.task.tag,
                    index=group.task.index,
                    attempt=max(seat.attempt for seat in group.seats),
                )
                for group in self._groups.values()
            ),
        )

    def add_slots(self, slots: Mapping[str, str], now: float) -> list[Command]:
        """Slot ids with the tag each can play. A known id is a slot that was lost and came back."""
        for slot_id, tag in slots.items():
            self._pool.check_tag(slot_id, tag)
        commands: list[Command] = []
        self._lose_slots([slot_id for slot_id in slots if slot_id in self._pool], commands)
        for slot_id, tag in slots.items():
            self._pool.add(slot_id, tag)
        return self._advance(now, commands)

    def slots_idle(self, slot_ids: Iterable[str], now: float) -> list[Command]:
        """These slots are free after a Cancel. `finished` of the cancelled lease says the same.

        A slot whose lease still counts is left alone: the report belongs to an earlier lease.
        """
        for slot_id in slot_ids:
            lease_id = self._pool.lease_on(slot_id)
            if lease_id is not None and lease_id not in self._running:
                self._pool.free(lease_id)
        return self._advance(now, [])

    def remove_slots(self, slot_ids: Iterable[str], now: float) -> list[Command]:
        """A worker was lost: what it played ends cancelled and is played elsewhere."""
        commands: list[Command] = []
        self._lose_slots(slot_ids, commands)
        return self._advance(now, commands)

    def finished(
        self, lease_id: int, now: float, *, oldest_version: int | None, failed: bool = False
    ) -> list[Command]:
        """An episode ended and its slot is free. `oldest_version` is None when nothing was sampled.

        The report of a lease that has ended already frees the slot and is discarded; a repeated
        report changes nothing.
        """
        commands: list[Command] = []
        is_first_report = self._pool.free(lease_id)
        seat = self._running.get(lease_id)
        if seat is not None:
            self._record(seat, Reason.EPISODE_FAILED if failed else None, oldest_version, commands)
        elif is_first_report or lease_id not in self._held:
            end = LeaseEnd.FAILED if lease_id in self._held else LeaseEnd.CANCELLED
            commands.append(Discard(lease_id=lease_id, end=end, reason=Reason.LATE))
        return self._advance(now, commands)

    def reject_group(self, group_id: int, now: float) -> list[Command]:
        """The group filter does not want this group; another task is started. Unknown groups are ignored."""
        commands: list[Command] = []
        group = self._groups.get(group_id)
        if group is not None:
            self._drop_group(group, LeaseEnd.FILTERED, Reason.REJECTED, commands)
        return self._advance(now, commands)

    def publish(self, version: int, now: float) -> list[Command]:
        """The engines have these weights and the trainer is at this version: the last batch is consumed.

        The same version again says that a batch was consumed and the weights stayed (collection).
        """
        if version < self.version:
            raise ValueError(f"version {version} was published after version {self.version}")
        self.version = version
        self._groups_in_training = 0
        commands: list[Command] = []
        self._sweep(self._groups.values(), version - self.config.max_staleness, commands)
        return self._advance(now, commands)

    def tick(self, now: float) -> list[Command]:
        """End what is past its deadline."""
        commands: list[Command] = []
        if self._suspended_at is None:
            clock = now - self._suspended_s
            while self._running:
                seat = next(iter(self._running.values()))
                if seat.deadline > clock:
                    break
                commands.append(self._cancel(seat, Reason.DEADLINE))
                self._record(seat, Reason.DEADLINE, None, commands)
        return self._advance(now, commands)

    def suspend(self, now: float) -> list[Command]:
        """Grant nothing and let no deadline run until `resume`. Idempotent."""
        if self._suspended_at is None:
            self._suspended_at = now
        return []

    def resume(self, now: float) -> list[Command]:
        """Go on after `suspend`. Idempotent."""
        if self._suspended_at is not None:
            self._suspended_s += now - self._suspended_at
            self._suspended_at = None
        return self._advance(now, [])

    def take(self, num_trajectories: int, now: float) -> tuple[Batch | None, list[Command]]:
        """The oldest ready groups, or None while there are too few.

        A batch keeps its room until `publish`.
        """
        num_groups, rest = divmod(num_trajectories, self.config.group_size)
        if rest or not 0 < num_groups <= self.config.capacity_groups:
            raise ValueError(
                f"cannot take {num_trajectories} trajectories: it must be a positive multiple of group_size "
                f"{self.config.group_size} and at most {self.config.capacity_groups} groups"
            )
        commands: list[Command] = []
        if len(self._ready) < num_groups:
            return None, commands
        self._sweep(self._ready.values(), self.version - self.config.max_staleness, commands)
        if len(self._ready) < num_groups:
            return None, self._advance(now, commands)

        # The sort is stable: among equals the first complete are chosen.
        chosen = sorted(self._ready.values(), key=self._oldest_version)[:num_groups]
        # In the order of their tasks, so that a synchronous run does not depend on who was faster.
        chosen.sort(key=lambda group: group.group_id)
        batch = Batch(version=self.version, groups=tuple(self._deliver(group) for group in chosen))
        self._groups_in_training += num_groups
        self._guard.delivered()
        if self._groups_in_training >= self.config.groups_per_batch:
            self._drop_what_cannot_be_delivered(commands)
        return batch, self._advance(now, commands)

    def _start_groups(self) -> None:
        """Start tasks while there is room."""
        for _ in range(self._room() - len(self._groups)):
            self._add_group(self._next_group_id, self._mixture.next_task(), attempt=0)
            self._next_group_id += 1

    def _room(self) -> int:
        """Groups that may be open now."""
        if self.config.alpha == 0 and self._groups_in_training >= self.config.groups_per_batch:
            return 0
        room = self.config.capacity_groups + self.config.num_groups_redundancy
        return room - self._groups_in_training

    def _add_group(self, group_id: int, task: Task, attempt: int) -> None:
        group = Group(group_id, task)
        for member in range(self.config.members_per_group):
            seat = Seat(group, member, attempt, Status.PENDING)
            group.seats.append(seat)
            self._pool.queue(seat)
        group.num_outstanding = len(group.seats)
        self._groups[group_id] = group

    def _settle(self, group: Group, commands: list[Command]) -> None:
        """Bring the group's readiness up to date after its seats changed."""
        config = self.config
        is_complete = group.num_valid >= config.group_size or (
            group.num_outstanding == 0 and group.num_valid >= config.min_valid
        )
        if is_complete:
            if group.group_id not in self._ready:
                self._complete(group, commands)
            return
        self._ready.pop(group.group_id, None)
        if group.num_valid + group.num_outstanding < config.min_valid:
            for seat in reversed(group.seats):
                if seat.status is Status.FAILED:
                    self._vacate(seat, LeaseEnd.FAILED, Reason.EPISODE_FAILED, commands)
                    self._lease_again(seat, commands)

    def _complete(self, group: Group, commands: list[Command]) -> None:
        """Keep the first valid members, then the first failed ones; the others are spare."""
        finished = [seat for seat in group.seats if seat.status in (Status.VALID, Status.FAILED)]
        finished.sort(key=lambda seat: (seat.status is Status.FAILED, seat.finish_order))
        winners = {seat.member for seat in finished[: self.config.group_size]}
        for seat in group.seats:
            if seat.member not in winners:
                self._vacate(seat, LeaseEnd.CANCELLED, Reason.SPARE, commands)
        self._ready[group.group_id] = group
        commands.append(
            GroupReady(group_id=group.group_id, lease_ids=group.lease_ids(Status.VALID, Status.FAILED))
        )

    def _deliver(self, group: Group) -> BatchGroup:
        delivered = BatchGroup(
            group_id=group.group_id,
            task=group.task,
            lease_ids=group.lease_ids(Status.VALID, Status.FAILED),
            failures={
                seat.lease_id: seat.failure
                for seat in group.seats
                if seat.status is Status.FAILED and seat.failure is not None
            },
        )
        for lease_id in delivered.lease_ids:
            del self._held[lease_id]
        self._ends[LeaseEnd.DELIVERED] += group.num_valid
        del self._groups[group.group_id]
        del self._ready[group.group_id]
        return delivered

    def _drop_group(
        self, group: Group, finished_end: LeaseEnd, reason: Reason, commands: list[Command]
    ) -> None:
        """End a group undelivered: what finished ends as told, what runs is cancelled."""
        del self._groups[group.group_id]
        self._ready.pop(group.group_id, None)
        for seat in group.seats:
            end = LeaseEnd.CANCELLED if seat.status is Status.RUNNING else finished_end
            self._vacate(seat, end, reason, commands)

    def _oldest_version(self, group: Group) -> int:
        versions = [seat.oldest_version for seat in group.seats if seat.oldest_version is not None]
        return min(versions, default=self.version)

    def _sweep(self, groups: Iterable[Group], min_version: int, commands: list[Command]) -> None:
        """Lease again what is older than `min_version`, running or finished."""
        # Backwards, as each goes to the head of the queue: the oldest is played first.
        for group in reversed(list(groups)):
            is_changed = False
            for seat in reversed(group.seats):
                version = seat.version if seat.status is Status.RUNNING else seat.oldest_version
                if version is not None and version < min_version:
                    self._vacate(seat, LeaseEnd.STALE, Reason.TOO_OLD, commands)
                    self._lease_again(seat, commands)
                    is_changed = True
            if is_changed and group.group_id in self._groups:
                self._settle(group, commands)

    def _drop_what_cannot_be_delivered(self, commands: list[Command]) -> None:
        """The next batch is taken one version later: what is too old then need not be played to its end."""
        if self.config.alpha == 0:
            for group in list(self._groups.values()):
                self._drop_group(group, LeaseEnd.CANCELLED, Reason.SURPLUS, commands)
        else:
            self._sweep(self._groups.values(), self.version + 1 - self.config.max_staleness, commands)

    def _record(
        self, seat: Seat, failure: Reason | None, oldest_version: int | None, commands: list[Command]
    ) -> None:
        """A running seat's episode is over, with a result or without."""
        self._keep(seat, failure, oldest_version)
        self._settle(seat.group, commands)

    def _keep(self, seat: Seat, failure: Reason | None, oldest_version: int | None) -> None:
        group = seat.group
        self._leave_running(seat)
        self._held[seat.lease_id] = seat
        seat.failure = failure
        seat.oldest_version = oldest_version
        seat.finish_order = self._next_finish
        self._next_finish += 1
        group.num_outstanding -= 1
        if failure is None:
            seat.status = Status.VALID
            group.num_valid += 1
        else:
            seat.status = Status.FAILED
            self._end(LeaseEnd.FAILED, failure)

    def _vacate(self, seat: Seat, end: LeaseEnd, reason: Reason, commands: list[Command]) -> None:
        """Take out of the seat whatever fills it; a lease that has not ended ends so."""
        group = seat.group
        if seat.status is Status.RUNNING:
            self._leave_running(seat)
            self._end(end, reason)
            group.num_outstanding -= 1
            if self._pool.is_occupied_by(seat.lease_id):
                commands.append(self._cancel(seat, reason))
        elif seat.status is Status.VALID:
            del self._held[seat.lease_id]
            self._end(end, reason)
            group.num_valid -= 1
            commands.append(Discard(lease_id=seat.lease_id, end=end, reason=reason))
        elif seat.status is Status.FAILED:
            del self._held[seat.lease_id]
            commands.append(Discard(lease_id=seat.lease_id, end=LeaseEnd.FAILED, reason=reason))
        elif seat.status is Status.PENDING:
            group.num_outstanding -= 1
        seat.status = Status.DROPPED
        seat.lease_id = -1
        seat.oldest_version = None

    def _lease_again(self, seat: Seat, commands: list[Command]) -> None:
        """Queue a vacated seat ahead of younger work; give its group up when it had its share of attempts."""
        group = seat.group
        if group.group_id not in self._groups:
            return
        seat.attempt += 1
        if seat.attempt >= self.config.max_group_attempts:
            self._drop_group(group, LeaseEnd.FILTERED, Reason.GIVEN_UP, commands)
            return
        seat.status = Status.PENDING
        group.num_outstanding += 1
        self._pool.queue(seat, first=True)

    def _leave_running(self, seat: Seat) -> None:
        del self._running[seat.lease_id]
        self._pool.stop_counting(seat.group.task.tag)

    @staticmethod
    def _cancel(seat: Seat, reason: Reason) -> Cancel:
        return Cancel(lease_id=seat.lease_id, slot_id=seat.slot_id, reason=reason)

    def _end(self, end: LeaseEnd, reason: Reason) -> None:
        self._ends[end] += 1
        # With a batch ready it is the trainer that is slow, however much is thrown away meanwhile.
        if reason.is_waste and len(self._ready) < self.config.groups_per_batch:
            self._guard.waste(reason)

    def _lose_slots(self, slot_ids: Iterable[str], commands: list[Command]) -> None:
        lost = [
            self._running[lease_id]
            for slot_id in slot_ids
            if (lease_id := self._pool.remove(slot_id)) is not None and lease_id in self._running
        ]
        for seat in reversed(lost):
            if seat.attempt + 1 < self.config.max_group_attempts:
                self._vacate(seat, LeaseEnd.CANCELLED, Reason.WORKER_LOST, commands)
                self._lease_again(seat, commands)
            else:
                # It may be what kills the workers: a failed episode like any other.
                self._keep(seat, Reason.WORKER_LOST, None)
        for group in dict.fromkeys(seat.group for seat in lost):
            if group.group_id in self._groups:
                self._settle(group, commands)

    def _advance(self, now: float, commands: list[Command]) -> list[Command]:
        """Start and grant what can be, after an event; say so when nothing will ever come of it."""
        starved_tag = None
        if self._suspended_at is None:
            self._start_groups()
            for seat, slot_id in self._pool.matches():
                commands.append(self._grant(seat, slot_id, now))
            starved_tag = self._pool.starved_tag(now - self._suspended_s, self.config.episode_deadline_s)
        message = self._guard.verdict(starved_tag, self._pool.num_slots(starved_tag) if starved_tag else 0)
        if message is not None:
            commands.append(Stalled(message=message))
        return commands

    def _grant(self, seat: Seat, slot_id: str, now: float) -> Grant:
        lease = Lease(
            lease_id=self._next_lease_id,
            group_id=seat.group.group_id,
            member=seat.member,
            attempt=seat.attempt,
            task=seat.group.task,
            version=self.version,
            deadline=now + self.config.episode_deadline_s,
        )
        self._next_lease_id += 1
        seat.status = Status.RUNNING
        seat.lease_id = lease.lease_id
        seat.slot_id = slot_id
        seat.version = self.version
        seat.deadline = lease.deadline - self._suspended_s
        self._running[lease.lease_id] = seat
        self._pool.occupy(slot_id, lease.lease_id)
        return Grant(lease=lease, slot_id=slot_id)

    def _restore(self, state: LedgerState) -> None:
        self.version = state.version
        self._next_group_id = state.next_group_id
        self._next_lease_id = state.next_lease_id
        self._ends = {end: state.ends[end.value] for end in LeaseEnd}
        self._mixture.restore(state.cursors, state.shares, state.tag_weights)
        for group in state.unfinished:
            if group.tag in self.config.tag_weights:
                task = Task(tag=group.tag, split=self.config.split, index=group.index)
                self._add_group(group.group_id, task, group.attempt)
