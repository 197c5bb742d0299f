"""A slow disk holds up batches; what waits to be written does not pile up behind them."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from envsdk.contracts.trajectory import Outcome, RolloutBatch, Task, Trajectory
from envsdk.managers import batch_files
from envsdk.managers.batch_files import BatchFiles
from envsdk.managers.ledger_types import LedgerState
from tests.trajectories import trajectory_with

STATE = LedgerState(
    version=0, next_group_id=0, next_lease_id=0, cursors={}, shares={}, tag_weights={}, ends={}, unfinished=()
)


def trajectory(number: int) -> Trajectory:
    return trajectory_with(
        trajectory_id=f"train-{number}",
        group_id=number,
        task=Task(tag="a", split="train", index=number),
        seed=number,
        outcome=Outcome.TRUNCATED,
        success=False,
    )


async def test_a_batch_waits_for_the_writes_before_it_which_run_one_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk_goes_on = threading.Event()
    written: list[str] = []
    num_open = most_open = 0

    def write(path: Path, trajectories: Sequence[Trajectory], *, metadata: Any) -> None:
        nonlocal num_open, most_open
        num_open += 1
        most_open = max(most_open, num_open)
        assert disk_goes_on.wait(60)
        written.append(path.stem)
        num_open -= 1

    monkeypatch.setattr(batch_files, "write_trajectories", write)
    files = BatchFiles(tmp_path, prefix="step", group_size=1, discarded_per_file=2)
    files.begin(7)
    writes = [
        asyncio.ensure_future(write)
        for number in range(6)
        if (write := files.add_discarded(trajectory(number), "stale"))
    ]
    batch = RolloutBatch(version=0, groups=[[trajectory(9)]])
    delivered = asyncio.ensure_future(files.write_batch(batch, 7, STATE))
    for _ in range(20):
        await asyncio.sleep(0)
    assert not delivered.done()
    disk_goes_on.set()
    await asyncio.wait_for(delivered, 60)
    assert all(write.done() for write in writes)
    assert most_open == 1
    name = "discarded_step_000007"
    assert written == [name, f"{name}_1", f"{name}_2", "step_000007"]


async def test_what_a_killed_run_discarded_does_not_stay_beside_the_batch_that_is_played_again(
    tmp_path: Path,
) -> None:
    killed = BatchFiles(tmp_path, prefix="step", group_size=1, discarded_per_file=1)
    killed.begin(7)
    write = killed.add_discarded(trajectory(9), "stale")
    assert write is not None
    await write
    # The run goes on from the batch before: lease 9 is granted again, and this time it is delivered.
    resumed = BatchFiles(tmp_path, prefix="step", group_size=1, discarded_per_file=1)
    resumed.begin(7)
    await resumed.write_batch(RolloutBatch(version=0, groups=[[trajectory(9)]]), 7, STATE)
    assert os.listdir(tmp_path) == ["step_000007.parquet"]


async def test_what_is_thrown_away_behind_a_batch_belongs_to_the_next_one(tmp_path: Path) -> None:
    files = BatchFiles(tmp_path, prefix="step", group_size=1, discarded_per_file=1)
    files.begin(7)
    for number in (1, 2):
        write = files.add_discarded(trajectory(number), "stale")
        assert write is not None
        await write
        await files.write_batch(RolloutBatch(version=0, groups=[[trajectory(9)]]), 6 + number, STATE)
    assert sorted(os.listdir(tmp_path)) == [
        *(f"discarded_step_00000{step}.parquet" for step in (7, 8)),
        *(f"step_00000{step}.parquet" for step in (7, 8)),
    ]
