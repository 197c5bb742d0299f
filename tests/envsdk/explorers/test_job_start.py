"""A folder is continued in the way in which it began."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from envsdk.base.store.trajectories import write_trajectories
from envsdk.buffer.contract import JobStatus
from envsdk.config import load_config
from envsdk.config.loading import LoadedConfig
from envsdk.contracts.failures import ConfigurationError
from envsdk.explorers.membership import open_buffer, terms_of
from envsdk.explorers.start import _check_no_ledger, run
from envsdk.managers.ledger import RolloutLedger
from envsdk.managers.ledger_types import LedgerConfig
from envsdk.runs.checkpoints import RunState, write_checkpoint
from envsdk.runs.run_folder import RunFolder


def loaded(output_dir: Path, mode: str) -> LoadedConfig:
    return load_config("agentic_async.yaml", [f"output_dir={output_dir}", f"mode={mode}", "exp_name=run"])


def test_the_folder_of_a_job_is_not_continued_by_a_single_program(tmp_path: Path) -> None:
    open_buffer(loaded(tmp_path, "train").config).engine.connect().close()
    with pytest.raises(ConfigurationError, match=r"folder of a job with explorers of its own.*mode: train"):
        run(loaded(tmp_path, "both"))


def test_the_folder_of_a_single_program_is_not_continued_by_a_jobs_trainer(tmp_path: Path) -> None:
    config = loaded(tmp_path, "train").config
    state = RolloutLedger(LedgerConfig(batch_size=1, group_size=1, alpha=0, tag_weights={"a": 1})).state()
    folder = RunFolder.open(config)
    _check_no_ledger(folder)
    metadata = {"ledger_state": json.dumps(state.to_dict()), "version": "0", "group_size": "1"}
    write_trajectories(folder.path / "trajectories" / "step_000000.parquet", [], metadata=metadata)
    with pytest.raises(ConfigurationError, match=r"that played for itself.*mode: both"):
        _check_no_ledger(RunFolder.open(config))


def test_a_program_with_another_seed_is_refused_before_its_policy_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = loaded(tmp_path, "train").config
    buffer = open_buffer(config)
    buffer.create(config.exp_name, replace(terms_of(config), seed=7))
    monkeypatch.setattr("envsdk.explorers.start.model_of_job", pytest.fail)
    with pytest.raises(ConfigurationError, match="seed is 42 here and 7 in the job"):
        run(loaded(tmp_path, "explore"))


def test_a_folder_that_cannot_hold_weights_is_refused_before_the_policy_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("envsdk.explorers.start.single_program.run", pytest.fail)
    given = load_config(
        "agentic_async.yaml", [f"output_dir={tmp_path}", "mode=train", "synchronizer.path=/proc/w"]
    )
    with pytest.raises(ConfigurationError, match=r"synchronizer\.path: Cannot write into /proc/w"):
        run(given)
    assert not list(tmp_path.iterdir()), "no job is begun"


@pytest.mark.parametrize("resume", ["never", "checkpoints/step_000003"])
def test_a_job_ends_well_whatever_checkpoint_its_trainer_began_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, resume: str
) -> None:
    given = load_config(
        "agentic_async.yaml", [f"output_dir={tmp_path}", "mode=train", "exp_name=run", "max_steps=9"]
    )
    # A checkpoint that a trainer began from is removed as it goes on.
    given = replace(given, config=given.config.model_copy(update={"resume": resume}))

    def save(folder: Path) -> None:
        (folder / "weights").write_bytes(b"w")

    def train(loaded: LoadedConfig, _: object) -> None:
        write_checkpoint(loaded.config.run_folder, RunState(step=9, seed=42), save)

    monkeypatch.setattr("envsdk.explorers.start.single_program.run", train)
    run(given)
    assert open_buffer(given.config).view().status is JobStatus.FINISHED
