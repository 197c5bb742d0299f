from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from envsdk.contracts.failures import ConfigurationError, StorageError
from envsdk.runs.checkpoints import RunState, find_checkpoint, link_best, write_checkpoint


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


def kept(run_dir: Path) -> list[int]:
    return sorted(int(path.name.removeprefix("step_")) for path in (run_dir / "checkpoints").glob("step_*"))


@pytest.mark.parametrize(
    ("keep", "steps"), [(0, [1, 2, 3, 4, 5]), (1, [5]), (2, [4, 5]), (9, [1, 2, 3, 4, 5])]
)
def test_the_newest_checkpoints_stay(keep: int, steps: list[int], tmp_path: Path) -> None:
    for step in range(1, 6):
        write_checkpoint(tmp_path, state(step), save, keep=keep)
    assert kept(tmp_path) == steps


def test_the_best_checkpoint_stays_until_another_is_the_best(tmp_path: Path) -> None:
    link_best(tmp_path, None)
    for step in range(1, 6):
        write_checkpoint(tmp_path, state(step), save, keep=2, spared={2})
        link_best(tmp_path, 2)
    best = tmp_path / "checkpoints" / "best"
    assert kept(tmp_path) == [2, 4, 5]
    assert best.resolve().name == "step_000002"
    assert not best.readlink().is_absolute()  # the run's folder may be moved
    found = find_checkpoint(tmp_path, str(best))
    assert found is not None
    assert found.state.step == 2
    newest = find_checkpoint(tmp_path, "auto")
    assert newest is not None
    assert newest.state.step == 5
    write_checkpoint(tmp_path, state(6), save, keep=2, spared={6})
    link_best(tmp_path, 6)
    assert kept(tmp_path) == [5, 6]
    assert best.resolve().name == "step_000006"
    link_best(tmp_path, 0)  # a run that went back has no best one
    assert not best.is_symlink()


def test_a_run_that_went_back_continues_from_what_it_wrote_last(tmp_path: Path) -> None:
    for step in (10, 20, 30, 40):
        write_checkpoint(tmp_path, state(step), save, keep=3)
    for step in (15, 20):  # resumed from step 10
        written = write_checkpoint(tmp_path, state(step), save, keep=3)
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
    for step in (1, 2, 3):
        write_checkpoint(tmp_path, state(step), save, keep=3)
    monkeypatch.setattr("envsdk.runs.checkpoints.shutil.rmtree", lambda *_, **__: None)
    write_checkpoint(tmp_path, state(4), save, keep=3)
    monkeypatch.undo()
    found = find_checkpoint(tmp_path, "auto")
    assert found is not None
    assert found.state.step == 4
    assert not (tmp_path / "checkpoints" / "step_000001").exists()
    write_checkpoint(tmp_path, state(5), save, keep=3)
    assert len(list((tmp_path / "checkpoints").iterdir())) == 3


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
