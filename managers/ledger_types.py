"""Types of the ledger's interface: configuration, leases, commands, batches and saved state."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any, Self

from envsdk.algorithms.task_samplers.contract import SamplerConfig
from envsdk.contracts import run_limits
from envsdk.contracts.failures import ConfigurationError, StorageError
from envsdk.contracts.trajectory import Task

STATE_FORMAT = 1
FRUITLESS_BATCHES = 10
"""Default of `LedgerConfig.max_fruitless_batches`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerConfig(run_limits.Staleness):
    """Values as the YAML file's models allow them. ConfigurationError for a batch of no whole groups."""

    batch_size: int
    """Trajectories per batch (`rollout_batch_size`), divisible by `group_size`."""
    group_size: int
    """Trajectories in each delivered group."""
    alpha: float
    """`async_generation_ratio`: how many batches generation may run ahead of training. May be fractional;
    0 is synchronous. Where `max_wait_share` is given, the ledger begins with this depth."""
    tag_weights: Mapping[str, int]
    """Share of each tag among the started groups; only the ratios matter."""
    max_staleness: int | None = None
    """Weight versions that a delivered token may be behind the trainer. None: alpha, rounded up."""
    max_wait_share: float | None = None
    """Share of its time that the trainer may wait for rollouts: `DepthControl` sets the depth accordingly.
    None: alpha is the depth."""
    split: str = "train"
    group_size_redundancy: int = 0
    """Extra members started per group; the first `group_size` to finish are delivered."""
    num_groups_redundancy: int = 0
    """Extra groups kept open; those that complete first are delivered."""
    min_group_size: int | None = None
    """Valid (not failed) members that a delivered group needs, from 0 to `group_size`. None: see
    `run_limits.required_group_size`."""
    episode_deadline_s: float = 600.0
    """Seconds an episode may take from its grant to its end; time spent suspended does not count."""
    max_group_attempts: int = 8
    """Leases that one member may use up (stale, failed, worker lost) before its group is given up."""
    max_fruitless_batches: int = FRUITLESS_BATCHES
    """The ledger reports a stall when this many batches' worth of trajectories are thrown away without a
    delivery. No key of the YAML file sets it; `managers.wiring` derives it from `max_filtered_groups`."""
    task_sampler: SamplerConfig | None = None
    """Who chooses the tasks; None: they come in order."""
    keeps_shares: bool = False
    """Each batch has its share of each tag (`batch_mixture: stratified`), and waits for it."""

    def __post_init__(self) -> None:
        if self.batch_size % self.group_size:
            raise ConfigurationError(
                f"rollout_batch_size is {self.batch_size}, which is not a multiple of group_size "
                f"{self.group_size}; change one of them"
            )

    @property
    def groups_per_batch(self) -> int:
        """Groups in one batch."""
        return self.batch_size // self.group_size

    @property
    def members_per_group(self) -> int:
        """Members started per group, including spares."""
        return self.group_size + self.group_size_redundancy

    @property
    def min_valid(self) -> int:
        """`min_group_size`, or its default."""
        return run_limits.required_group_size(self.group_size, self.min_group_size)

    def capacity_groups(self, alpha: float) -> int:
        """Groups that may be open or in training at this depth, without `num_groups_redundancy`."""
        return run_limits.capacity(alpha, self.batch_size) // self.group_size


class LeaseEnd(StrEnum):
    """How a lease ended. Each lease ends exactly once."""

    DELIVERED = "delivered"
    """Valid, and part of a batch."""
    FILTERED = "filtered"
    """Finished, but its group was rejected or given up."""
    STALE = "stale"
    """Running or finished, and too old to be delivered."""
    FAILED = "failed"
    """No outcome, past its deadline, or its worker was lost at the last of `max_group_attempts`. It stays
    `failed` when it is delivered to fill a group."""
    CANCELLED = "cancelled"
    """No longer needed, or its worker was lost or drained, or the run was restarted."""


class CancelReason(StrEnum):
    """Why a lease was cancelled or its result discarded."""

    TOO_OLD = "too old for async_generation_ratio or max_staleness"
    DEADLINE = "past the episode deadline"
    EPISODE_FAILED = "episode failed"
    WORKER_LOST = "worker lost"
    REJECTED = "rejected by the group filter"
    GIVEN_UP = "group given up after max_group_attempts"
    SPARE = "spare member not needed"
    SURPLUS = "spare group not needed"
    LATE = "reported after the lease had ended"
    UNASSIGNED = "another explorer plays the group"
    DRAINED = "its worker is needed no more, or its node goes away"

    @property
    def is_waste(self) -> bool:
        """Whether a lease that ends for this reason was wasted. A run with nothing but waste stalls."""
        return self not in _NO_WASTE

    @property
    def is_by_choice(self) -> bool:
        """Whether the configuration asks to play more than is trained, and to leave this out."""
        return self in (CancelReason.REJECTED, CancelReason.SPARE, CancelReason.SURPLUS)


