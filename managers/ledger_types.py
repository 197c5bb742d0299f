"""What crosses the ledger's boundary: its configuration, leases, commands, batches and saved state."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

from envsdk import run_limits
from envsdk.failures import ConfigurationError, StorageError
from envsdk.trajectory import Task

STATE_FORMAT = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerConfig:
    """Checked when made: a ConfigurationError names the key and what to do."""

    batch_size: int
    """Trajectories per batch (`rollout_batch_size`), divisible by `group_size`."""
    group_size: int
    """Trajectories per delivered group."""
    alpha: float
    """`async_generation_ratio`: batches generated ahead; may be fractional, 0 is synchronous."""
    tag_weights: Mapping[str, int]
    """Groups per tag: the mixture, in any unit."""
    split: str = "train"
    group_size_redundancy: int = 0
    """Spare members per group; the first `group_size` win."""
    num_groups_redundancy: int = 0
    """Spare groups; the first complete ones win."""
    min_group_size: int | None = None
    """Valid (not failed) members a delivered group needs, from 0 (deliver whatever came of it) to
    `group_size`; None: half of `group_size` rounded up, and at least 2 where there are 2."""
    episode_deadline_s: float = 600.0
    """Seconds from the grant to the end of an episode; suspension does not count."""
    max_group_attempts: int = 8
    """Leases one member may use up (stale, failed, worker lost) before its group is given up."""
    max_fruitless_batches: int = 10
    """Batches' worth of trajectories thrown away with nothing delivered before the run is stalled. No key of
    the file: `managers.wiring` sets it."""

    def __post_init__(self) -> None:
        def require(holds: bool, message: str) -> None:
            if not holds:
                raise ConfigurationError(message)

        require(self.group_size >= 1, f"group_size is {self.group_size}; it must be at least 1")
        require(
            self.batch_size >= 1 and self.batch_size % self.group_size == 0,
            f"rollout_batch_size is {self.batch_size}, which is not a positive multiple of group_size "
            f"{self.group_size}; change one of them",
        )
        require(
            math.isfinite(self.alpha) and self.alpha >= 0,
            f"async_generation_ratio is {self.alpha}; it must be a finite number >= 0",
        )
        require(bool(self.tag_weights), "no tags: name at least one under the env manager's `tags`")
        for tag, weight in self.tag_weights.items():
            require(weight >= 1, f"tag {tag!r} has {weight} groups; give it at least 1 or remove the tag")
        for name in ("group_size_redundancy", "num_groups_redundancy"):
            require(getattr(self, name) >= 0, f"{name} is {getattr(self, name)}; it must be >= 0")
        require(
            self.min_group_size is None or 0 <= self.min_group_size <= self.group_size,
            f"min_group_size is {self.min_group_size}; it must be between 0 and group_size {self.group_size}",
        )
        require(
            self.episode_deadline_s > 0, f"episode_deadline_s is {self.episode_deadline_s}; it must be > 0"
        )
        require(
            self.max_group_attempts >= 1,
            f"max_group_attempts is {self.max_group_attempts}; it must be at least 1",
        )

    @property
    def groups_per_batch(self) -> int:
        return self.batch_size // self.group_size

    @property
    def members_per_group(self) -> int:
        """Members started per group, spares included."""
        return self.group_size + self.group_size_redundancy

    @property
    def max_staleness(self) -> int:
        """Versions a delivered token may be behind the trainer."""
        return run_limits.max_staleness(self.alpha)

    @property
    def min_valid(self) -> int:
        """`min_group_size` with its default filled in."""
        return run_limits.required_group_size(self.group_size, self.min_group_size)

    @property
    def capacity_groups(self) -> int:
        """Groups that fit into floor((1 + alpha) x batch_size) trajectories, without redundancy."""
        return run_limits.capacity(self.alpha, self.batch_size) // self.group_size


class LeaseEnd(StrEnum):
    """How a lease ended. Each lease ends once."""

    DELIVERED = "delivered"
    """Valid and in a batch."""
    FILTERED = "filtered"
    """Finished, but its group was rejected or given up."""
    STALE = "stale"
    """Too old to be delivered, running or finished."""
    FAILED = "failed"
    """No outcome, past its deadline, or its worker lost at the last of `max_group_attempts`; stays `failed`
    when it is delivered to fill a group."""
    CANCELLED = "cancelled"
    """Not needed any more, or its worker was lost, or the run was restarted."""


class Reason(StrEnum):
    """Why a lease was cancelled or its result discarded."""

    TOO_OLD = "too old for async_generation_ratio"
    DEADLINE = "past the episode deadline"
    EPISODE_FAILED = "episode failed"
    WORKER_LOST = "worker lost"
    REJECTED = "rejected by the group filter"
    GIVEN_UP = "group given up after max_group_attempts"
    SPARE = "spare member not needed"
    SURPLUS = "spare group not needed"
    LATE = "reported after the lease had ended"

    @property
    def is_waste(self) -> bool:
        """Whether a run in which nothing but this happens makes no progress."""
        return self not in (Reason.SPARE, Reason.SURPLUS, Reason.LATE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Lease:
    """The right and duty to run one episode."""

    lease_id: int
    """Unique in a run, restarts from a saved state included; increases in the order of grants."""
    group_id: int
    member: int
    """In [0, group_size + group_size_redundancy)."""
    attempt: int
    """Leases this member used up before, from 0."""
    task: Task
    version: int
    """The trainer's version when the lease was granted."""
    deadline: float
    """On the shell's clock, as of the grant; a suspension moves the ledger's own deadline later."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Grant:
    """Play this episode on this slot."""

    lease: Lease
    slot_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Cancel:
    """Stop this running episode; the slot counts as busy until it is reported free."""

    lease_id: int
    slot_id: str
    reason: Reason


@dataclass(frozen=True, slots=True, kw_only=True)
class Discard:
    """Drop the result held for this finished lease: it will not be delivered."""

    lease_id: int
    end: LeaseEnd
    reason: Reason


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupReady:
    """This group is complete; it may be rejected until it is taken."""

    group_id: int
    lease_ids: tuple[int, ...]
    """The members that would be delivered, in the order of `member`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stalled:
    """No batch will ever be ready; sent once, until something is delivered."""

    message: str


