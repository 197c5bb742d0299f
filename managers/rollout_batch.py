"""A batch of rollouts, and what is counted between two batches. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field

from envsdk.contracts.failures import Failure
from envsdk.contracts.trajectory import Trajectory
from envsdk.managers.ledger_types import CancelReason, LedgerCounts


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutBatch:
    """One batch of complete groups. Failed members are part of their group."""

    version: int
    """The trainer's version when the batch was taken."""
    groups: Sequence[Sequence[Trajectory]]
    ledger_counts: Mapping[str, int] = field(default_factory=dict)
    """Ended leases since the start of the run, by how they ended."""
    failures: Mapping[str, int] = field(default_factory=dict)
    """Failed episodes since the last batch, by `boundary/kind`."""
    failing_tags: Mapping[str, str] = field(default_factory=dict)
    """Tags whose episodes since the last batch have all failed, with the last failure."""
    filtered: Mapping[str, int] = field(default_factory=dict)
    """Groups dropped since the last batch, by group filter."""
    discarded_tokens: int = 0
    """Sampled tokens thrown away since the last batch."""
    dropped_tokens: Mapping[str, int] = field(default_factory=dict)
    """Those of them, by tag, that were to be trained: group filters and spare episodes are left out."""
    workers: Mapping[str, int] = field(default_factory=dict)
    """Where their number changes: `playing` now, `added` and `retired` since the start of the process."""
    depth: float | None = None
    """Batches that generation might run ahead, where the run finds that by itself."""

    sampling: Mapping[str, float] = field(default_factory=dict)
    """Metrics of the run's task sampler and prefixes, as of the end of this batch."""

    @property
    def trajectories(self) -> list[Trajectory]:
        """Trajectories of all groups, in order."""
        return [trajectory for group in self.groups for trajectory in group]


def num_sampled_tokens(trajectory: Trajectory) -> int:
    """Tokens the policy wrote."""
    return 0 if trajectory.tokens is None else int(trajectory.tokens.response_mask.sum())


class RolloutTally:
    """Counts failures and discarded tokens from one batch to the next. Owner: the scheduler."""

    def __init__(self) -> None:
        self._failures: Counter[str] = Counter()
        self._examples: dict[str, str] = {}
        """The first message of each kind."""
        self._failures_of_tag: Counter[str] = Counter()
        self._last_failure: dict[str, Failure] = {}
        self._discarded_tokens = 0
        self._dropped_tokens: Counter[str] = Counter()

    def add_failure(self, failure: Failure, *, tag: str | None = None) -> None:
        """Count a failure. With `tag`, it is that of an episode which its worker reported."""
        kind = f"{failure.boundary}/{failure.kind}"
        self._failures[kind] += 1
        self._examples.setdefault(kind, failure.message)
        if tag is not None:
            self._failures_of_tag[tag] += 1
            self._last_failure[tag] = failure

    def add_discarded(self, tag: str, num_tokens: int, reason: CancelReason) -> None:
        """Count the sampled tokens of an episode that is thrown away, ended or not."""
        self._discarded_tokens += num_tokens
        if num_tokens and not reason.is_by_choice:
            self._dropped_tokens[tag] += num_tokens

    def batch(
        self,
        version: int,
        groups: Sequence[Sequence[Trajectory]],
        counts: LedgerCounts,
        filtered: Mapping[str, int],
        depth: float | None = None,
    ) -> RolloutBatch:
        """A batch with these groups and everything that was counted."""
        succeeded = {
            trajectory.task.tag for group in groups for trajectory in group if not trajectory.failure
        }
        return RolloutBatch(
            version=version,
            groups=groups,
            ledger_counts={name: count for name, count in asdict(counts).items() if name != "open"},
            failures=dict(self._failures),
            failing_tags={
                tag: f"{count} failed, the last one: {self._last_failure[tag]}"
                for tag, count in self._failures_of_tag.items()
                if tag not in succeeded
            },
            filtered=filtered,
            discarded_tokens=self._discarded_tokens,
            dropped_tokens=dict(self._dropped_tokens),
            depth=depth,
        )

    def failure_note(self) -> str:
        """The most frequent failures as a sentence behind another's last word; empty without failures."""
        if not self._failures:
            return ""
        common = self._failures.most_common(5)
        counted = ", ".join(f"{count} x {kind} ({self._examples[kind]})" for kind, count in common)
        return f". Failures since the last batch: {counted}"
