"""Finished episodes, from their report until the ledger delivers or discards them, and their files.

    added -> judged with their group -> delivered      as a batch, on disk
                                     -> discarded      counted, and written beside the batch

    step_000007.parquet              batch 7, with the ledger's state after it
    discarded_step_000007.parquet    trajectories thrown away before batch 7; further files end in _1, _2, ...

A batch is on disk before the pipeline receives it. Because its file also holds the ledger's state, a run that
is killed at any time neither loses nor repeats an episode.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from envsdk.base.store.trajectories import (
    DISCARDED_PREFIX,
    read_columns,
    read_metadata,
    read_trajectories,
    write_trajectories,
)
from envsdk.contracts.failures import Boundary, Failure
from envsdk.contracts.trajectory import Outcome, RolloutBatch, Task, Trajectory
from envsdk.managers.group_judge import GroupFilters
from envsdk.managers.ledger_types import (
    BatchGroup,
    CancelReason,
    Discard,
    GroupReady,
    LedgerConfig,
    LedgerCounts,
    LedgerState,
)


class BatchFiles:
    """Writes the batches of one scheduler, and the trajectories it discards. Owner: the scheduler."""

    def __init__(self, folder: Path, *, prefix: str, group_size: int, discarded_per_file: int) -> None:
        """`prefix` begins the names of batch files; `discarded_per_file` counts trajectories."""
        self._folder = folder
        self._prefix = prefix
        self._group_size = group_size
        self._discarded_per_file = discarded_per_file
        self._discarded: list[tuple[Trajectory, str]] = []
        """Not yet written, each with how its lease ended."""
        self._num_discarded_files = 0
        """Written since the last batch."""
        self._next_step = 0
        """The step whose batch is assembled now."""
        self._writing = asyncio.Lock()
        """Files are written one after another. A batch waits for what was discarded before it, so a slow disk
        holds up the run and what waits to be written does not grow from batch to batch."""

    def begin(self, step: int) -> None:
        """Makes discarded trajectories belong to the batch of this step."""
        self._next_step = step

    def add_discarded(self, trajectory: Trajectory, end: str) -> Coroutine[Any, Any, None] | None:
        """Collect a discarded trajectory; returns the write of a file when one is full."""
        self._discarded.append((trajectory, end))
        return self.write_discarded() if len(self._discarded) >= self._discarded_per_file else None

    async def write_batch(self, batch: RolloutBatch, step: int, state: LedgerState) -> None:
        """Write a batch, and the trajectories discarded before it."""
        write_discarded = self.write_discarded()
        self._next_step, self._num_discarded_files = step + 1, 0
        await write_discarded
        metadata = {
            "ledger_state": json.dumps(state.to_dict()),
            "version": str(batch.version),
            "group_size": str(self._group_size),
        }
        path = self._folder / f"{self._prefix}_{step:06d}.parquet"
        await self._write(path, batch.trajectories, metadata)

    def write_discarded(self) -> Coroutine[Any, Any, None]:
        """The write of the trajectories collected so far; what is discarded later goes into another file."""
        name = f"{DISCARDED_PREFIX}{self._prefix}_{self._next_step:06d}"
        discarded, self._discarded = self._discarded, []
        part = f"_{self._num_discarded_files}" if self._num_discarded_files else ""
        if not part:
            # The first file too: its leases are granted again, and may now be delivered.
            for left_by_a_killed_run in (
                self._folder / f"{name}.parquet",
                *self._folder.glob(f"{name}_*.parquet"),
            ):
                left_by_a_killed_run.unlink(missing_ok=True)
        self._num_discarded_files += bool(discarded)
        path = self._folder / f"{name}{part}.parquet"
        ends = json.dumps([end for _, end in discarded])
        return self._write(path, [trajectory for trajectory, _ in discarded], {"ends": ends})

    async def _write(
        self, path: Path, trajectories: Sequence[Trajectory], metadata: Mapping[str, str]
    ) -> None:
        """After all writes that were begun before; no trajectories, no file."""
        async with self._writing:
            if trajectories:
                await asyncio.to_thread(write_trajectories, path, trajectories, metadata=metadata)


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
        )

    def failure_note(self) -> str:
        """The most frequent failures as a sentence behind another's last word; empty without failures."""
        if not self._failures:
            return ""
        common = self._failures.most_common(5)
        counted = ", ".join(f"{count} x {kind} ({self._examples[kind]})" for kind, count in common)
        return f". Failures since the last batch: {counted}"


