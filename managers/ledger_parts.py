"""Parts of the ledger: the order of tags and tasks, the free slots, and the check for a stall."""

from __future__ import annotations

import math
from collections import Counter, OrderedDict, deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto

from envsdk.contracts import run_limits
from envsdk.contracts.trajectory import Task
from envsdk.managers.ledger_types import CancelReason, LedgerConfig


class Status(Enum):
    """Status of a group member; `ledger.py` draws the life cycle."""

    PENDING = auto()
    RUNNING = auto()
    VALID = auto()
    FAILED = auto()
    DROPPED = auto()


@dataclass(slots=True, eq=False)
class GroupMember:
    """One member of one group, and its current lease."""

    group: Group
    index: int
    """Position in the group."""
    attempt: int
    """How many leases this member used up before the current one."""
    status: Status = Status.DROPPED
    lease_id: int = -1
    slot_id: str = ""
    version: int = -1
    """The trainer's version at the grant. No token is older, unless an engine lagged behind."""
    oldest_version: int | None = None
    """Oldest version among the finished episode's sampled tokens, as reported."""
    failure: CancelReason | None = None
    """Why the finished episode has no outcome; None when it has one."""
    finish_order: int = -1
    deadline: float = 0.0
    """On the ledger's clock, which stops while suspended."""
    outcome: tuple[bool, float] | None = None
    """Success and reward of the finished episode, where a task sampler asks for them."""


@dataclass(slots=True, eq=False)
class Group:
    """A task that was started and not yet delivered."""

    group_id: int
    task: Task
    members: list[GroupMember] = field(default_factory=list)
    num_valid: int = 0
    num_outstanding: int = 0
    """Members that are pending or running."""

    def lease_ids(self, *statuses: Status) -> tuple[int, ...]:
        """Leases of the members with one of these statuses, in the order of members."""
        return tuple(member.lease_id for member in self.members if member.status in statuses)

    @property
    def oldest_version(self) -> int | None:
        """Oldest version of the finished members' tokens; None where none sampled one."""
        return run_limits.version_of_group(member.oldest_version for member in self.members)


class TagOrder:
    """The usual order: the tag furthest behind its share comes next, and of each tag the index from 0 on.

    The order ignores run-time events, so a slow tag gets the same share as a fast one.
    """

    def __init__(self, weights: Mapping[str, int], split: str) -> None:
        self._weights = dict(weights)
        self.split = split
        self.cursors = dict.fromkeys(weights, 0)
        """Next index per tag. May contain tags of an earlier configuration."""
        self.shares = dict.fromkeys(weights, 0)
        """Tasks started per tag since the weights last changed."""

    @property
    def tags(self) -> Sequence[str]:
        """All of them."""
        return list(self._weights)

    def next_tag(self) -> str:
        """The next tag; counts towards its share."""
        return self._next_of(self.shares)

    def give_back(self, tag: str) -> None:
        """A group of this tag counts no longer: another one takes its place."""
        self.shares[tag] -= 1

    def due(self, num_groups: int, num_open: Mapping[str, int]) -> Counter[str]:
        """How many groups of each tag come next after those that were delivered, that is, are not open.

        They are the first of those that `next_tag` started, so none of them is waited for in vain.
        """
        shares = {tag: self.shares[tag] - num_open.get(tag, 0) for tag in self._weights}
        return Counter(self._next_of(shares) for _ in range(num_groups))

    def _next_of(self, shares: dict[str, int]) -> str:
        tag = min(self._weights, key=lambda tag: shares[tag] / self._weights[tag])
        shares[tag] += 1
        return tag

    def next_index(self, tag: str) -> int:
        """The next index of the tag."""
        self.cursors[tag] += 1
        return self.cursors[tag] - 1

    def restore(
        self, cursors: Mapping[str, int], shares: Mapping[str, int], weights: Mapping[str, int]
    ) -> None:
        """Continue from a saved state. If the weights have changed, the shares are counted from 0 again."""
        self.cursors.update(cursors)
        if dict(weights) == self._weights:
            self.shares.update(shares)


@dataclass(slots=True, eq=False)
class _Tag:
    pending: deque[GroupMember] = field(default_factory=deque)
    """Waiting members. Some may have been dropped since; `matches` skips them."""
    idle: OrderedDict[str, None] = field(default_factory=OrderedDict)
    """Idle slots, the longest idle first."""
    num_running: int = 0
    starved_since: float | None = None
    """When a member was first seen waiting with no slot idle or playing, on the ledger's clock."""


