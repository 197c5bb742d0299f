"""The auditor names each promise that is broken on purpose, and finds nothing in a good run."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from benchmarks.audit_run import audit
from envsdk.contracts.failures import Boundary, Failure
from envsdk.contracts.trajectory import Outcome, RolloutBatch, Trajectory
from envsdk.managers.batch_files import BatchFiles, RolloutTally
from envsdk.managers.ledger import RolloutLedger
from envsdk.managers.ledger_types import Command, Discard, Grant, Lease, LedgerConfig
from envsdk.runs.rollout_metrics import rollout_metrics
from tests.envsdk.view.view_runs import make_trajectory

STEPS = 5
LAST = f"step_{STEPS - 1:06d}.parquet"


def played(lease: Lease, *, fails: bool) -> Trajectory:
    """One episode, sampled under the version of its lease; of each reply the last token is one later."""
    made = make_trajectory(
        lease.lease_id,
        tag=lease.task.tag,
        group=lease.group_id,
        version=lease.version - 1,
        replies=("L", "R"),
        success=not fails and lease.lease_id % 3 == 0,
        outcome=Outcome.FAILED if fails else Outcome.TERMINATED,
        failure=Failure(boundary=Boundary.ENVIRONMENT, kind="step_raised", message="no") if fails else None,
    )
    return replace(made, task=lease.task)


async def write_run(folder: Path) -> None:
    """Five steps as the scheduler and the pipeline write them; some episodes fail, a group is dropped."""
    config = LedgerConfig(batch_size=8, group_size=4, alpha=1, tag_weights={"a": 1, "b": 1})
    ledger = RolloutLedger(config)
    (folder / "trajectories").mkdir()
    files = BatchFiles(folder / "trajectories", prefix="step", group_size=4, discarded_per_file=100)
    running: list[Lease] = []
    finished: dict[int, Trajectory] = {}
    rejected = False

    def follow(commands: list[Command]) -> None:
        for command in commands:
            if isinstance(command, Grant):
                running.append(command.lease)
            elif isinstance(command, Discard) and command.lease_id in finished:
                files.add_discarded(finished.pop(command.lease_id), f"{command.end}: {command.reason}")

    follow(ledger.add_slots({f"a{i}": "a" for i in range(8)} | {f"b{i}": "b" for i in range(8)}, 0.0))
    metrics = []
    for step in range(STEPS):
        while (taken := ledger.take(8, 0.0))[0] is None:
            follow(taken[1])
            lease = running.pop(0)
            finished[lease.lease_id] = played(lease, fails=lease.lease_id % 11 == 5)
            trajectory = finished[lease.lease_id]
            follow(
                ledger.finished(
                    lease.lease_id,
                    0.0,
                    oldest_version=trajectory.oldest_version,
                    failed=trajectory.failure is not None,
                )
            )
            if step == 2 and not rejected and ledger.num_ready_groups:
                rejected = True
                follow(ledger.reject_group(next(iter(ledger.groups.ready)), 0.0))
        batch, commands = taken
        assert batch is not None
        state = ledger.state()
        groups = [[finished.pop(lease) for lease in group.lease_ids] for group in batch.groups]
        follow(commands)
        rollouts: RolloutBatch = RolloutTally().batch(step, groups, ledger.counts, {})
        await files.write_batch(rollouts, step, state)
        metrics.append({"step": step, **rollout_metrics(rollouts)})
        if step % 2:
            checkpoint = folder / "checkpoints" / f"step_{step + 1:06d}"
            checkpoint.mkdir(parents=True)
            (checkpoint / "run.json").write_text(json.dumps({"step": step + 1, "ledger": state.to_dict()}))
        follow(ledger.publish(step + 1, 0.0))
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in metrics))
    settings = {
        "mode": "both",
        "async_generation_ratio": 1.0,
        "max_staleness": None,
        "rollout_batch_size": 8,
        "max_steps": STEPS,
        "train_env_manager": {"group_size": 4},
    }
    (folder / "config.yaml").write_text(json.dumps(settings))


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("good")
    asyncio.run(write_run(folder))
    return folder


def change(
    folder: Path,
    name: str,
    rows: Callable[[list[dict[str, Any]]], None] = lambda _: None,
    state: Callable[[dict[str, Any]], None] = lambda _: None,
) -> None:
    """Rewrite one batch with other rows, or another ledger's state."""
    path = folder / "trajectories" / name
    table = pq.ParquetFile(path).read()
    metadata = dict(pq.ParquetFile(path).metadata.metadata)
    found = table.to_pylist()
    rows(found)
    ledger = json.loads(metadata[b"ledger_state"])
    state(ledger)
    metadata[b"ledger_state"] = json.dumps(ledger).encode()
    changed = pa.Table.from_pylist(found, schema=table.schema)
    writer = pq.ParquetWriter(path, changed.schema)
    writer.write_table(changed)
    writer.add_key_value_metadata(
        {key.decode(): value.decode() for key, value in metadata.items() if key != b"ARROW:schema"}
    )
    writer.close()