class FinishedEpisodes:
    """Owner: the scheduler."""

    def __init__(
        self, config: LedgerConfig, filters: GroupFilters, files: BatchFiles | None, *, run_seed: int
    ) -> None:
        """Without `files`, nothing is written."""
        self.tally = RolloutTally()
        """Since the last batch."""
        self.files = files
        self.trajectories: dict[int, Trajectory] = {}
        """Trajectories by lease."""
        self.filter_reasons: dict[int, str] = {}
        """Reasons by lease why a filter dropped its group, until the lease is discarded."""
        self._stop_reasons: dict[int, CancelReason] = {}
        """Reasons by lease that was cancelled and finished all the same."""
        self._filters = filters
        self._config = config
        self._run_seed = run_seed

    def add(self, lease_id: int, trajectory: Trajectory, stopped: CancelReason | None) -> None:
        """An episode was reported; `stopped` says why it had been cancelled, if it had been."""
        if stopped is not None:
            self._stop_reasons[lease_id] = stopped
        if trajectory.failure is not None:
            self.tally.add_failure(trajectory.failure, tag=trajectory.task.tag)
        self.trajectories[lease_id] = trajectory

    def drop_reason(self, ready: GroupReady, *, is_awaited: bool) -> str | None:
        """Why a group filter drops this group; None keeps it. Raises RolloutStalled."""
        kept = self.trajectories
        group = {lease_id: kept[lease_id] for lease_id in ready.lease_ids if lease_id in kept}
        reason = self._filters.judge(list(group.values()), is_awaited=is_awaited)
        if reason is not None:
            self.filter_reasons |= dict.fromkeys(group, reason)
        return reason

    def discard(self, discard: Discard) -> Coroutine[Any, Any, None] | None:
        """The ledger has no use for this episode. Returns the write of a file when one is full."""
        trajectory = self.trajectories.pop(discard.lease_id, None)
        if trajectory is None:
            return None
        reason = self.filter_reasons.pop(discard.lease_id, discard.reason)
        why = self._stop_reasons.pop(discard.lease_id, discard.reason)
        self.tally.add_discarded(trajectory.task.tag, trajectory.num_sampled_tokens, why)
        return self.files.add_discarded(trajectory, f"{discard.end}: {reason}") if self.files else None

    def batch(
        self,
        version: int,
        groups: Sequence[BatchGroup],
        counts: LedgerCounts,
    ) -> RolloutBatch:
        """These groups with everything that was counted since the last batch."""
        delivered = [[self._delivered(group, lease) for lease in group.lease_ids] for group in groups]
        tally, self.tally = self.tally, RolloutTally()
        return tally.batch(version, delivered, counts, self._filters.delivered())

    def _delivered(self, group: BatchGroup, lease_id: int) -> Trajectory:
        """The trajectory of a lease; one without turns when its worker never reported it."""
        trajectory = self.trajectories.pop(lease_id, None)
        if trajectory is not None:
            return trajectory
        limit_s = self._config.episode_deadline_s
        if group.failures[lease_id] is CancelReason.WORKER_LOST:
            kind = "worker_lost"
            message = f"its worker was lost, {self._config.max_group_attempts} times in a row"
        else:
            kind, message = "episode_deadline", f"no end within episode_deadline_s={limit_s:g}"
        failure = Failure(boundary=Boundary.SCHEDULER, kind=kind, message=message)
        self.tally.add_failure(failure)
        return self.failed(group.task, group.group_id, lease_id, failure, limit_s)

    def failed(
        self, task: Task, group_id: int, lease_id: int, failure: Failure, lasted_s: float
    ) -> Trajectory:
        """An episode without turns that failed for this reason."""
        now = time.time()
        return Trajectory(
            trajectory_id=f"{task.split}-{lease_id}",
            group_id=group_id,
            task=task,
            seed=task.seed(self._run_seed),
            outcome=Outcome.FAILED,
            success=False,
            turns=(),
            tokens=None,
            failure=failure,
            started_at=now - lasted_s,
            ended_at=now,
        )


def read_batch(path: Path) -> RolloutBatch:
    """A batch as it was delivered, from its file."""
    metadata = read_metadata(path)
    group_size = int(metadata["group_size"])
    trajectories = read_trajectories(path)
    groups = [trajectories[i : i + group_size] for i in range(0, len(trajectories), group_size)]
    return RolloutBatch(version=int(metadata["version"]), groups=groups)


def batch_groups(folder: Path, step: int) -> tuple[int, ...]:
    """The groups of a batch of training, in order. Errors as of `read_columns`."""
    ids = read_columns(folder / f"step_{step:06d}.parquet", ["group_id"])["group_id"]
    return tuple(dict.fromkeys(ids))
