"""What is looked at, and what is said when there is nothing."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envsdk.base.store.shards import Manifest
from envsdk.base.store.trajectories import write_trajectories
from envsdk.contracts.failures import ConfigurationError
from envsdk.view.sources import Kind, Use, file_order, file_role, find_sources
from envsdk.view.token_text import find_tokenizer, load_decoder, pieces
from tests.envsdk.view.view_runs import encode, make_trajectory, tokenizer, write_run

TOKENIZER = tokenizer()


def decode(ids: Sequence[int]) -> str:
    return str(TOKENIZER.decode(list(ids), skip_special_tokens=False))


def test_a_run_is_found_by_itself_and_below_its_folder(tmp_path: Path) -> None:
    run = write_run(tmp_path / "runs" / "tiny")
    (alone,) = find_sources(run)
    assert (alone.name, alone.kind, alone.folder) == ("tiny", Kind.RUN, run)
    (below,) = find_sources(tmp_path / "runs")
    assert below == alone
    (deeper,) = find_sources(tmp_path)
    assert deeper.name == "runs/tiny"
    assert deeper.source_id == alone.source_id


def test_runs_and_data_sets_stand_side_by_side(tmp_path: Path) -> None:
    write_run(tmp_path / "b_run")
    (tmp_path / "a_data").mkdir()
    write_trajectories(tmp_path / "a_data" / "part-00000.parquet", [make_trajectory(1)])
    (tmp_path / "c_started").mkdir()
    Manifest(config={}, versions={}, command=[], num_planned=1, created_at="").save(tmp_path / "c_started")
    (tmp_path / "notes").mkdir()
    found = [(source.name, source.kind) for source in find_sources(tmp_path)]
    assert found == [("a_data", Kind.DATA), ("b_run", Kind.RUN), ("c_started", Kind.DATA)]


def test_a_missing_folder_names_what_is_near(tmp_path: Path) -> None:
    write_run(tmp_path / "tiny")
    with pytest.raises(ConfigurationError, match=r"there is no folder .*tinny.* there are: tiny"):
        find_sources(tmp_path / "tinny")
    with pytest.raises(ConfigurationError, match="envsdk train"):
        find_sources(tmp_path / "nowhere" / "tiny")


@pytest.mark.parametrize("names", [[], ["photo.jpg", "manifest.json"]])
def test_a_foreign_folder_says_what_it_has_and_what_it_lacks(tmp_path: Path, names: list[str]) -> None:
    for name in names:
        (tmp_path / name).write_text("{}")
    with pytest.raises(ConfigurationError, match="neither runs nor data sets") as caught:
        find_sources(tmp_path)
    assert all(name in str(caught.value) for name in names)
    assert "metrics.jsonl" in str(caught.value)


def test_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text("")
    with pytest.raises(ConfigurationError, match="is a file"):
        find_sources(tmp_path / "metrics.jsonl")


@pytest.mark.parametrize(
    ("name", "kind", "use", "step", "origin"),
    [
        ("step_000012.parquet", Kind.RUN, Use.TRAIN, 12, "train"),
        ("val_000020.parquet", Kind.RUN, Use.VALIDATION, 20, "val_20"),
        ("discarded_step_000003.parquet", Kind.RUN, Use.DISCARDED, 3, "train"),
        ("discarded_step_000003_12.parquet", Kind.RUN, Use.DISCARDED, 3, "train"),
        ("step_000003_12.parquet", Kind.RUN, Use.DATA, None, "data"),
        ("discarded_val_000003.parquet", Kind.RUN, Use.DISCARDED, 3, "val_3"),
        ("part-00001.parquet", Kind.DATA, Use.DATA, None, "data"),
        ("step_000012.parquet", Kind.DATA, Use.DATA, None, "data"),
    ],
)
def test_a_files_name_says_what_it_was_for(
    name: str, kind: Kind, use: Use, step: int | None, origin: str
) -> None:
    role = file_role(name, kind)
    assert (role.use, role.step, role.origin) == (use, step, origin)


def test_files_are_in_the_order_of_their_numbers() -> None:
    names = ["step_000010.parquet", "step_9.parquet", "part-2.parquet"]
    assert sorted(names, key=file_order) == ["part-2.parquet", "step_9.parquet", "step_000010.parquet"]


@given(st.text(max_size=60))
def test_the_pieces_of_a_text_are_its_text(text: str) -> None:
    ids = encode(text)
    shown = pieces(decode, ids)
    assert len(shown) == len(ids)
    assert "".join(shown) == decode(ids) == text


@given(st.lists(st.integers(0, 255), max_size=40))
def test_any_ids_have_pieces(ids: list[int]) -> None:
    assert len(pieces(decode, ids)) == len(ids)


def test_a_character_of_several_tokens_shows_at_its_last() -> None:
    assert pieces(decode, encode("a漢b")) == ["a", "", "", "漢", "b"]


def test_a_run_s_own_tokenizer_is_used_then_its_newest_checkpoint_s_then_the_model_s(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run")
    (source,) = find_sources(run)
    newer = run / "checkpoints" / "step_000008" / "model"
    newer.mkdir(parents=True)
    tokenizer().save(str(newer / "tokenizer.json"))
    assert find_tokenizer(source) == newer / "tokenizer.json"
    own = run / "tokenizer.json"
    tokenizer().save(str(own))
    assert find_tokenizer(source) == own
    own.unlink()
    model = tmp_path / "model"
    model.mkdir()
    tokenizer().save(str(model / "tokenizer.json"))
    shutil.rmtree(run / "checkpoints")
    assert find_tokenizer(source) is None
    (run / "config.yaml").write_text(f"pretrain: {model}\n")
    assert find_tokenizer(source) == model / "tokenizer.json"


def test_the_tokenizer_of_the_model_that_played_a_data_set_is_used(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    tokenizer().save(str(tmp_path / "model" / "tokenizer.json"))
    data = tmp_path / "data"
    data.mkdir()
    config = {"model": {"folder": str(tmp_path / "model")}}
    Manifest(config=config, versions={}, command=[], num_planned=1, created_at="").save(data)
    (source,) = find_sources(data)
    assert find_tokenizer(source) == tmp_path / "model" / "tokenizer.json"
    (data / "manifest.json").write_text((data / "manifest.json").read_text().replace('"model"', '"player"'))
    assert find_tokenizer(source) is None


def test_other_formats_beside_the_shards_of_a_data_set_are_left_alone(tmp_path: Path) -> None:
    for name in ("part-00001.parquet", "part-00000.parquet", "messages-00000.parquet"):
        write_trajectories(tmp_path / name, [make_trajectory(1)])
    (source,) = find_sources(tmp_path)
    assert [path.name for path in source.trajectory_files()] == ["part-00000.parquet", "part-00001.parquet"]


def test_a_tokenizer_that_is_none_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"there is no .*tokenizer\.json"):
        load_decoder(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(ConfigurationError, match="is not a tokenizer file"):
        load_decoder(tmp_path)


def test_ids_beyond_the_vocabulary_do_not_break_a_page(tmp_path: Path) -> None:
    tokenizer().save(str(tmp_path / "tokenizer.json"))
    loaded = load_decoder(tmp_path)
    assert loaded([*encode("Left"), 10**6, -1]) == "Left"