def row_set(row: int, **values: Any) -> Callable[[list[dict[str, Any]]], None]:
    def change_it(rows: list[dict[str, Any]]) -> None:
        rows[row].update(values)

    return change_it


def older(by: int) -> Callable[[list[dict[str, Any]]], None]:
    def change_it(rows: list[dict[str, Any]]) -> None:
        rows[0]["versions"] = [version - by if version >= 0 else version for version in rows[0]["versions"]]

    return change_it


def metrics(folder: Path, edit: Callable[[list[dict[str, Any]]], None]) -> None:
    path = folder / "metrics.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    edit(rows)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def fail_without_a_reason(rows: list[dict[str, Any]]) -> None:
    failed = next(row for row in rows if row["failure"] is not None)
    failed["failure"] = None


def score_a_failure(rows: list[dict[str, Any]]) -> None:
    failed = next(row for row in rows if row["failure"] is not None)
    failed.update(failure=None, outcome="terminated", success=False, total_reward=0.0)


def tell_another_reward(rows: list[dict[str, Any]]) -> None:
    told = next(name for name in rows[1] if name in ("reward/a", "reward/b"))
    rows[1][told] = 9.0


def forget_what_was_dropped(run: Path) -> None:
    for path in (run / "trajectories").glob("step_*"):
        change(run, path.name, state=lambda state: state.update(dropped=[]))


def copy_batch(run: Path, source: int, target: int) -> None:
    folder = run / "trajectories"
    shutil.copy(folder / f"step_{source:06d}.parquet", folder / f"step_{target:06d}.parquet")


def rewrite(path: Path, rows: list[dict[str, Any]], schema: pa.Schema, metadata: dict[str, str]) -> None:
    writer = pq.ParquetWriter(path, schema)
    writer.write_table(pa.Table.from_pylist(rows, schema=schema))
    writer.add_key_value_metadata(metadata)
    writer.close()


def discarded_file(run: Path) -> tuple[Path, list[dict[str, Any]], pa.Schema]:
    path = next((run / "trajectories").glob("discarded_*"))
    table = pq.ParquetFile(path).read()
    return path, table.to_pylist(), table.schema


def discard_what_is_delivered(run: Path) -> None:
    path, rows, schema = discarded_file(run)
    delivered = pq.ParquetFile(run / "trajectories" / "step_000000.parquet").read(["trajectory_id"])
    rows[0]["trajectory_id"] = delivered["trajectory_id"][0].as_py()
    rewrite(path, rows, schema, {"ends": json.dumps(["stale: late"] * len(rows))})


def discard_without_a_reason(run: Path) -> None:
    path, rows, schema = discarded_file(run)
    rewrite(path, rows, schema, {"ends": json.dumps([""] * len(rows))})


def rewrite_plainly(run: Path, name: str, *without: str) -> None:
    """Without metadata, or some columns."""
    path = run / "trajectories" / name
    table = pq.ParquetFile(path).read().replace_schema_metadata(None)
    pq.write_table(table.drop_columns(list(without)), path)


def add_line(run: Path, line: str) -> None:
    with (run / "metrics.jsonl").open("a") as file:
        file.write(f"{line}\n")


def checkpoint(run: Path, **content: Any) -> None:
    (run / "checkpoints" / "step_000002" / "run.json").write_text(json.dumps(content))


