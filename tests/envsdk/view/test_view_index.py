"""The index keeps up with a folder: new files, replaced ones, damaged ones, and its own loss."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from dataclasses import replace
from importlib.resources import files
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from envsdk.base.store.trajectories import write_trajectories
from envsdk.contracts.failures import StorageError
from envsdk.view.columns import list_columns
from envsdk.view.filters import Filter
from envsdk.view.index import TrajectoryIndex, key, parse_key, pick
from envsdk.view.rows import token_stats
from envsdk.view.sources import find_sources
from tests.envsdk.view.view_runs import make_batch, make_trajectory, write_run


def open_index(folder: Path, cache: Path) -> TrajectoryIndex:
    return TrajectoryIndex.open(find_sources(folder)[0], folder=cache)


def found(index: TrajectoryIndex, **wanted: str) -> int:
    return index.search(Filter.from_params(wanted)).total


def test_only_new_files_are_read(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run")
    index = open_index(run, tmp_path / "cache")
    num_files = len(list(run.glob("trajectories/*.parquet")))
    assert index.refresh() == num_files
    assert index.refresh() == 0
    before = index.count()
    write_trajectories(run / "trajectories" / "step_000004.parquet", make_batch(4))
    again = open_index(run, tmp_path / "cache")
    assert again.refresh() == 1
    assert again.count() == before + 8


def test_progress_is_told_file_by_file(tmp_path: Path) -> None:
    index = open_index(write_run(tmp_path / "run"), tmp_path / "cache")
    told: list[tuple[int, int]] = []
    number = index.refresh(lambda done, files: told.append((done, files)))
    assert told == [(done, number) for done in range(number + 1)]


def test_a_file_that_was_replaced_counts_once_and_only_with_its_new_texts(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run")
    index = open_index(run, tmp_path / "cache")
    index.refresh()
    before = index.count()
    replaced = run / "trajectories" / "step_000002.parquet"
    write_trajectories(replaced, [make_trajectory(5, replies=("zebra",))])
    assert index.refresh() == 1
    assert index.count() == before - 7
    assert found(index, q="zebra") == 1
    write_trajectories(replaced, [make_trajectory(5, replies=("yak",), observation="there")])
    index.refresh()
    assert (found(index, q="zebra"), found(index, q="yak")) == (0, 1)
    replaced.unlink()
    index.refresh()
    assert index.count() == before - 8
    assert found(index, q="yak") == 0


def test_a_row_has_the_name_that_an_environment_gives_its_task(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run")
    named = replace(make_trajectory(5), task_name="median_bug")
    write_trajectories(run / "trajectories" / "step_000004.parquet", [named, make_trajectory(6)])
    index = open_index(run, tmp_path / "cache")
    index.refresh()
    assert {row["task_name"] for row in index.search(Filter.from_params({})).rows} == {"", "median_bug"}


def test_a_damaged_file_is_named_and_the_others_are_read(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run")
    damaged = run / "trajectories" / "step_000001.parquet"
    whole = damaged.read_bytes()
    damaged.write_bytes(whole[: len(whole) // 2])
    index = open_index(run, tmp_path / "cache")
    index.refresh()
    (problem,) = index.problems()
    assert damaged.name in problem
    count = index.count()
    damaged.write_bytes(whole)
    assert index.refresh() == 1
    assert index.problems() == []
    assert index.count() == count + 8


def test_parquet_files_of_others_are_named_as_such(tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(pa.table({"text": ["a"]}), tmp_path / "other.parquet")
    index = open_index(tmp_path, tmp_path / "cache")
    index.refresh()
    assert index.count() == 0
    assert "not one that envsdk wrote" in index.problems()[0]


def test_an_index_that_is_damaged_or_of_another_format_is_made_anew(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run")
    index = open_index(run, tmp_path / "cache")
    index.refresh()
    count = index.count()
    for content in (b"not a database" * 100, b""):
        for file in (tmp_path / "cache").glob("*"):
            file.unlink()
        index.path.write_bytes(content)
        again = open_index(run, tmp_path / "cache")
        again.refresh()
        assert again.count() == count
    import sqlite3

    with sqlite3.connect(index.path) as db:
        db.execute("PRAGMA user_version = 99")
    db.close()
    again = open_index(run, tmp_path / "cache")
    assert again.count() == 0
    again.refresh()
    assert again.count() == count


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_cache_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "cache").mkdir(mode=0o500)
    with pytest.raises(StorageError, match="cache"):
        open_index(write_run(tmp_path / "run"), tmp_path / "cache")


def test_two_processes_may_index_the_same_run_at_once(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run")
    code = textwrap.dedent(
        """
        import sys
        from pathlib import Path
        from envsdk.view.index import TrajectoryIndex
        from envsdk.view.sources import find_sources
        index = TrajectoryIndex.open(find_sources(Path(sys.argv[1]))[0], folder=Path(sys.argv[2]))
        index.refresh()
        print(index.count())
        """
    )
    command = [sys.executable, "-c", code, str(run), str(tmp_path / "cache")]
    started = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    counts = [process.communicate()[0].strip() for process in started]
    alone = open_index(run, tmp_path / "alone")
    alone.refresh()
    assert counts == [str(alone.count())] * 2


def test_counts_by_tag_and_use_add_up(tmp_path: Path) -> None:
    index = open_index(write_run(tmp_path / "run"), tmp_path / "cache")
    index.refresh()
    summary = index.summary()
    assert summary["count"] == index.count() == 8 * 4 + 2 + 2 * 2
    assert sum(row["failed"] for row in summary["by_tag"]) == 1
    (failure,) = index.failures()
    assert (failure["boundary"], failure["kind"], failure["count"]) == ("environment", "step_timeout", 1)
    assert failure["first_step"] == 1


def test_a_discarded_trajectory_says_why(tmp_path: Path) -> None:
    index = open_index(write_run(tmp_path / "run"), tmp_path / "cache")
    index.refresh()
    rows = index.search(Filter(use="discarded")).rows
    assert [row["why"] for row in rows] == ["failed: step_timeout", "stale: 2 versions behind"]


@given(st.text(st.characters(exclude_characters="/\x00"), min_size=1, max_size=20), st.integers(0, 10**8))
def test_a_key_names_a_file_and_a_row(stem: str, row: int) -> None:
    assert parse_key(key(f"{stem}.parquet", row)) == (f"{stem}.parquet", row)


@pytest.mark.parametrize(
    "text", ["", ":", "step_000001", "step_000001:", ":3", "a:-1", "a:٣x", "a:99999999999"]
)
def test_what_is_no_key_is_none(text: str) -> None:
    assert parse_key(text) is None


sampled_rows = st.lists(st.tuples(st.integers(0, 6), st.booleans()), max_size=60).map(
    lambda pairs: [(at, f"train/{group}", int(failed)) for at, (group, failed) in enumerate(pairs)]
)


@given(sampled_rows, st.integers(0, 30))
def test_a_sample_is_in_order_within_its_size_and_not_empty_without_need(
    rows: list[tuple[int, str, int]], number: int
) -> None:
    picked = pick(rows, number)
    assert picked == sorted(set(picked))
    assert len(picked) <= number
    assert set(picked) <= {row for row, _, _ in rows}
    num_failed = sum(failed for _, _, failed in rows)
    assert sum(rows[row][2] for row in picked) == min(num_failed, number // 4)
    if number and num_failed < len(rows):
        assert any(not rows[row][2] for row in picked) or number // 4 == number


@given(st.lists(st.tuples(st.integers(0, 1), st.floats(-20, 0, width=32), st.integers(0, 9)), max_size=20))
def test_token_statistics_look_at_sampled_tokens_only(tokens: list[tuple[int, float, int]]) -> None:
    mask = np.array([token[0] for token in tokens], np.int8)
    logprobs = np.array([token[1] for token in tokens], np.float32)
    versions = np.array([token[2] for token in tokens], np.int32)
    stats = token_stats(mask, logprobs, versions)
    sampled = [token for token in tokens if token[0]]
    assert (stats.num_tokens, stats.num_sampled) == (len(tokens), len(sampled))
    assert stats.versions == tuple(sorted({version for _, _, version in sampled}))
    if sampled:
        assert stats.mean_logprob == pytest.approx(sum(one for _, one, _ in sampled) / len(sampled))
    else:
        assert stats.mean_logprob is None


def test_every_column_of_the_list_is_written_in_a_form_that_the_page_knows() -> None:
    script = files("envsdk.view").joinpath("assets/trajectories.js").read_text(encoding="utf-8")
    for column in list_columns():
        assert f"    {column['form']}: " in script or f'=== "{column["form"]}"' in script