_NO_WASTE = (
    CancelReason.SPARE,
    CancelReason.SURPLUS,
    CancelReason.LATE,
    CancelReason.UNASSIGNED,
    CancelReason.DRAINED,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Lease:
    """The right and duty to run one episode."""

    lease_id: int
    """Unique in a run, also after a restart from a saved state. Increases in the order of grants."""
    group_id: int
    member: int
    """Position in the group, in [0, group_size + group_size_redundancy)."""
    attempt: int
    """How many leases this member used up before this one."""
    task: Task
    version: int
    """The trainer's version when the lease was granted."""
    deadline: float
    """On the caller's clock, computed at the grant. A later suspension extends it inside the ledger only."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Grant:
    """Command: play this episode on this slot."""

    lease: Lease
    slot_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Cancel:
    """Command: stop this running episode. The slot counts as busy until it is reported free."""

    lease_id: int
    slot_id: str
    reason: CancelReason


@dataclass(frozen=True, slots=True, kw_only=True)
class Discard:
    """Command: drop the result of this finished lease; it will not be delivered."""

    lease_id: int
    end: LeaseEnd
    reason: CancelReason


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupReady:
    """Command: this group is complete. It may be rejected until it is taken."""

    group_id: int
    lease_ids: tuple[int, ...]
    """Leases of the members that would be delivered, in the order of `Lease.member`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupDropped:
    """Command: this assigned group will not be delivered. Sent by an `AssignedLedger` alone."""

    group_id: int
    reason: CancelReason


@dataclass(frozen=True, slots=True, kw_only=True)
class Stalled:
    """Command: no batch will ever be ready. Sent once until something is delivered."""

    message: str


Command = Grant | Cancel | Discard | GroupReady | GroupDropped | Stalled


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchGroup:
    """One group of a batch."""

    group_id: int
    task: Task
    lease_ids: tuple[int, ...]
    """Exactly `group_size`, in the order of `Lease.member`."""
    failures: Mapping[int, CancelReason]
    """Reasons by lease id why a member has no outcome; such a member is masked. A member that missed its
    deadline or lost its worker has no trajectory, even if it reports later."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """The groups delivered by one `take`."""

    version: int
    """The trainer's version when the batch was taken."""
    groups: tuple[BatchGroup, ...]

    @property
    def lease_ids(self) -> tuple[int, ...]:
        """Leases of all groups, in order."""
        return tuple(lease_id for group in self.groups for lease_id in group.lease_ids)


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerCounts:
    """Number of leases so far: `started == open + delivered + filtered + stale + failed + cancelled`."""

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
    """A group that was started but not delivered; it is played again after a restart."""

    group_id: int
    tag: str
    index: int
    attempt: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DroppedGroup:
    """A group that was started and will never be delivered."""

    group_id: int
    tag: str
    index: int
    reason: str
    """A `CancelReason`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerState:
    """The part of the ledger that a checkpoint stores. Leases that are open then count as cancelled."""

    version: int
    next_group_id: int
    next_lease_id: int
    cursors: Mapping[str, int]
    """Next task index of each tag."""
    shares: Mapping[str, int]
    """Groups started per tag under `tag_weights`."""
    tag_weights: Mapping[str, int]
    """The weights that `shares` was counted under."""
    ends: Mapping[str, int]
    """Number of leases by `LeaseEnd`."""
    unfinished: tuple[UnfinishedGroup, ...]
    alpha: float | None = None
    """The depth. None in states of ledgers whose depth could not change."""
    dropped: tuple[DroppedGroup, ...] = ()
    """What was dropped between the last two batches. A record: a restart has no use for it."""
    task_sampler: Mapping[str, Any] | None = None
    """What the task sampler has learned; None where tasks come in order."""
    prefixes: Mapping[str, Any] | None = None
    """What prefix sampling has learned: the scheduler's."""

    def to_dict(self) -> dict[str, Any]:
        """The state as plain JSON types."""
        return {"format": STATE_FORMAT, **asdict(self)}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """The inverse of `to_dict`. StorageError when the format differs."""
        values = dict(data)
        if (found := values.pop("format", None)) != STATE_FORMAT:
            raise StorageError(
                f"the checkpoint's ledger has format {found}, this version reads {STATE_FORMAT}: "
                "resume with the version that wrote it, or start a new run"
            )
        values["unfinished"] = tuple(UnfinishedGroup(**group) for group in values["unfinished"])
        values["dropped"] = tuple(DroppedGroup(**group) for group in values["dropped"])
        return cls(**values)
