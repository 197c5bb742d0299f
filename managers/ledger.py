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

from collections import Counter, OrderedDict, deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum, auto

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


class _Status(Enum):
    PENDING = auto()
    RUNNING = auto()
    VALID = auto()
    FAILED = auto()
    DROPPED = auto()


@dataclass(slots=True, eq=False)
class _Seat:
    """One member of one group, and the lease that fills it now."""

    group: _Group
    member: int
    attempt: int
    status: _Status = _Status.DROPPED
    lease_id: int = -1
    slot_id: str = ""
    version: int = -1
    """The trainer's version at the grant: no token can be older, unless an engine lagged."""
    oldest_version: int | None = None
    """Of the finished episode's sampled tokens, as reported."""
    finish_order: int = -1
    deadline: float = 0.0


@dataclass(slots=True, eq=False)
class _Group:
    group_id: int
    task: Task
    seats: list[_Seat] = field(default_factory=list)
    num_valid: int = 0
    num_outstanding: int = 0
    """Seats pending or running."""


@dataclass(slots=True, eq=False)
class _Tag:
    """What is waiting for, and playing on, the slots of one tag."""

    weight: int
    cursor: int = 0
    share: int = 0
    """Groups started under the present mixture."""
    pending: deque[_Seat] = field(default_factory=deque)
    """May hold seats dropped since; they are skipped."""
    idle: OrderedDict[str, None] = field(default_factory=OrderedDict)
    """Slots, longest idle first."""
    num_running: int = 0
    starved_since: float | None = None
    """When work was first seen waiting with no slot idle or playing, on the ledger's clock."""


@dataclass(slots=True, eq=False)
class _Slot:
    tag: str
    lease_id: int | None = None
    """The lease that occupies the slot, whether it still counts or was cancelled; None: idle."""


