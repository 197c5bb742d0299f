"""What a run leaves in its folder besides what it computes."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from envsdk.base.store.file_lock import locked
from envsdk.base.store.trajectories import write_trajectories
from envsdk.config import load_config
from envsdk.config.loading import LoadedConfig
from envsdk.contracts.failures import ConfigurationError
from envsdk.managers.ledger import RolloutLedger
from envsdk.managers.ledger_types import LedgerConfig, LedgerState
from envsdk.runs import lost_runtime
from envsdk.runs.checkpoints import RunState, write_checkpoint
from envsdk.runs.run import run
from envsdk.runs.run_folder import RunFolder, changed_settings, keep_tokenizer, lacks_last_evaluation
from envsdk.runs.run_origin import initial_model
from envsdk.tracking import JsonlTracker
from envsdk.trainers.warm_start.tiny_policy import build_tokenizer, write_tokenizer


def test_a_run_keeps_the_tokenizer_of_its_model_if_there_is_one(tmp_path: Path) -> None:
    model, run = tmp_path / "model", tmp_path / "run"
    model.mkdir()
    run.mkdir()
    keep_tokenizer(model, run)
    assert list(run.iterdir()) == []
    (model / "tokenizer.json").write_text("{}")
    keep_tokenizer(model, run)
    assert (run / "tokenizer.json").read_text() == "{}"


def run_config(output_dir: Path, *overrides: str) -> LoadedConfig:
    return load_config("agentic_async.yaml", [f"output_dir={output_dir}", "exp_name=run", *overrides])


def save_nothing(folder: Path) -> None:
    (folder / "weights").touch()


def write_batch(run: Path, step: int, state: LedgerState) -> None:
    metadata = {"ledger_state": json.dumps(state.to_dict()), "version": "0", "group_size": "1"}
    write_trajectories(run / "trajectories" / f"step_{step:06d}.parquet", [], metadata=metadata)


def ledger_state(next_group_id: int) -> LedgerState:
    config = LedgerConfig(batch_size=1, group_size=1, alpha=0, tag_weights={"maze": 1})
    return replace(
        RolloutLedger(config).state(), next_group_id=next_group_id, cursors={"maze": next_group_id}
    )


def test_no_second_process_trains_in_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("envsdk.runs.run_folder.LOCK_PATIENCE_S", 0.0)
    (tmp_path / "run").mkdir()
    lock = locked(tmp_path / "run" / ".lock", patience_s=0)
    with lock, pytest.raises(ConfigurationError, match="another process is training in"):
        run(run_config(tmp_path))
    assert [path.name for path in (tmp_path / "run").iterdir()] == [".lock"]


def test_a_run_goes_on_under_its_own_seed_only(tmp_path: Path) -> None:
    checkpoint = write_checkpoint(tmp_path / "run", RunState(step=2, seed=7), save_nothing)
    with pytest.raises(ConfigurationError, match=r"seed: 8, but the run in .* has seed 7"):
        RunFolder.open(run_config(tmp_path, "seed=8").config)
    assert RunFolder.open(run_config(tmp_path, "seed=7").config).first_step == 2
    # A new run may begin with the weights of another.
    elsewhere = run_config(tmp_path / "other", "seed=8", f"resume={checkpoint}").config
    assert RunFolder.open(elsewhere).first_step == 2


def test_the_data_cursor_is_in_the_newest_batch_or_else_in_the_checkpoint(tmp_path: Path) -> None:
    config = run_config(tmp_path, "seed=7").config
    in_checkpoint, after_batch = ledger_state(2), ledger_state(3)
    state = RunState(step=2, seed=7, ledger=in_checkpoint.to_dict())
    write_checkpoint(tmp_path / "run", state, save_nothing)
    folder = RunFolder.open(config)
    assert (folder.state, folder.batches) == (in_checkpoint, {})
    assert LedgerState.from_dict(folder.ledger_before(2) or {}) == in_checkpoint
    assert folder.ledger_before(3) is None
    write_batch(tmp_path / "run", 2, after_batch)
    folder = RunFolder.open(config)
    assert folder.state == after_batch
    assert list(folder.batches) == [2]


def test_what_killed_writers_left_of_batches_goes_and_an_evaluation_being_written_stays(
    tmp_path: Path,
) -> None:
    config = run_config(tmp_path).config
    trajectories = config.run_folder / "trajectories"
    trajectories.mkdir(parents=True)
    for name in (
        ".step_000001.parquet.a1.tmp",
        ".discarded_step_000001.parquet.b2.tmp",
        ".val_000010.parquet.c3.tmp",
    ):
        (trajectories / name).touch()
    RunFolder.open(config)
    assert [path.name for path in trajectories.iterdir()] == [".val_000010.parquet.c3.tmp"]


def test_resume_never_writes_into_no_folder_that_holds_a_run(tmp_path: Path) -> None:
    write_checkpoint(tmp_path / "run", RunState(step=2, seed=7), save_nothing)
    with pytest.raises(ConfigurationError, match="already holds a run"):
        RunFolder.open(run_config(tmp_path, "resume=never").config)


def test_a_tilde_is_the_home_folder_wherever_a_folder_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text('{"model_type": "qwen3"}')
    write_tokenizer(model, build_tokenizer(["Up"]), sequence_length=64)
    write_checkpoint(tmp_path / "old", RunState(step=3, seed=7), save_nothing)
    config = run_config(
        Path("~/runs"), "pretrain=~/model", "resume=~/old/checkpoints/step_000003", "seed=8"
    ).config
    folder = RunFolder.open(config)
    assert (folder.path, folder.first_step) == (tmp_path / "runs" / "run", 3)
    assert initial_model(config) == model.resolve()


def test_what_is_set_differently_than_before_is_told(tmp_path: Path) -> None:
    loaded = run_config(tmp_path)
    folder = RunFolder.open(loaded.config)
    assert changed_settings(folder, loaded) == []
    (folder.path / "config.yaml").write_text(loaded.resolved_yaml())
    assert changed_settings(folder, loaded) == []
    other = run_config(
        tmp_path, "max_steps=9", "custom_envs.FrozenLake.env_config.size=5", "trackers=[jsonl]"
    )
    assert changed_settings(folder, other) == [
        "max_steps: 40 -> 9",
        "trackers: ['jsonl', 'tensorboard'] -> ['jsonl']",
        "custom_envs.FrozenLake.env_config.size: 4 -> 5",
        "actor_train.training_args.max_steps: 40 -> 9",
    ]


def finished_run(tmp_path: Path) -> Path:
    folder = tmp_path / "run"
    write_checkpoint(folder, RunState(step=100_000, seed=42), save_nothing)
    tracker = JsonlTracker.create(folder, {})
    tracker.log(0, {"train/loss": 0.5}, time_unix_s=0.0)
    tracker.close()
    return folder


def test_a_run_that_has_all_its_steps_gets_the_report_it_lacks(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = finished_run(tmp_path)
    run(run_config(tmp_path))
    assert "has all" in capsys.readouterr().out
    written = (folder / "report.html").stat().st_mtime_ns
    run(run_config(tmp_path))
    assert (folder / "report.html").stat().st_mtime_ns == written


def test_what_is_left_of_a_run_that_lost_ray_is_a_report_and_one_message(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = finished_run(tmp_path)
    assert lost_runtime.main([str(folder), "The same command continues", "The raylet died"]) == 1
    told = capsys.readouterr()
    assert told.out == ""
    assert told.err.startswith("error: The raylet died. The same command continues")
    assert (folder / "report.html").is_file()
    (folder / "metrics.jsonl").unlink()
    assert lost_runtime.main([str(folder), "Go on", "It died"]) == 1, "also before anything could be reported"


@pytest.mark.parametrize(
    ("last", "lacks"),
    [
        (None, True),
        ({"val/episodes": 1.0, "val/failed": 7.0, "val/failures/engine/turn_timeout": 7.0}, True),
        ({"val/episodes": 7.0, "val/failed": 1.0}, False),
    ],
    ids=["never played", "most of it failed", "counts"],
)
@pytest.mark.parametrize("keys", [[], ["val_batch_size=0"]], ids=["evaluates", "plays no evaluations"])
def test_a_run_with_all_its_steps_is_finished_by_an_evaluation_that_counts(
    tmp_path: Path, last: dict[str, float] | None, lacks: bool, keys: list[str]
) -> None:
    config = run_config(tmp_path, "max_steps=5", *keys).config
    write_checkpoint(tmp_path / "run", RunState(step=5, seed=42), save_nothing)
    tracker = JsonlTracker.create(tmp_path / "run", {})
    tracker.log(4, {"train/loss": 0.5, "val/episodes": 8.0, "val/failed": 0.0}, time_unix_s=0.0)
    if last is not None:
        tracker.log(5, last, time_unix_s=0.0)
    tracker.close()
    assert lacks_last_evaluation(config, RunFolder.open(config)) is (lacks and not keys)