@dataclass(slots=True, eq=False)
class _Slot:
    tag: str
    lease_id: int | None = None
    """The lease that occupies the slot, which may have been cancelled; None when the slot is idle."""
    is_retired: bool = False
    """The slot is removed when its lease leaves it."""


class SlotPool:
    """Matches waiting members with idle slots of the same tag, and knows which lease occupies each slot.

    slot: idle -> occupied by a lease -> freed when that lease is reported, or removed
    """

    def __init__(self, tags: Mapping[str, int]) -> None:
        self._tags = {tag: _Tag() for tag in tags}
        self._slots: dict[str, _Slot] = {}
        self._slot_of: dict[int, str] = {}

    def __contains__(self, slot_id: str) -> bool:
        return slot_id in self._slots

    def check_tag(self, slot_id: str, tag: str) -> None:
        """ValueError when no task has this tag."""
        if tag not in self._tags:
            known = ", ".join(self._tags)
            raise ValueError(f"slot {slot_id!r} plays tag {tag!r}, which is not one of {known}")

    def add(self, slot_id: str, tag: str) -> None:
        """Add an idle slot."""
        self._slots[slot_id] = _Slot(tag)
        self._tags[tag].idle[slot_id] = None

    def remove(self, slot_id: str) -> int | None:
        """Remove the slot; returns the lease that occupied it, if any."""
        slot = self._slots.pop(slot_id, None)
        if slot is None:
            return None
        self._tags[slot.tag].idle.pop(slot_id, None)
        if slot.lease_id is not None:
            del self._slot_of[slot.lease_id]
        return slot.lease_id

    def retire(self, slot_id: str) -> None:
        """Remove the slot, now or when the lease that occupies it leaves it."""
        slot = self._slots.get(slot_id)
        if slot is None:
            return
        if slot.lease_id is None:
            self.remove(slot_id)
        else:
            slot.is_retired = True

    def free(self, lease_id: int) -> bool:
        """Make the slot of this lease idle, or remove it if it is retired. False when there is none."""
        slot_id = self._slot_of.pop(lease_id, None)
        if slot_id is None:
            return False
        slot = self._slots[slot_id]
        slot.lease_id = None
        if slot.is_retired:
            del self._slots[slot_id]
        else:
            self._tags[slot.tag].idle[slot_id] = None
        return True

    def lease_on(self, slot_id: str) -> int | None:
        """The lease that occupies this slot."""
        slot = self._slots.get(slot_id)
        return None if slot is None else slot.lease_id

    def is_occupied_by(self, lease_id: int) -> bool:
        """Whether this lease occupies a slot."""
        return lease_id in self._slot_of

    def queue(self, member: GroupMember, *, first: bool = False) -> None:
        """Put the member at the end of its tag's queue, or at the front (`first`)."""
        pending = self._tags[member.group.task.tag].pending
        if first:
            pending.appendleft(member)
        else:
            pending.append(member)

    def matches(self) -> Iterator[tuple[GroupMember, str]]:
        """Pairs of a waiting member and an idle slot; `occupy` the slot before asking for the next pair."""
        for tag in self._tags.values():
            while tag.pending and (tag.idle or tag.pending[0].status is not Status.PENDING):
                member = tag.pending.popleft()
                if member.status is Status.PENDING:
                    yield member, next(iter(tag.idle))

    def occupy(self, slot_id: str, lease_id: int) -> None:
        """Give this idle slot to a lease."""
        slot = self._slots[slot_id]
        slot.lease_id = lease_id
        self._slot_of[lease_id] = slot_id
        tag = self._tags[slot.tag]
        del tag.idle[slot_id]
        tag.num_running += 1

    def stop_counting(self, tag: str) -> None:
        """A lease of this tag finished or ended. Its slot may still be occupied."""
        self._tags[tag].num_running -= 1

    def starved_tag(self, clock: float, patience_s: float) -> str | None:
        """The first tag whose members have waited `patience_s` with no slot idle or playing."""
        starved = None
        for name, tag in self._tags.items():
            # After `matches`, members are pending only for tags without an idle slot.
            if not tag.pending or tag.num_running:
                tag.starved_since = None
            elif tag.starved_since is None:
                tag.starved_since = clock
            elif clock - tag.starved_since >= patience_s:
                starved = starved or name
        return starved

    def starved_since(self) -> float | None:
        """When the first tag that is starved now became so, on the ledger's clock."""
        times = [tag.starved_since for tag in self._tags.values() if tag.starved_since is not None]
        return min(times, default=None)

    def room(self, tag: str) -> int:
        """Idle slots of this tag, less the members that wait for one."""
        found = self._tags[tag]
        return len(found.idle) - sum(member.status is Status.PENDING for member in found.pending)

    @property
    def num_waiting(self) -> int:
        """Members of all tags that wait for a slot."""
        return sum(member.status is Status.PENDING for tag in self._tags.values() for member in tag.pending)

    @property
    def has_idle_slot(self) -> bool:
        """Whether any slot is idle."""
        return any(tag.idle for tag in self._tags.values())

    def num_slots(self, tag: str) -> int:
        """Slots of this tag that take leases."""
        return sum(slot.tag == tag and not slot.is_retired for slot in self._slots.values())


