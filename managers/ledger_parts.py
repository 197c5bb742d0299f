"""The ledger's parts: which task comes next, which slot is free, whether anything is achieved."""

from __future__ import annotations

from collections import Counter, OrderedDict, deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum, auto

from envsdk.managers.ledger_types import LedgerConfig, Reason
from envsdk.trajectory import Task


class Status(Enum):
    """Of one seat; see the module of the ledger for the life cycle."""

    PENDING = auto()
    RUNNING = auto()
    VALID = auto()
    FAILED = auto()
    DROPPED = auto()


@dataclass(slots=True, eq=False)
class Seat:
    """One member of one group, and the lease that fills it now."""

    group: Group
    member: int
    attempt: int
    status: Status = Status.DROPPED
    lease_id: int = -1
    slot_id: str = ""
    version: int = -1
    """The trainer's version at the grant: no token can be older, unless an engine lagged."""
    oldest_version: int | None = None
    """Of the finished episode's sampled tokens, as reported."""
    failure: Reason | None = None
    """Why the finished episode has no outcome; None when it has one."""
    finish_order: int = -1
    deadline: float = 0.0
    """On the ledger's clock, which stands still while suspended."""


@dataclass(slots=True, eq=False)
class Group:
    """A task that was started and not delivered."""

    group_id: int
    task: Task
    seats: list[Seat] = field(default_factory=list)
    num_valid: int = 0
    num_outstanding: int = 0
    """Seats pending or running."""

    def lease_ids(self, *statuses: Status) -> tuple[int, ...]:
        """Of the seats with one of these statuses, in the order of members."""
        return tuple(seat.lease_id for seat in self.seats if seat.status in statuses)


class Mixture:
    """Names the next task: of the tag that is furthest behind its share, by index from 0 in each tag.

    Depends on nothing that happens, so a slow tag gets its share like any other.
    """

    def __init__(self, weights: Mapping[str, int], split: str) -> None:
        self._weights = dict(weights)
        self._split = split
        self.cursors = dict.fromkeys(weights, 0)
        """Next index per tag; may name tags of an earlier configuration."""
        self.shares = dict.fromkeys(weights, 0)
        """Tasks named per tag since the weights are what they are."""

    def next_task(self) -> Task:
        tag = min(self._weights, key=lambda tag: self.shares[tag] / self._weights[tag])
        task = Task(tag=tag, split=self._split, index=self.cursors[tag])
        self.cursors[tag] += 1
        self.shares[tag] += 1
        return task

    def restore(
        self, cursors: Mapping[str, int], shares: Mapping[str, int], weights: Mapping[str, int]
    ) -> None:
        """Go on where a run stopped; under other weights than its own, count shares afresh."""
        self.cursors.update(cursors)
        if dict(weights) == self._weights:
            self.shares.update(shares)


@dataclass(slots=True, eq=False)
class _Tag:
    pending: deque[Seat] = field(default_factory=deque)
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


