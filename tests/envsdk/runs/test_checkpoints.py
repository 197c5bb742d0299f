from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from envsdk.contracts.failures import ConfigurationError, StorageError
from envsdk.runs.checkpoints import KEEP_LAST, RunState, find_checkpoint, write_checkpoint


def state(step: int) -> RunState:
    return RunState(step=step, seed=1)


def save(folder: Path) -> None:
    (folder / "weights").write_bytes(b"w")


def test_the_newest_complete_checkpoint_is_found(tmp_path: Path) -> None:
    assert find_checkpoint(tmp_path, "auto") is None
    for step in (2, 4, 10):
        write_checkpoint(tmp_path, state(step), save)
    found = find_checkpoint(tmp_path, "auto")
    assert found is not None
    assert found.state == state(10)
    assert (found.folder / "weights").read_bytes() == b"w"
    assert find_checkpoint(tmp_path, "never") is None


def test_the_adapted_kl_weight_comes_back_bit_for_bit(tmp_path: Path) -> None:
    coef = 0.1 * 1.2**7 / 3
    folder = write_checkpoint(tmp_path, replace(state(2), kl_coef=coef), save)
    found = find_checkpoint(tmp_path, "auto")
    assert found is not None
    assert found.state.kl_coef == coef
    run = json.loads((folder / "run.json").read_text())
    del run["kl_coef"]  # as in a checkpoint from before there was one
    (folder / "run.json").write_text(json.dumps(run))
    earlier = find_checkpoint(tmp_path, "auto")
    assert earlier is not None
    assert earlier.state == state(2)


def test_a_checkpoint_that_fails_half_way_leaves_the_one_before(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, state(2), save)

    def run_out_of_space(folder: Path) -> None:
        save(folder)
        raise OSError(28, "No space left on device")

    with pytest.raises(StorageError, match=r"step_000004.*disk is full"):
        write_checkpoint(tmp_path, state(4), run_out_of_space)
    found = find_checkpoint(tmp_path, "auto")
    assert found is not None
    assert found.state.step == 2
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == ["step_000002"]


def test_what_a_killed_writer_left_is_neither_found_nor_in_the_way(tmp_path: Path) -> None:
    partial = tmp_path / "checkpoints" / ".step_000002.partial"
    partial.mkdir(parents=True)
    (partial / "weights").write_bytes(b"half")
    assert find_checkpoint(tmp_path, "auto") is None
    write_checkpoint(tmp_path, state(2), save)
    assert not partial.exists()


def test_old_checkpoints_are_removed(tmp_path: Path) -> None:
    for step in range(1, 8):
        write_checkpoint(tmp_path, state(step), save)
    names = sorted(path.name for path in (tmp_path / "checkpoints").iterdir())
    assert names == [f"step_{step:06d}" for step in range(8 - KEEP_LAST, 8)]


def test_a_run_that_went_back_continues_from_what_it_wrote_last(tmp_path: Path) -> None:
    for step in (10, 20, 30, 40):
        write_checkpoint(tmp_path, state(step), save)
    for step in (15, 20):  # resumed from step 10
        written = write_checkpoint(tmp_path, state(step), save)
        found = find_checkpoint(tmp_path, "auto")
        assert found is not None
        assert (found.folder, found.state.step) == (written, step)
    names = sorted(path.name for path in (tmp_path / "checkpoints").iterdir())
    assert names == ["step_000015", "step_000020", "step_000040"]


def test_checkpoints_without_a_number_are_ordered_by_their_step(tmp_path: Path) -> None:
    for step in (2, 4):
        folder = write_checkpoint(tmp_path, state(step), save)
        run = json.loads((folder / "run.json").read_text())
        del run["number"], run["ledger"]
        (folder / "run.json").write_text(json.dumps(run))
    found = find_checkpoint(tmp_path, "auto")
    assert found is not None
    assert found.state.step == 4


def test_a_checkpoint_killed_while_it_was_removed_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for step in range(1, KEEP_LAST + 1):
        write_checkpoint(tmp_path, state(step), save)
    monkeypatch.setattr("envsdk.runs.checkpoints.shutil.rmtree", lambda *_, **__: None)
    write_checkpoint(tmp_path, state(KEEP_LAST + 1), save)
    monkeypatch.undo()
    found = find_checkpoint(tmp_path, "auto")
    assert found is not None
    assert found.state.step == KEEP_LAST + 1
    assert not (tmp_path / "checkpoints" / "step_000001").exists()
    write_checkpoint(tmp_path, state(KEEP_LAST + 2), save)
    assert len(list((tmp_path / "checkpoints").iterdir())) == KEEP_LAST


def test_a_named_checkpoint_must_be_one(tmp_path: Path) -> None:
    written = write_checkpoint(tmp_path, state(3), save)
    found = find_checkpoint(tmp_path / "other", str(written))
    assert found is not None
    assert found.state.step == 3
    with pytest.raises(ConfigurationError, match=r"resume: .* is no complete checkpoint"):
        find_checkpoint(tmp_path, str(tmp_path))


def test_a_damaged_checkpoint_is_named(tmp_path: Path) -> None:
    written = write_checkpoint(tmp_path, state(3), save)
    (written / "run.json").write_text("{")
    with pytest.raises(StorageError, match="step_000003 is damaged"):
        find_checkpoint(tmp_path, "auto")
