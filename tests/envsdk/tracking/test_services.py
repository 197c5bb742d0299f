"""Trackers against their real packages, without a network: `make test-trackers`."""

from __future__ import annotations

import multiprocessing
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from envsdk.contracts.failures import ConfigurationError
from envsdk.tracking import Ending, TrackerGroup, open_trackers

for package in ("wandb", "mlflow", "trackio"):
    if find_spec(package) is None:
        pytest.skip(f"needs {package}: make test-trackers", allow_module_level=True)

pytestmark = pytest.mark.trackers


@pytest.fixture(scope="module", autouse=True)
def trackio_dir(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Where trackio keeps runs, which it reads once, when it is imported."""
    assert "trackio" not in sys.modules
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRACKIO_DIR", str(tmp_path_factory.mktemp("trackio")))
        yield


@pytest.fixture(autouse=True)
def offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    for name in ("WANDB_API_KEY", "WANDB_MODE", "MLFLOW_TRACKING_URI"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    folder = tmp_path / "runs" / "lake"
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text("exp_name: lake\nseed: 7\nengine: {api_key: s3cret}\n")
    return folder


def play(run_dir: Path, tracker: str, settings: dict[str, Any], ending: Ending, *, first: int = 0) -> None:
    """Two steps of a run that begins, or continues, at `first`."""
    group: TrackerGroup = open_trackers([tracker], run_dir, {tracker: settings})
    group.rewind(first - 1)
    for step in (first, first + 1):
        group.log(step, {"reward/mean": step / 10, "reward/a@b": 1.0}, time_unix_s=1000.0 + step)
    group.end(ending, "why" if ending == Ending.FAILED else "")
    group.close()


def play_in_a_process(*args: Any, **kwargs: Any) -> None:
    """`play` in a process of its own, as a run that is continued has one."""
    process = multiprocessing.get_context("spawn").Process(target=play, args=args, kwargs=kwargs)
    process.start()
    process.join()
    assert process.exitcode == 0


def wandb_records(run_dir: Path) -> list[list[Any]]:
    """The records of each process, in order."""
    from wandb.proto import wandb_internal_pb2

    found = []
    for file in sorted(
        (run_dir / "wandb").glob("offline-run-*/run-*.wandb"), key=lambda each: each.stat().st_mtime_ns
    ):
        records = []
        for data in log_entries(file.read_bytes()):
            record = wandb_internal_pb2.Record()
            record.ParseFromString(data)
            records.append(record)
        found.append(records)
    return found


def log_entries(content: bytes) -> Iterator[bytes]:
    """Of LevelDB's log format, which W&B's files have behind seven bytes of their own."""
    place, entry = 7, b""
    while place + 7 <= len(content):
        left_in_block = 32768 - place % 32768
        if left_in_block < 7:
            place += left_in_block
            continue
        length, kind = int.from_bytes(content[place + 4 : place + 6], "little"), content[place + 6]
        entry += content[place + 7 : place + 7 + length]
        place += 7 + length
        if kind in (1, 4):  # whole, or the last part
            yield entry
            entry = b""


def test_wandb_holds_both_processes_of_a_run_as_one(run_dir: Path) -> None:
    settings = {"mode": "offline", "project": "ice", "tags": ["small"]}
    play_in_a_process(run_dir, "wandb", settings, Ending.FAILED)
    play_in_a_process(run_dir, "wandb", settings, Ending.FINISHED, first=1)
    both = wandb_records(run_dir)
    runs = [next(each.run for each in records if each.HasField("run")) for records in both]
    assert len({run.run_id for run in runs}) == 1
    assert (runs[0].project, runs[0].display_name, list(runs[0].tags)) == ("ice", "lake", ["small"])
    config = {item.key: item.value_json for item in runs[0].config.update}
    assert config["seed"] == "7"
    assert "s3cret" not in str(both)
    steps = [
        [item.value_json for item in each.history.item if (item.key or item.nested_key[0]) == "step"]
        for records in both
        for each in records
        if each.HasField("history")
    ]
    assert steps == [["0"], ["1"], ["1"], ["2"]]
    codes = [each.exit.exit_code for records in both for each in records if each.HasField("exit")]
    assert codes == [1, 0]
    assert "failed" in str(both[0])


def test_wandb_without_a_key_is_refused_with_what_to_do(run_dir: Path) -> None:
    with pytest.raises(ConfigurationError, match="WANDB_API_KEY"):
        open_trackers(["wandb"], run_dir, {"wandb": {"mode": "online"}})


def test_mlflow_holds_both_processes_of_a_run_as_one(run_dir: Path) -> None:
    from mlflow import MlflowClient

    settings = {"project": "ice", "tags": ["small"]}
    play(run_dir, "mlflow", settings, Ending.FAILED)
    client = MlflowClient(tracking_uri=f"sqlite:///{run_dir.parent / 'mlflow.db'}")
    experiment = client.get_experiment_by_name("ice")
    (run,) = client.search_runs([experiment.experiment_id])
    assert run.info.status == "FAILED"
    assert run.data.tags["envsdk.ending"] == "failed: why"
    play(run_dir, "mlflow", settings, Ending.FINISHED, first=1)
    (run,) = client.search_runs([experiment.experiment_id])
    assert (run.info.run_name, run.info.status) == ("lake", "FINISHED")
    assert run.data.params["seed"] == "7"
    assert run.data.params["engine.api_key"] == "***"
    assert run.data.tags["small"] == ""
    assert run.data.tags["envsdk.rewound_to"] == "0"
    history = client.get_metric_history(run.info.run_id, "reward/mean")
    assert sorted(point.step for point in history) == [0, 1, 2]
    assert run.data.metrics["reward/mean"] == 0.2


def test_trackio_holds_both_processes_of_a_run_as_one(run_dir: Path) -> None:
    from trackio.sqlite_storage import SQLiteStorage

    settings = {"project": "ice", "tags": ["small"]}
    play(run_dir, "trackio", settings, Ending.FAILED)
    play(run_dir, "trackio", settings, Ending.FINISHED, first=1)
    assert SQLiteStorage.get_runs("ice") == ["lake"]
    rows = SQLiteStorage.get_logs("ice", "lake")
    assert sorted(row["step"] for row in rows if "reward/mean" in row) == [0, 1, 1, 2]
    assert [row["step"] for row in rows if "ended/failed" in row] == [1]
    config = SQLiteStorage.get_run_config("ice", "lake")
    assert (config["seed"], config["tags"]) == (7, ["small"])
    assert "s3cret" not in str(config)
    (alert,) = SQLiteStorage.get_alerts("ice")
    assert alert["text"] == "why"


@pytest.mark.parametrize("tracker", ["mlflow", "trackio", "wandb"])
def test_a_new_run_of_the_same_name_is_another_one(tmp_path: Path, tracker: str) -> None:
    settings = {"mode": "offline"} if tracker == "wandb" else {}
    ids = []
    for place in ("a", "b"):
        folder = tmp_path / place / "lake"
        folder.mkdir(parents=True)
        play(folder, tracker, settings, Ending.FINISHED)
        ids.append((folder / "trackers" / f"{tracker}.json").read_text())
    if tracker != "trackio":  # whose runs are known by name
        assert ids[0] != ids[1]


def test_a_server_that_is_not_there_disables_mlflow_and_ends_nothing(
    run_dir: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    play(run_dir, "mlflow", {"tracking_uri": "http://127.0.0.1:9"}, Ending.FINISHED)
    said = [record.message for record in caplog.records if record.message.startswith("tracker")]
    assert len(said) == 1
    assert "mlflow failed in create" in said[0]