class RolloutLedger:
    """See the module. `now` is in seconds on any clock that does not run backwards."""

    def __init__(self, config: LedgerConfig, state: LedgerState | None = None) -> None:
        self.config = config
        self.version = 0
        self._tags = {tag: _Tag(weight) for tag, weight in config.tag_weights.items()}
        self._retired_cursors: dict[str, int] = {}
        self._slots: dict[str, _Slot] = {}
        self._slot_of: dict[int, str] = {}
        self._groups: dict[int, _Group] = {}
        self._ready: dict[int, _Group] = {}
        # Every lease has the same time to finish, so the order of grants is the order of deadlines.
        self._running: OrderedDict[int, _Seat] = OrderedDict()
        self._held: dict[int, _Seat] = {}
        self._groups_in_training = 0
        self._next_group_id = 0
        self._next_lease_id = 0
        self._next_finish = 0
        self._ends = dict.fromkeys(LeaseEnd, 0)
        self._fruitless: Counter[Reason] = Counter()
        self._num_fruitless = 0
        self._is_stalled = False
        self._suspended_at: float | None = None
        self._suspended_s = 0.0
        if state is not None:
            self._restore(state)

    # What the shell may ask.

    @property
    def counts(self) -> LedgerCounts:
        num_waiting = sum(seat.status is _Status.VALID for seat in self._held.values())
        return LedgerCounts(
            started=self._next_lease_id,
            open=len(self._running) + num_waiting,
            **{str(end): count for end, count in self._ends.items()},
        )

    @property
    def num_open_groups(self) -> int:
        """Groups started and not taken."""
        return len(self._groups)

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
        times = [tag.starved_since + self.config.episode_deadline_s for tag in self._tags.values()
                 if tag.starved_since is not None and not self._is_stalled]  # fmt: skip
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
            cursors={**self._retired_cursors, **{name: tag.cursor for name, tag in self._tags.items()}},
            shares={name: tag.share for name, tag in self._tags.items()},
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

    # Events.

    def add_slots(self, slots: Mapping[str, str], now: float) -> list[Command]:
        """Slot ids with the tag each can play. A known id is a slot that was lost and came back."""
        for slot_id, tag in slots.items():
            if tag not in self._tags:
                raise ValueError(
                    f"slot {slot_id!r} plays tag {tag!r}, which is not one of {list(self._tags)}"
                )
        commands: list[Command] = []
        self._lose_slots([slot_id for slot_id in slots if slot_id in self._slots], commands)
        for slot_id, tag in slots.items():
            self._slots[slot_id] = _Slot(tag)
            self._tags[tag].idle[slot_id] = None
        return self._advance(now, commands)

    def slots_idle(self, slot_ids: Iterable[str], now: float) -> list[Command]:
        """These slots are free after a Cancel. `finished` of the cancelled lease says the same.

        A slot whose lease still counts is left alone: the report belongs to an earlier lease.
        """
        for slot_id in slot_ids:
            slot = self._slots.get(slot_id)
            if slot is not None and slot.lease_id is not None and slot.lease_id not in self._running:
                self._free_slot(slot.lease_id)
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
        is_first_report = self._free_slot(lease_id)
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

        # `_ready` is in order of completion and the sort is stable.
        chosen = sorted(self._ready.values(), key=self._oldest_version)[:num_groups]
        batch = Batch(version=self.version, groups=tuple(self._deliver(group) for group in chosen))
        self._groups_in_training += num_groups
        self._fruitless.clear()
        self._num_fruitless = 0
        self._is_stalled = False
        if self._groups_in_training >= self.config.groups_per_batch:
            self._drop_what_cannot_be_delivered(commands)
        return batch, self._advance(now, commands)

    # Groups.

    def _start_groups(self) -> None:
        """Start tasks while there is room, each of the tag that is furthest behind its share."""
        room = self._room() - len(self._groups)
        for _ in range(room):
            name, tag = min(self._tags.items(), key=lambda item: item[1].share / item[1].weight)
            task = Task(tag=name, split=self.config.split, index=tag.cursor)
            tag.cursor += 1
            tag.share += 1
            self._add_group(self._next_group_id, task, attempt=0)
            self._next_group_id += 1

    def _room(self) -> int:
        """Groups that may be open now."""
        if self.config.alpha == 0 and self._groups_in_training >= self.config.groups_per_batch:
            return 0
        room = self.config.capacity_groups + self.config.num_groups_redundancy
        return room - self._groups_in_training

    def _add_group(self, group_id: int, task: Task, attempt: int) -> None:
        group = _Group(group_id, task)
        for member in range(self.config.members_per_group):
            seat = _Seat(group, member, attempt, _Status.PENDING)
            group.seats.append(seat)
            self._tags[task.tag].pending.append(seat)
        group.num_outstanding = len(group.seats)
        self._groups[group_id] = group

    def _settle(self, group: _Group, commands: list[Command]) -> None:
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
            for seat in group.seats:
                if seat.status is _Status.FAILED:
                    self._vacate(seat, LeaseEnd.FAILED, Reason.EPISODE_FAILED, commands)
                    self._lease_again(seat, commands)

    def _complete(self, group: _Group, commands: list[Command]) -> None:
        """Keep the first valid members, then the first failed ones; the others are spare."""
        finished = [seat for seat in group.seats if seat.status in (_Status.VALID, _Status.FAILED)]
        finished.sort(key=lambda seat: (seat.status is _Status.FAILED, seat.finish_order))
        winners = {seat.member for seat in finished[: self.config.group_size]}
        for seat in group.seats:
            if seat.member not in winners:
                self._vacate(seat, LeaseEnd.CANCELLED, Reason.SPARE, commands)
        self._ready[group.group_id] = group
        commands.append(GroupReady(group_id=group.group_id, lease_ids=_lease_ids(group)))

    def _deliver(self, group: _Group) -> BatchGroup:
        delivered = BatchGroup(
            group_id=group.group_id,
            task=group.task,
            lease_ids=_lease_ids(group),
            failed_lease_ids=tuple(s.lease_id for s in group.seats if s.status is _Status.FAILED),
        )
        for lease_id in delivered.lease_ids:
            del self._held[lease_id]
        self._ends[LeaseEnd.DELIVERED] += group.num_valid
        del self._groups[group.group_id]
        del self._ready[group.group_id]
        return delivered

    def _drop_group(
        self, group: _Group, finished_end: LeaseEnd, reason: Reason, commands: list[Command]
    ) -> None:
        """End a group undelivered: what finished ends as told, what runs is cancelled."""
        del self._groups[group.group_id]
        self._ready.pop(group.group_id, None)
        for seat in group.seats:
            end = LeaseEnd.CANCELLED if seat.status is _Status.RUNNING else finished_end
            self._vacate(seat, end, reason, commands)

    def _oldest_version(self, group: _Group) -> int:
        versions = [seat.oldest_version for seat in group.seats if seat.oldest_version is not None]
        return min(versions, default=self.version)

    # Staleness.

    def _sweep(self, groups: Iterable[_Group], min_version: int, commands: list[Command]) -> None:
        """Lease again what is older than `min_version`, running or finished."""
        for group in list(groups):
            is_changed = False
            for seat in group.seats:
                version = seat.version if seat.status is _Status.RUNNING else seat.oldest_version
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

    # Seats.

    def _record(
        self, seat: _Seat, failure: Reason | None, oldest_version: int | None, commands: list[Command]
    ) -> None:
        """A running seat's episode is over, with a result or without."""
        group = seat.group
        self._leave_running(seat)
        self._held[seat.lease_id] = seat
        seat.oldest_version = oldest_version
        seat.finish_order = self._next_finish
        self._next_finish += 1
        group.num_outstanding -= 1
        if failure is None:
            seat.status = _Status.VALID
            group.num_valid += 1
        else:
            seat.status = _Status.FAILED
            self._end(LeaseEnd.FAILED, failure)
        self._settle(group, commands)

    def _vacate(self, seat: _Seat, end: LeaseEnd, reason: Reason, commands: list[Command]) -> None:
        """Take out of the seat whatever fills it; a lease that has not ended ends so."""
        group = seat.group
        if seat.status is _Status.RUNNING:
            self._leave_running(seat)
            self._end(end, reason)
            group.num_outstanding -= 1
            if seat.lease_id in self._slot_of:
                commands.append(self._cancel(seat, reason))
        elif seat.status is _Status.VALID:
            del self._held[seat.lease_id]
            self._end(end, reason)
            group.num_valid -= 1
            commands.append(Discard(lease_id=seat.lease_id, end=end, reason=reason))
        elif seat.status is _Status.FAILED:
            del self._held[seat.lease_id]
            commands.append(Discard(lease_id=seat.lease_id, end=LeaseEnd.FAILED, reason=reason))
        elif seat.status is _Status.PENDING:
            group.num_outstanding -= 1
        seat.status = _Status.DROPPED
        seat.lease_id = -1
        seat.oldest_version = None

    def _lease_again(self, seat: _Seat, commands: list[Command]) -> None:
        """Queue a vacated seat ahead of younger work; give its group up when it had its share of attempts."""
        group = seat.group
        if group.group_id not in self._groups:
            return
        seat.attempt += 1
        if seat.attempt >= self.config.max_group_attempts:
            self._drop_group(group, LeaseEnd.FILTERED, Reason.GIVEN_UP, commands)
            return
        seat.status = _Status.PENDING
        group.num_outstanding += 1
        self._tags[group.task.tag].pending.appendleft(seat)

    def _leave_running(self, seat: _Seat) -> None:
        del self._running[seat.lease_id]
        self._tags[seat.group.task.tag].num_running -= 1

    @staticmethod
    def _cancel(seat: _Seat, reason: Reason) -> Cancel:
        return Cancel(lease_id=seat.lease_id, slot_id=seat.slot_id, reason=reason)

    def _end(self, end: LeaseEnd, reason: Reason) -> None:
        self._ends[end] += 1
        # With a batch ready it is the trainer that is slow, however much is thrown away meanwhile.
        if reason.is_waste and len(self._ready) < self.config.groups_per_batch:
            self._fruitless[reason] += 1
            self._num_fruitless += 1

    # Slots.

    def _free_slot(self, lease_id: int) -> bool:
        """Make the lease's slot idle; False when it holds none."""
        slot_id = self._slot_of.pop(lease_id, None)
        if slot_id is None:
            return False
        slot = self._slots[slot_id]
        slot.lease_id = None
        self._tags[slot.tag].idle[slot_id] = None
        return True

    def _lose_slots(self, slot_ids: Iterable[str], commands: list[Command]) -> None:
        lost: list[_Seat] = []
        for slot_id in slot_ids:
            slot = self._slots.pop(slot_id, None)
            if slot is None:
                continue
            self._tags[slot.tag].idle.pop(slot_id, None)
            if slot.lease_id is not None:
                del self._slot_of[slot.lease_id]
                if slot.lease_id in self._running:
                    lost.append(self._running[slot.lease_id])
        for seat in lost:
            # Giving a group up may have ended the next one of `lost`.
            if seat.status is _Status.RUNNING:
                self._vacate(seat, LeaseEnd.CANCELLED, Reason.WORKER_LOST, commands)
                self._lease_again(seat, commands)

    def _advance(self, now: float, commands: list[Command]) -> list[Command]:
        """Start and grant what can be, after an event; say so when nothing will ever come of it."""
        if self._suspended_at is None:
            self._start_groups()
            clock = now - self._suspended_s
            for name, tag in self._tags.items():
                while tag.pending and (tag.idle or tag.pending[0].status is not _Status.PENDING):
                    seat = tag.pending.popleft()
                    if seat.status is _Status.PENDING:
                        commands.append(self._grant(seat, tag, now))
                is_starved = bool(tag.pending) and tag.num_running == 0
                if not is_starved:
                    tag.starved_since = None
                elif tag.starved_since is None:
                    tag.starved_since = clock
                elif clock - tag.starved_since >= self.config.episode_deadline_s:
                    self._stall(self._starved_message(name), commands)
        if self._num_fruitless >= self.config.max_fruitless_batches * self.config.batch_size:
            self._stall(self._fruitless_message(), commands)
        return commands

    def _grant(self, seat: _Seat, tag: _Tag, now: float) -> Grant:
        slot_id, _ = tag.idle.popitem(last=False)
        lease_id = self._next_lease_id
        self._next_lease_id += 1
        seat.status = _Status.RUNNING
        seat.lease_id = lease_id
        seat.slot_id = slot_id
        seat.version = self.version
        seat.deadline = now - self._suspended_s + self.config.episode_deadline_s
        self._running[lease_id] = seat
        self._slots[slot_id].lease_id = lease_id
        self._slot_of[lease_id] = slot_id
        tag.num_running += 1
        lease = Lease(
            lease_id=lease_id,
            group_id=seat.group.group_id,
            member=seat.member,
            attempt=seat.attempt,
            task=seat.group.task,
            version=self.version,
            deadline=now + self.config.episode_deadline_s,
        )
        return Grant(lease=lease, slot_id=slot_id)

    # No progress.

    def _stall(self, message: str, commands: list[Command]) -> None:
        if not self._is_stalled:
            self._is_stalled = True
            commands.append(Stalled(message=message))

    def _fruitless_message(self) -> str:
        reasons = ", ".join(f"{count} {reason}" for reason, count in self._fruitless.most_common())
        return (
            f"no batch could be delivered while {self._num_fruitless} trajectories were thrown away in a row "
            f"(the limit is max_fruitless_batches {self.config.max_fruitless_batches} x rollout_batch_size "
            f"{self.config.batch_size}): {reasons}. Look at the failures in trajectories/, loosen the group "
            "filter, shorten the episodes or raise async_generation_ratio; the limit is max_fruitless_batches"
        )

    def _starved_message(self, tag: str) -> str:
        num_slots = sum(slot.tag == tag for slot in self._slots.values())
        return (
            f"tag {tag!r} has tasks waiting and no environment to play them for "
            f"{self.config.episode_deadline_s:g} s: "
            + (
                f"its {num_slots} environments hang and do not come back after a cancel"
                if num_slots
                else "no worker offers it"
            )
            + ". Look at the workers' logs, or remove the tag from the env manager's `tags`"
        )

    # Restart.

    def _restore(self, state: LedgerState) -> None:
        self.version = state.version
        self._next_group_id = state.next_group_id
        self._next_lease_id = state.next_lease_id
        self._ends = {end: state.ends[end.value] for end in LeaseEnd}
        is_same_mixture = dict(state.tag_weights) == dict(self.config.tag_weights)
        for name, cursor in state.cursors.items():
            if name in self._tags:
                self._tags[name].cursor = cursor
            else:
                self._retired_cursors[name] = cursor
        if is_same_mixture:
            for name, share in state.shares.items():
                self._tags[name].share = share
        for group in state.unfinished:
            if group.tag in self._tags:
                task = Task(tag=group.tag, split=self.config.split, index=group.index)
                self._add_group(group.group_id, task, group.attempt)


def _lease_ids(group: _Group) -> tuple[int, ...]:
    """Leases held for a complete group, in the order of members."""
    return tuple(s.lease_id for s in group.seats if s.status in (_Status.VALID, _Status.FAILED))
