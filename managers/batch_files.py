"""The files in which a scheduler's trajectories are kept.

    step_000007.parquet              batch 7, with the ledger's state after it
    discarded_step_000007.parquet    trajectories thrown away before batch 7; further files end in _1, _2, ...

A batch is on disk before the pipeline receives it. Because its file also holds the ledger's state, a run that
is killed at any time neither loses nor repeats an episode.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Coroutine, Mapping, Sequence
from pathlib import Path
from typing import Any

from envsdk.base.store.trajectories import (
    DISCARDED_PREFIX,
    read_columns,
    read_metadata,
    read_trajectories,
    write_trajectories,
)
from envsdk.contracts.trajectory import Trajectory
from envsdk.managers.ledger_types import LedgerState
from envsdk.managers.rollout_batch import RolloutBatch


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
