"""Both auditors, `--verify` and the one without code of envsdk, find what changed in a folder of a job."""

from __future__ import annotations

import json
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from benchmarks.audit_run import audit as audit_run
from envsdk.base.store.trajectories import write_trajectories
from envsdk.buffer.audit import audit, audit_folder
from envsdk.buffer.command import main
from envsdk.buffer.payload import from_bytes
from envsdk.buffer.places import opened
from envsdk.runs.checkpoints import RunState, write_checkpoint
from tests.envsdk.buffer.buffer_jobs import play

WEIGHTS = "checkpoints/step_000002/model/model.safetensors"


def save(folder: Path) -> None:
    header = json.dumps({"w": {"dtype": "F32", "shape": [8], "data_offsets": [0, 32]}}).encode()
    (folder / "model").mkdir()
    (folder / "model" / "model.safetensors").write_bytes(
        len(header).to_bytes(8, "little") + header + bytes(32)
    )


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("job")
    play(str(folder / "buffer.db"))
    (folder / "trajectories").mkdir()
    with closing(sqlite3.connect(folder / "buffer.db")) as connection:
        for step in range(3):
            query = "select data from payloads join batch_groups using (group_id) where step = ?"
            groups = [from_bytes(data) for (data,) in connection.execute(query, (step,))]
            rows = [each for group in groups for each in group]
            path = folder / "trajectories" / f"step_{step:06d}.parquet"
            write_trajectories(path, rows, metadata={"version": str(step), "group_size": "2"})
    write_checkpoint(folder, RunState(step=2, seed=1), save)
    (folder / "config.yaml").write_text("{mode: train, rollout_batch_size: 4, async_generation_ratio: 1}")
    return folder


def statement(text: str) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        with closing(sqlite3.connect(folder / "buffer.db", isolation_level=None)) as connection:
            connection.execute(text)

    return change


def in_a_batch(column: str, change: Callable[[list[Any]], None]) -> Callable[[Path], None]:
    def rewrite(folder: Path) -> None:
        path = folder / "trajectories" / "step_000001.parquet"
        table, metadata = pq.read_table(path), pq.read_metadata(path).metadata
        rows = table.to_pylist()
        change(rows[1][column])
        changed = pa.Table.from_pylist(rows, schema=table.schema)
        pq.write_table(changed.replace_schema_metadata(metadata), path)

    return rewrite


def flip(values: list[Any]) -> None:
    values[-1] += 1


def bit(folder: Path) -> None:
    data = bytearray((folder / WEIGHTS).read_bytes())
    data[-3] ^= 4
    (folder / WEIGHTS).write_bytes(data)


def half(folder: Path) -> None:
    (folder / WEIGHTS).write_bytes((folder / WEIGHTS).read_bytes()[:-16])


def half_of_an_older_checkpoint(folder: Path) -> None:
    record = folder / "checkpoints" / "step_000002" / "run.json"
    record.write_text(json.dumps({"step": 2, "seed": 1}))
    half(folder)


TRAINED = "(select min(id) from groups where state = 'trained')"
CHANGES: dict[str, tuple[Callable[[Path], None], str]] = {
    "a trained group is ready again": (
        statement(f"update groups set state = 'ready', ended_at = null where id = {TRAINED}"),
        "ready",
    ),
    "a token": (in_a_batch("token_ids", flip), "another token_ids"),
    "a log-probability": (in_a_batch("behavior_logprobs", flip), "another behavior_logprobs"),
    "a bit of the weights": (bit, "model.safetensors"),
    "half of the weights": (half, "model.safetensors"),
    "a batch file": (lambda folder: (folder / "trajectories" / "step_000001.parquet").unlink(), "step"),
}


def found(folder: Path) -> tuple[set[str], set[str]]:
    """What each of the two finds."""
    with opened(str(folder / "buffer.db")) as engine:
        verified = {*audit(engine, decode=True), *audit_folder(engine, folder)}
    return verified, set(map(str, audit_run(folder)))


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_is_found_by_both(good: Path, tmp_path: Path, change: str) -> None:
    work, words = CHANGES[change]
    folder = tmp_path / "job"
    shutil.copytree(good, folder)
    before = found(folder)
    work(folder)
    for earlier, now in zip(before, found(folder), strict=True):
        assert any(words in each for each in now - earlier), now


def test_weights_of_a_checkpoint_without_digests_are_measured(good: Path, tmp_path: Path) -> None:
    folder = tmp_path / "job"
    shutil.copytree(good, folder)
    before = found(folder)[1]
    half_of_an_older_checkpoint(folder)
    assert any("its header tells of" in each for each in found(folder)[1] - before)


def test_the_command_says_what_it_looked_at(
    good: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(good), "--verify"]) == 0
    assert "kept (buffer, batch files and checkpoints)" in capsys.readouterr().out
    shutil.copy(good / "buffer.db", tmp_path)
    assert main([str(tmp_path / "buffer.db"), "--verify"]) == 0
    assert "kept (the buffer alone was looked at)" in capsys.readouterr().out
    shutil.copytree(good, tmp_path / "job")
    bit(tmp_path / "job")
    assert main([str(tmp_path / "job" / "buffer.db"), "--verify"]) == 1
    assert "broken: checkpoints/step_000002: model/model.safetensors has" in capsys.readouterr().out