class ProgressGuard:
    """Counts the trajectories thrown away between deliveries, and reports once when there are too many."""

    def __init__(self, config: LedgerConfig) -> None:
        self._config = config
        self._wasted: Counter[CancelReason] = Counter()
        self._num_wasted = 0
        self.has_stalled = False

    def waste(self, reason: CancelReason) -> None:
        """One trajectory was thrown away."""
        self._wasted[reason] += 1
        self._num_wasted += 1

    def delivered(self) -> None:
        """A batch was delivered: start counting again."""
        self._wasted.clear()
        self._num_wasted = 0
        self.has_stalled = False

    def verdict(self, starved_tag: str | None, num_slots_of_tag: int) -> str | None:
        """Why no batch will ever come: a message the first time there is a reason, else None."""
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
            "group_filters, or raise async_generation_ratio or max_staleness"
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


_STEP = 0.25
"""Batches by which the depth changes at a time, at least one group."""
_WINDOW = 4
"""Batches that are judged together."""
_MEMORY = 12
"""Windows for which a depth that was too little is not tried again."""


class DepthControl:
    """Owner: the scheduler, which knows when the trainer asked for a batch and when it got one."""

    def __init__(self, *, alpha: float, most: float, max_wait_share: float, groups_per_batch: int) -> None:
        """`alpha` is the depth at the start, `most` the largest, in batches."""
        self.alpha = alpha
        self._step = max(_STEP, 1 / groups_per_batch)
        self._most = most
        self._target = max_wait_share
        self._num_unsettled = self._settling()
        self._waited_s = self._lasted_s = 0.0
        self._num_seen = self._num_idle = 0
        self._windows = 0
        self._too_little: tuple[float, int] | None = None
        """The depth that was found to be too little last, and in which window."""

    def observe(self, *, waited_s: float, lasted_s: float, had_idle_slot: bool) -> float | None:
        """The trainer waited for `waited_s` of the `lasted_s` seconds since the batch before.

        `had_idle_slot`: when the batch was complete, an environment had nothing to play. Otherwise a greater
        depth would start nothing: what the trainer waits for is more environments or engines.
        """
        if self._num_unsettled:
            self._num_unsettled -= 1
            return None
        self._waited_s += waited_s
        self._lasted_s += lasted_s
        self._num_seen += 1
        self._num_idle += had_idle_slot
        if self._num_seen < _WINDOW:
            return None
        share = self._waited_s / self._lasted_s if self._lasted_s > 0 else 0.0
        depth_limits = self._num_idle > 0
        self._waited_s = self._lasted_s = 0.0
        self._num_seen = self._num_idle = 0
        self._windows += 1
        return self._change(self._better(share, depth_limits=depth_limits))

    def _better(self, share: float, *, depth_limits: bool) -> float:
        if share > self._target:
            if not depth_limits:
                return self.alpha
            self._too_little = (self.alpha, self._windows)
            return self.alpha + self._step * (2 if share > 2 * self._target else 1)
        less = self.alpha - self._step
        if share < self._target / 2 and less > 0 and not self._was_too_little(less):
            return less
        return self.alpha

    def _was_too_little(self, alpha: float) -> bool:
        if self._too_little is None or self._windows - self._too_little[1] > _MEMORY:
            return False
        return alpha <= self._too_little[0]

    def _change(self, alpha: float) -> float | None:
        alpha = min(alpha, self._most)
        if alpha == self.alpha:
            return None
        self.alpha = alpha
        self._num_unsettled = self._settling()
        return alpha

    def _settling(self) -> int:
        """Batches that were begun under an earlier depth."""
        return math.ceil(self.alpha)


def depth_control(config: LedgerConfig, alpha: float) -> DepthControl | None:
    """What sets the depth of a ledger that begins with `alpha`; None where the configuration gives it."""
    if config.max_wait_share is None:
        return None
    return DepthControl(
        alpha=alpha,
        most=config.staleness_bound,
        max_wait_share=config.max_wait_share,
        groups_per_batch=config.groups_per_batch,
    )
