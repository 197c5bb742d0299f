"""`envsdk replay-run`: a run's decisions made again, from its log and the batches on disk."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from envsdk.base.store.trajectories import write_trajectories
from envsdk.contracts.trajectory import Task, Trajectory
from envsdk.managers.ledger import RolloutLedger
from envsdk.managers.ledger_log import LedgerLog, recorded
from envsdk.managers.ledger_types import LedgerConfig
from envsdk.rollouts.play.replay_run import main
from tests.trajectories import trajectory_with


def member(group_id: int, lease_id: int) -> Trajectory:
    return trajectory_with(
        trajectory_id=f"train-{lease_id}",
        group_id=group_id,
        task=Task(tag="maze", split="train", index=group_id),
        seed=group_id,
    )


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run of one batch of two groups of two; its log and its batch."""
    log = LedgerLog(
        tmp_path, config := LedgerConfig(batch_size=4, group_size=2, alpha=1, tag_weights={"maze": 1}), None
    )
    ledger = recorded(RolloutLedger(config), log)
    ledger.add_slots({f"slot{number}": "maze" for number in range(4)}, log.clock(0))
    log.mark("asked", log.clock(1_000), 0)
    for lease_id in range(4):
        ledger.finished(lease_id, log.clock(2_000 + 1_000 * lease_id), oldest_version=0)
    batch, _ = ledger.take(4, log.clock(6_000))
    assert batch is not None
    log.mark("wrote", log.clock(6_000), 0)
    log.flush()
    write_batch(tmp_path, [group.group_id for group in batch.groups])
    return tmp_path


def write_batch(run: Path, group_ids: list[int]) -> None:
    folder = run / "trajectories"
    folder.mkdir(exist_ok=True)
    members = [member(group, 2 * group + index) for group in group_ids for index in range(2)]
    write_trajectories(folder / "step_000000.parquet", members)


def test_a_run_that_is_decided_as_it_was_ends_well(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(run)]) == 0
    assert "1 batches are those on disk" in capsys.readouterr().out


def test_a_batch_on_disk_of_other_groups_is_an_error_with_its_step(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_batch(run, [0, 7])
    assert main([str(run)]) == 1
    assert "other groups are in the batch of step 0" in capsys.readouterr().err
    assert main([str(run), "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["batches_that_differ_on_disk"] == [0]


def test_a_batch_that_is_no_longer_there_is_no_difference(run: Path) -> None:
    (run / "trajectories" / "step_000000.parquet").unlink()
    assert main([str(run)]) == 0


def test_a_step_and_a_group_are_explained_and_unknown_ones_refused(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(run), "--why-step", "0", "--why-group", "1"]) == 0
    said = capsys.readouterr().out
    assert "Step 0 waited 5.0 s: 0 of 2 groups were ready" in said
    assert "group 1 (maze 1) was delivered with step 0" in said
    assert main([str(run), "--why-step", "9"]) == 2
    assert "no batch of step 9" in capsys.readouterr().err
