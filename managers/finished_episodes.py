"""Finished episodes, from their report until the ledger delivers or discards them.

added -> judged with their group -> delivered      written by `batch_files.py` as a batch
                                 -> discarded      counted, and written beside the batch
"""

from __future__ import annotations

import time
from collections.abc import Coroutine, Sequence
from typing import Any

from envsdk.contracts.failures import Boundary, Failure
from envsdk.contracts.trajectory import Outcome, Task, Trajectory
from envsdk.managers.batch_files import BatchFiles
from envsdk.managers.group_judge import GroupFilters
from envsdk.managers.ledger_types import (
    BatchGroup,
    CancelReason,
    Discard,
    GroupReady,
    LedgerConfig,
    LedgerCounts,
)
from envsdk.managers.rollout_batch import RolloutBatch, RolloutTally, num_sampled_tokens


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
        self.tally.add_discarded(trajectory.task.tag, num_sampled_tokens(trajectory), why)
        return self.files.add_discarded(trajectory, f"{discard.end}: {reason}") if self.files else None

    def batch(
        self,
        version: int,
        groups: Sequence[BatchGroup],
        counts: LedgerCounts,
        depth: float | None = None,
    ) -> RolloutBatch:
        """These groups with everything that was counted since the last batch."""
        delivered = [[self._delivered(group, lease) for lease in group.lease_ids] for group in groups]
        tally, self.tally = self.tally, RolloutTally()
        return tally.batch(version, delivered, counts, self._filters.delivered(), depth)

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