class SlotPool:
    """Brings waiting seats and idle slots of the same tag together; knows what occupies each slot.

    slot: idle -> occupied by a lease -> freed by the report of that lease, or removed
    """

    def __init__(self, tags: Mapping[str, int]) -> None:
        self._tags = {tag: _Tag() for tag in tags}
        self._slots: dict[str, _Slot] = {}
        self._slot_of: dict[int, str] = {}

    def __contains__(self, slot_id: str) -> bool:
        return slot_id in self._slots

    def check_tag(self, slot_id: str, tag: str) -> None:
        if tag not in self._tags:
            known = ", ".join(self._tags)
            raise ValueError(f"slot {slot_id!r} plays tag {tag!r}, which is not one of {known}")

    def add(self, slot_id: str, tag: str) -> None:
        self._slots[slot_id] = _Slot(tag)
        self._tags[tag].idle[slot_id] = None

    def remove(self, slot_id: str) -> int | None:
        """Forget the slot; returns the lease that occupied it."""
        slot = self._slots.pop(slot_id, None)
        if slot is None:
            return None
        self._tags[slot.tag].idle.pop(slot_id, None)
        if slot.lease_id is not None:
            del self._slot_of[slot.lease_id]
        return slot.lease_id

    def free(self, lease_id: int) -> bool:
        """Make the slot that this lease occupies idle; False when there is none."""
        slot_id = self._slot_of.pop(lease_id, None)
        if slot_id is None:
            return False
        slot = self._slots[slot_id]
        slot.lease_id = None
        self._tags[slot.tag].idle[slot_id] = None
        return True

    def lease_on(self, slot_id: str) -> int | None:
        slot = self._slots.get(slot_id)
        return None if slot is None else slot.lease_id

    def is_occupied_by(self, lease_id: int) -> bool:
        return lease_id in self._slot_of

    def queue(self, seat: Seat, *, first: bool = False) -> None:
        """Let the seat wait for a slot, behind all others or before them."""
        pending = self._tags[seat.group.task.tag].pending
        if first:
            pending.appendleft(seat)
        else:
            pending.append(seat)

    def matches(self) -> Iterator[tuple[Seat, str]]:
        """Waiting seats with an idle slot for each; the caller must `occupy` it before the next."""
        for tag in self._tags.values():
            while tag.pending and (tag.idle or tag.pending[0].status is not Status.PENDING):
                seat = tag.pending.popleft()
                if seat.status is Status.PENDING:
                    yield seat, next(iter(tag.idle))

    def occupy(self, slot_id: str, lease_id: int) -> None:
        slot = self._slots[slot_id]
        slot.lease_id = lease_id
        self._slot_of[lease_id] = slot_id
        tag = self._tags[slot.tag]
        del tag.idle[slot_id]
        tag.num_running += 1

    def stop_counting(self, tag: str) -> None:
        """One lease of this tag finished or ended; its slot may stay occupied."""
        self._tags[tag].num_running -= 1

    def starved_tag(self, clock: float, patience_s: float) -> str | None:
        """A tag whose work has waited that long with no slot idle or playing."""
        found = None
        for name, tag in self._tags.items():
            # After `matches` there are pending seats only where no slot is idle.
            if not tag.pending or tag.num_running:
                tag.starved_since = None
            elif tag.starved_since is None:
                tag.starved_since = clock
            elif clock - tag.starved_since >= patience_s:
                found = found or name
        return found

    def starved_since(self) -> float | None:
        times = [tag.starved_since for tag in self._tags.values() if tag.starved_since is not None]
        return min(times, default=None)

    def num_slots(self, tag: str) -> int:
        return sum(slot.tag == tag for slot in self._slots.values())


class ProgressGuard:
    """Counts what is thrown away between deliveries, and says once when it was too much."""

    def __init__(self, config: LedgerConfig) -> None:
        self._config = config
        self._wasted: Counter[Reason] = Counter()
        self._num_wasted = 0
        self.has_stalled = False

    def waste(self, reason: Reason) -> None:
        self._wasted[reason] += 1
        self._num_wasted += 1

    def delivered(self) -> None:
        self._wasted.clear()
        self._num_wasted = 0
        self.has_stalled = False

    def verdict(self, starved_tag: str | None, num_slots_of_tag: int) -> str | None:
        """Why no batch will come, the first time there is a reason."""
        if self.has_stalled:
            return None
        message = None
        if self._num_wasted >= self._config.max_fruitless_batches * self._config.batch_size:
            message = self._wasted_message()
        elif starved_tag is not None:
            message = self._starved_message(starved_tag, num_slots_of_tag)
        self.has_stalled = message is not None
        return message

    def _wasted_message(self) -> str:
        config = self._config
        reasons = ", ".join(f"{count} {reason}" for reason, count in self._wasted.most_common())
        return (
            f"no batch could be delivered while {self._num_wasted} trajectories were thrown away in a row: "
            f"{reasons}. The limit is {config.max_fruitless_batches} x rollout_batch_size "
            f"{config.batch_size}. Look at the recorded failures, shorten the episodes, loosen "
            "group_filters, or raise async_generation_ratio"
        )

    def _starved_message(self, tag: str, num_slots: int) -> str:
        cause = (
            f"its {num_slots} environments hang and do not come back after a cancel"
            if num_slots
            else "no worker offers it"
        )
        return (
            f"tag {tag!r} has had tasks waiting and no environment to play them for "
            f"{self._config.episode_deadline_s:g} s: {cause}. Look at the workers' logs, or remove the "
            "tag from the env manager's tags"
        )
