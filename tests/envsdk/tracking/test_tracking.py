from __future__ import annotations

import errno
import json
import math
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from envsdk.base.store.appendfile import AppendFile
from envsdk.contracts.failures import ConfigurationError, StorageError
from envsdk.tracking import (
    JsonlTracker,
    Tracker,
    TrackerGroup,
    load_tracker,
    open_trackers,
    read_metrics,
    read_run_metrics,
)
from envsdk.tracking.tensorboard import TensorBoardTracker

NAMES = st.text(min_size=1, max_size=8).map(lambda text: f"reward/{text}")
ROWS = st.lists(st.dictionaries(NAMES, st.floats(allow_nan=False, allow_infinity=False)), max_size=8)


def write_steps(tracker: Tracker, *steps: int) -> None:
    for step in steps:
        tracker.log(step, {"reward/mean": step / 10}, time_unix_s=1000.0 + step)


def steps_of(path: Path) -> list[float]:
    return [row["step"] for row in read_metrics(path)]


class Failing(Tracker):
    """A third party's tracker whose service is down."""

    @classmethod
    def create(cls, run_dir: Path, config: Mapping[str, Any]) -> Failing:
        return cls()

    def log(self, step: int, metrics: Mapping[str, float], *, time_unix_s: float) -> None:
        raise ConnectionError("service is down")

    def rewind(self, step: int) -> None:
        pass

    def close(self) -> None:
        pass


@settings(max_examples=30)
@given(rows=ROWS)
def test_what_was_logged_reads_back_exactly(
    rows: list[dict[str, float]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("run") / "metrics.jsonl"
    tracker = JsonlTracker(path)
    for step, metrics in enumerate(rows):
        tracker.log(step, metrics, time_unix_s=float(step))
    tracker.close()
    assert read_metrics(path) == [{"step": i, "time_unix_s": float(i), **m} for i, m in enumerate(rows)]


def test_a_value_that_is_not_finite_leaves_valid_json_and_reads_as_nan(tmp_path: Path) -> None:
    tracker = JsonlTracker(tmp_path / "metrics.jsonl")
    tracker.log(0, {"a": math.inf, "b": math.nan, "c": 1}, time_unix_s=0.0)

    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is not JSON")

    json.loads((tmp_path / "metrics.jsonl").read_text(), parse_constant=refuse)
    (row,) = read_metrics(tmp_path / "metrics.jsonl")
    assert math.isnan(row["a"])
    assert math.isnan(row["b"])
    assert row["c"] == 1


@settings(max_examples=30)
@given(kept=st.integers(0, 3), torn=st.integers(1, 40))
def test_a_torn_last_line_is_skipped_by_readers_and_cut_off_by_the_next_run(
    kept: int, torn: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("run") / "metrics.jsonl"
    tracker = JsonlTracker(path)
    write_steps(tracker, *range(kept + 1))
    tracker.close()
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:-1]) + lines[-1][: min(torn, len(lines[-1]) - 1)])

    assert steps_of(path) == list(range(kept))
    again = JsonlTracker(path)
    write_steps(again, kept)
    again.close()
    assert steps_of(path) == list(range(kept + 1))
    assert all(json.loads(line) for line in path.read_text().splitlines())