Command = Grant | Cancel | Discard | GroupReady | Stalled


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchGroup:
    """One group of a batch."""

    group_id: int
    task: Task
    lease_ids: tuple[int, ...]
    """Exactly `group_size`, in the order of `member`."""
    failures: Mapping[int, Reason]
    """By lease, why it has no outcome and is to be masked; nothing is held for one that ended at its
    deadline, however late it reports, or whose worker was lost."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """What one `take` delivers."""

    version: int
    """The trainer's version at the take."""
    groups: tuple[BatchGroup, ...]

    @property
    def lease_ids(self) -> tuple[int, ...]:
        return tuple(lease_id for group in self.groups for lease_id in group.lease_ids)


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerCounts:
    """Leases so far: `started == open + delivered + filtered + stale + failed + cancelled`."""

    started: int
    open: int
    """Running, or finished without failure and waiting for a batch."""
    delivered: int
    filtered: int
    stale: int
    failed: int
    cancelled: int


@dataclass(frozen=True, slots=True, kw_only=True)
class UnfinishedGroup:
    """A group that was started and not delivered; it is leased again after a restart."""

    group_id: int
    tag: str
    index: int
    attempt: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerState:
    """What a checkpoint holds of the ledger. Leases open when it was made count as cancelled in it."""

    version: int
    next_group_id: int
    next_lease_id: int
    cursors: Mapping[str, int]
    """Next task index per tag."""
    shares: Mapping[str, int]
    """Groups started per tag under the present mixture."""
    tag_weights: Mapping[str, int]
    """The mixture `shares` was counted under."""
    ends: Mapping[str, int]
    """Leases by how they ended."""
    unfinished: tuple[UnfinishedGroup, ...]

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON types."""
        return {"format": STATE_FORMAT, **asdict(self)}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> LedgerState:
        """The inverse of `to_dict`; StorageError when it was written by another format."""
        values = dict(data)
        if (found := values.pop("format", None)) != STATE_FORMAT:
            raise StorageError(
                f"the checkpoint's ledger has format {found}, this version reads {STATE_FORMAT}: "
                "resume with the version that wrote it, or start a new run"
            )
        values["unfinished"] = tuple(UnfinishedGroup(**group) for group in values["unfinished"])
        return cls(**values)