DAMAGE: list[tuple[str, Callable[[Path], object]]] = [
    ("no batch is lost", lambda run: (run / "trajectories" / "step_000002.parquet").unlink()),
    ("files are whole", lambda run: (run / "trajectories" / "step_000002.parquet").write_bytes(b"PAR1")),
    ("each is trained once", lambda run: copy_batch(run, 1, 3)),
    ("each is trained once", lambda run: change(run, LAST, row_set(0, trajectory_id="train-0"))),
    ("batches are complete", lambda run: change(run, LAST, lambda rows: rows.pop())),
    ("groups are whole", lambda run: change(run, LAST, lambda rows: rows.pop())),
    ("groups are of one task", lambda run: change(run, LAST, row_set(1, index=77))),
    ("groups are of one task", lambda run: change(run, LAST, row_set(1, seed=77))),
    ("nothing is too old", lambda run: change(run, LAST, older(2))),
    ("no token is from the future", lambda run: change(run, LAST, older(-2))),
    ("counts add up", lambda run: change(run, LAST, state=lambda state: state["ends"].update(delivered=3))),
    ("counts add up", lambda run: change(run, LAST, state=lambda state: state.update(next_lease_id=9))),
    ("no task is skipped", lambda run: change(run, LAST, state=lambda state: state["cursors"].update(a=50))),
    (
        "the cursor is past every task",
        lambda run: change(run, LAST, state=lambda s: s["cursors"].update(a=1)),
    ),
    ("no task is skipped", forget_what_was_dropped),
    ("a failure is named", lambda run: change(run, "step_000000.parquet", fail_without_a_reason)),
    ("failures are masked", lambda run: change(run, "step_000000.parquet", score_a_failure)),
    ("failures are masked", lambda run: metrics(run, tell_another_reward)),
    ("one row per step", lambda run: metrics(run, lambda rows: rows.append(rows[2]))),
    ("one row per step", lambda run: metrics(run, lambda rows: rows.pop(2))),
    ("each step has a batch", lambda run: (run / "trajectories" / LAST).unlink()),
    ("checkpoints fit their batches", lambda run: checkpoint(run, step=3)),
    ("checkpoints fit their batches", lambda run: checkpoint(run, step=2, ledger={})),
    ("checkpoints fit their batches", lambda run: checkpoint(run, step=2, ledger=None)),
    ("files are whole", lambda run: checkpoint(run, ledger=None)),
    ("files are whole", lambda run: (run / "checkpoints" / "step_000002" / "run.json").write_text("[]")),
    ("there is a run", shutil.rmtree),
    ("there is a run", lambda run: [shutil.rmtree(run), run.mkdir()]),
    ("files are whole", lambda run: (run / "config.yaml").write_text("{a: [")),
    ("files are whole", lambda run: (run / "config.yaml").unlink()),
    ("files are whole", lambda run: add_line(run, "null")),
    ("files are whole", lambda run: add_line(run, '{"step": null}')),
    ("files are whole", lambda run: rewrite_plainly(run, LAST, "versions")),
    ("files are whole", lambda run: change(run, LAST, state=lambda state: state.pop("ends"))),
    ("files are whole", lambda run: change(run, LAST, state=lambda state: state.update(cursors=None))),
    ("failures are masked", lambda run: metrics(run, lambda rows: rows[1].pop("rollout/valid_share"))),
    ("one row per step", lambda run: (run / "metrics.jsonl").unlink()),
    ("one row per step", lambda run: metrics(run, lambda rows: rows.__delitem__(slice(1, None)))),
    ("counts add up", lambda run: rewrite_plainly(run, "step_000001.parquet")),
    ("each is trained once", discard_what_is_delivered),
    ("what is dropped has a reason", discard_without_a_reason),
]


def test_a_good_run_has_no_findings(good: Path) -> None:
    assert audit(good) == []
    # The last step has no checkpoint.
    assert [finding.where for finding in audit(good, finished=True)] == ["checkpoints"]


@pytest.mark.parametrize(("promise", "damage"), DAMAGE, ids=[f"{n}-{row[0]}" for n, row in enumerate(DAMAGE)])
def test_a_broken_promise_is_named(
    good: Path, tmp_path: Path, promise: str, damage: Callable[[Path], object]
) -> None:
    run = shutil.copytree(good, tmp_path / "run")
    damage(run)
    found = {finding.promise for finding in audit(run)}
    assert promise in found


def test_a_finding_says_where_and_what(good: Path, tmp_path: Path) -> None:
    run = shutil.copytree(good, tmp_path / "run")
    change(run, LAST, older(2))
    (finding,) = audit(run)
    assert asdict(finding)["where"] == LAST
    assert "the bound is 1" in str(finding)


def test_a_run_without_its_configuration_is_not_too_old(good: Path, tmp_path: Path) -> None:
    run = shutil.copytree(good, tmp_path / "run")
    (run / "config.yaml").unlink()
    (finding,) = audit(run)
    assert finding.where == "config.yaml"
    (also,) = audit(run, finished=True)
    assert also == finding


def test_what_a_killed_program_left_for_the_next_batch_is_no_doubled_trajectory(
    good: Path, tmp_path: Path
) -> None:
    run = shutil.copytree(good, tmp_path / "run")
    discard_what_is_delivered(run)
    path, _, _ = discarded_file(run)
    path.rename(path.with_name(f"discarded_step_{STEPS:06d}.parquet"))
    assert audit(run) == []


def test_the_bound_of_an_automatic_depth_is_one_unless_it_is_given(good: Path, tmp_path: Path) -> None:
    run = shutil.copytree(good, tmp_path / "run")
    settings = json.loads((run / "config.yaml").read_text()) | {"async_generation_ratio": "auto"}
    (run / "config.yaml").write_text(json.dumps(settings))
    assert audit(run) == []
    change(run, LAST, older(2))
    assert [finding.promise for finding in audit(run)] == ["nothing is too old"]


def test_batches_for_a_trainer_of_ones_own_have_any_size_and_version(good: Path, tmp_path: Path) -> None:
    run = shutil.copytree(good, tmp_path / "run")
    shutil.rmtree(run / "checkpoints")
    (run / "metrics.jsonl").unlink()
    settings = json.loads((run / "config.yaml").read_text()) | {"rollout_batch_size": 16}
    (run / "config.yaml").write_text(json.dumps(settings))
    assert audit(run) == []


def test_the_folder_of_an_explorer_has_no_batches(tmp_path: Path) -> None:
    (tmp_path / "trajectories").mkdir()
    (tmp_path / "config.yaml").write_text(json.dumps({"mode": "explore", "max_steps": 5}))
    (tmp_path / "metrics.jsonl").write_text(json.dumps({"step": 3, "version": 3.0}) + "\n")
    assert audit(tmp_path, finished=True) == []