def test_after_rewinding_each_step_appears_once(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    first = JsonlTracker(path)
    write_steps(first, *range(8))
    first.close()

    resumed = JsonlTracker(path)
    resumed.rewind(4)
    write_steps(resumed, 5, 6)
    resumed.close()

    assert steps_of(path) == [0, 1, 2, 3, 4, 5, 6]
    assert len(path.read_text().splitlines()) == 7


def test_two_logs_of_one_step_are_one_row(tmp_path: Path) -> None:
    tracker = JsonlTracker(tmp_path / "metrics.jsonl")
    tracker.log(3, {"reward/mean": 0.5}, time_unix_s=1.0)
    tracker.log(3, {"val/success/mean": 0.7}, time_unix_s=2.0)
    assert read_metrics(tmp_path / "metrics.jsonl") == [
        {"step": 3, "time_unix_s": 2.0, "reward/mean": 0.5, "val/success/mean": 0.7}
    ]


def test_the_evaluations_of_another_program_join_the_rows_of_the_run(tmp_path: Path) -> None:
    assert read_run_metrics(tmp_path) == []
    (tmp_path / "bench").mkdir()
    bench = JsonlTracker(tmp_path / "bench" / "metrics.jsonl")
    bench.log(0, {"val/success/mean": 0.3, "version": 0.0}, time_unix_s=9.0)
    bench.log(2, {"val/success/mean": 0.7, "version": 2.0}, time_unix_s=9.0)
    tracker = JsonlTracker(tmp_path / "metrics.jsonl")
    write_steps(tracker, 0, 1)
    zero, one, two = read_run_metrics(tmp_path)
    own = read_metrics(tmp_path / "metrics.jsonl")
    assert zero == {"val/success/mean": 0.3, "version": 0.0} | own[0]
    assert one == own[1]
    assert two == {"step": 2, "val/success/mean": 0.7, "version": 2.0}


def test_a_full_disk_leaves_whole_lines_and_names_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "metrics.jsonl"
    tracker = JsonlTracker(path)
    write_steps(tracker, 0)
    write = os.write
    calls = 0

    def full_after_some_bytes(descriptor: int, data: bytes) -> int:
        nonlocal calls
        calls += 1
        if calls > 1:
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(descriptor, bytes(data[:10]))

    monkeypatch.setattr(os, "write", full_after_some_bytes)
    with pytest.raises(StorageError, match=r"metrics\.jsonl"):
        write_steps(tracker, 1)
    monkeypatch.undo()
    assert steps_of(path) == [0]
    write_steps(tracker, 1)
    assert steps_of(path) == [0, 1]


def test_a_closed_file_refuses_to_be_written() -> None:
    file = AppendFile(Path(os.devnull))
    file.close()
    file.close()
    with pytest.raises(ValueError, match="closed"):
        file.append(b"x")


def test_an_unknown_tracker_is_refused_with_the_nearest_name(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="did you mean `tensorboard`"):
        open_trackers(["jsonl", "tensorbord"], tmp_path)
    with pytest.raises(ConfigurationError, match=r"known: .*jsonl"):
        load_tracker("zzz")


def test_a_tracker_may_be_named_by_where_it_is() -> None:
    assert load_tracker("envsdk.tracking.jsonl:JsonlTracker") is JsonlTracker
    with pytest.raises(ConfigurationError, match=r"is not an envsdk\.tracking\.Tracker"):
        load_tracker("envsdk.tracking.jsonl:FILE_NAME")


@pytest.mark.parametrize("name", ["jsonl", "tensorboard"])
def test_a_tracker_refuses_settings_it_does_not_have(name: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="colour"):
        open_trackers({name: {"colour": "red"}}, tmp_path)


def test_a_tracker_that_fails_is_dropped_and_the_others_go_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    group = TrackerGroup({"failing": Failing(), "jsonl": JsonlTracker(tmp_path / "metrics.jsonl")})
    write_steps(group, 0, 1)
    group.close()
    assert group.names == ("jsonl",)
    assert steps_of(tmp_path / "metrics.jsonl") == [0, 1]
    assert [record.getMessage() for record in caplog.records] == [
        "tracker failing failed in log and is dropped: service is down"
    ]


def test_tensorboard_shows_each_step_once_after_a_rewind(tmp_path: Path) -> None:
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    first = TensorBoardTracker.create(tmp_path, {})
    for step in range(6):
        first.log(step, {"reward/mean": 0.1}, time_unix_s=1000.0 + step)
    first.close()
    resumed = TensorBoardTracker.create(tmp_path, {})
    resumed.rewind(3)
    for step in (4, 5):
        resumed.log(step, {"reward/mean": 0.9}, time_unix_s=2000.0 + step)
    resumed.close()
    resumed.close()

    events = accumulator.EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    scalars = [(event.step, round(event.value, 1)) for event in events.Scalars("reward/mean")]
    assert scalars == [(0, 0.1), (1, 0.1), (2, 0.1), (3, 0.1), (4, 0.9), (5, 0.9)]


def test_writing_for_tensorboard_loads_neither_torch_nor_tensorflow(tmp_path: Path) -> None:
    code = (
        "import sys, pathlib\n"
        "from envsdk.tracking import open_trackers\n"
        "assert not {'torch', 'tensorboard'} & set(sys.modules)\n"
        "group = open_trackers(['jsonl', 'tensorboard'], pathlib.Path(sys.argv[1]))\n"
        "group.log(0, {'a': 1.0}, time_unix_s=0.0)\n"
        "group.close()\n"
        "assert not {'torch', 'tensorflow'} & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=True)
    assert list((tmp_path / "tensorboard").glob("events.out.tfevents.*"))
