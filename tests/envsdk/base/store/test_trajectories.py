"""Trajectory files: exact round trips, whole or not at all, clear errors."""

from __future__ import annotations

import dataclasses
import math
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from envsdk.base.store.atomic import atomic_file, make_folder, remove_leftovers
from envsdk.base.store.trajectories import (
    SCHEMA,
    iter_trajectories,
    read_columns,
    read_metadata,
    read_rows,
    read_trajectories,
    write_trajectories,
)
from envsdk.contracts.failures import Boundary, Failure, StorageError
from envsdk.contracts.players import Seat
from envsdk.contracts.support import Support
from envsdk.contracts.trajectory import FinishReason, Outcome, Task, TokenArrays, Trajectory, Turn
from tests.envsdk.base.store.kept_files import KEPT, kept_trajectories
from tests.trajectories import trajectory_with

text = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
finite = st.floats(allow_nan=False)
int32 = st.integers(-(2**31), 2**31 - 1)
int64 = st.integers(-(2**63), 2**63 - 1)


@st.composite
def token_arrays(draw: st.DrawFn) -> TokenArrays:
    length = draw(st.integers(0, 8))

    def values(strategy: st.SearchStrategy[float], dtype: type[np.generic]) -> np.ndarray:
        return np.array(draw(st.lists(strategy, min_size=length, max_size=length)), dtype)

    return TokenArrays(
        ids=values(int32, np.int32),
        response_mask=values(st.integers(0, 1), np.int8),
        behavior_logprobs=values(st.floats(allow_nan=False, width=32), np.float32),
        versions=values(int32, np.int32),
        support=draw(st.none() | st.lists(st.lists(int32), min_size=length, max_size=length).map(Support.of)),
        experts=draw(st.none() | st.just(np.arange(length * 6, dtype=np.int16).reshape(length, 3, 2))),
    )


turns = st.builds(
    Turn,
    observation=text,
    reply=text,
    reward=finite,
    response_start=st.integers(0, 2**31 - 1),
    response_end=st.integers(0, 2**31 - 1),
    finish_reason=st.sampled_from([FinishReason.STOP, FinishReason.LENGTH, FinishReason.ABORT]),
    metrics=st.dictionaries(text, finite, max_size=3),
    state_hash=st.none() | text,
    details=st.none() | text,
    follows=st.none() | st.integers(-1, 2**31 - 1),
    role=st.just("") | text,
)
trajectories = st.builds(
    Trajectory,
    trajectory_id=text,
    group_id=int64,
    task=st.builds(Task, tag=text, split=text, index=st.integers(0, 2**62)),
    seed=st.integers(0, 2**31 - 1),
    outcome=st.sampled_from(Outcome),
    success=st.booleans(),
    turns=st.lists(turns, max_size=4).map(tuple),
    tokens=st.none() | token_arrays(),
    failure=st.none() | st.builds(Failure, boundary=st.sampled_from(Boundary), kind=text, message=text),
    final_observation=text,
    started_at=finite,
    ended_at=finite,
    generate_s=finite,
    env_s=finite,
    worker=text,
    seats=st.dictionaries(text, st.builds(Seat, player=text, score=finite), max_size=2),
    task_name=text,
).map(lambda each: dataclasses.replace(each, success=each.success and each.outcome is not Outcome.FAILED))


def same(left: Trajectory, right: Trajectory) -> bool:
    """Equality that looks into the token arrays, types included."""
    if (left.tokens is None) != (right.tokens is None):
        return False
    if left.tokens is not None and right.tokens is not None:
        tokens = [
            [
                getattr(each, field.name)
                for field in dataclasses.fields(TokenArrays)
                if field.name != "support"
            ]
            + ([None, None] if each.support is None else [each.support.counts, each.support.ids])
            for each in (left.tokens, right.tokens)
        ]
        for one, other in zip(*tokens, strict=True):
            if one is None or other is None:
                if one is not other:
                    return False
                continue
            if one.dtype != other.dtype or not np.array_equal(one, other):
                return False
    return dataclasses.replace(left, tokens=None) == dataclasses.replace(right, tokens=None)


def an_episode(index: int = 0, *, reply: str = "Up", num_turns: int = 2) -> Trajectory:
    return trajectory_with(
        trajectory_id=f"episode-{index}",
        group_id=index,
        task=Task(tag="Lake", split="train", index=index),
        seed=index,
        turns=tuple(
            Turn(observation="see", reply=reply, reward=0.5, response_start=0, response_end=0)
            for _ in range(num_turns)
        ),
        started_at=1.0,
        ended_at=2.0,
    )


def test_a_file_that_was_written_before_reads_equal_and_has_the_same_columns(tmp_path: Path) -> None:
    """New files have eight more, which only say something of episodes with several segments or players, of
    recorded experts, cut sampling, tools and tasks with names; in them a failed episode has no score."""
    written = read_trajectories(KEPT)
    assert len(written) == len(kept_trajectories())
    assert all(map(same, written, kept_trajectories()))
    write_trajectories(tmp_path / "new.parquet", kept_trajectories(), metadata={"step": "7"})
    new, old = pq.ParquetFile(tmp_path / "new.parquet"), pq.ParquetFile(KEPT)
    table = new.read()
    later = ["follows", "roles", "seats", "experts", "support_counts", "support_ids"]
    for name in later:
        assert table.column(name).null_count == len(table)
    for name in ("task_name", "tools"):
        assert set(table.column(name).to_pylist()) == {""}
    is_scored = pc.not_equal(table.column("outcome"), "failed")
    for name in ("success", "total_reward"):
        assert table.column(name).is_valid().equals(is_scored)
    scored = table.drop_columns([*later, "task_name", "tools"]).filter(is_scored)
    assert scored.cast(old.schema_arrow).equals(old.read().filter(is_scored))
    assert {**new.metadata.metadata, b"ARROW:schema": b""} == {**old.metadata.metadata, b"ARROW:schema": b""}


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow], deadline=None)
@given(st.lists(trajectories, max_size=6))
def test_what_is_written_is_read_back_exactly(tmp_path: Path, written: list[Trajectory]) -> None:
    path = tmp_path / "some.parquet"
    assert write_trajectories(path, written) == len(written)
    read = read_trajectories(path)
    assert len(read) == len(written)
    assert all(same(one, other) for one, other in zip(written, read, strict=True))


def test_tools_are_kept(tmp_path: Path) -> None:
    tools = [{"type": "function", "function": {"name": "look", "description": "Zürich \ud800"}}]
    write_trajectories(tmp_path / "t.parquet", [trajectory_with(tools=tools), trajectory_with()])
    with_tools, without = read_trajectories(tmp_path / "t.parquet")
    assert (list(with_tools.tools), list(without.tools)) == (tools, [])


def test_every_field_of_a_trajectory_has_a_column() -> None:
    spread = {"task": {"tag", "split", "index"}, "tokens": {"token_ids", "response_mask"}}
    for field in dataclasses.fields(Trajectory):
        if field.name == "shown":
            continue  # What a reader of the file has from its manifest.
        assert spread.get(field.name, {field.name}) <= set(SCHEMA.names)
    turn = SCHEMA.field("turns").type.value_type
    beside = {"state_hash", "details", "follows", "role"}
    """In columns of their own."""
    not_kept = {"generate_s", "env_s"}
    """Times of one machine: the same episode is the same file wherever it is played."""
    names = {field.name for field in dataclasses.fields(Turn)}
    assert names - beside - not_kept == {field.name for field in turn}


def test_no_column_has_a_type_that_hugging_face_datasets_lacks() -> None:
    def types(kind: pa.DataType) -> set[int]:
        inner = [kind.field(i).type for i in range(kind.num_fields)]
        return {kind.id}.union(*map(types, inner))

    found = set.union(*(types(field.type) for field in SCHEMA))
    assert pa.map_(pa.string(), pa.float64()).id not in found


def test_more_trajectories_than_one_row_group_keep_their_order(tmp_path: Path) -> None:
    path = tmp_path / "many.parquet"
    write_trajectories(path, (an_episode(index, num_turns=index % 3) for index in range(2500)))
    assert pq.ParquetFile(path).num_row_groups > 1
    read = list(iter_trajectories(path))
    assert [t.task.index for t in read] == list(range(2500))
    assert [len(t.turns) for t in read] == [index % 3 for index in range(2500)]


def test_no_row_group_holds_more_text_than_a_column_can(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("envsdk.base.store.trajectories._TEXT_PER_GROUP", 1000)
    path = tmp_path / "long.parquet"
    lengths = [100, 900, 5000, 300, 300, 10]
    written = [an_episode(index, reply="x" * length, num_turns=1) for index, length in enumerate(lengths)]
    write_trajectories(path, written)
    metadata = pq.ParquetFile(path).metadata
    num_rows = [metadata.row_group(index).num_rows for index in range(metadata.num_row_groups)]
    assert num_rows == [1, 1, 1, 3]
    assert all(map(same, read_trajectories(path), written))
    assert same(read_rows(path, [4])[0], written[4])


def test_single_rows_are_read_in_the_order_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "many.parquet"
    num_turns = [index % 3 for index in range(2100)]
    written = [an_episode(index, reply=f"reply {index}", num_turns=num_turns[index]) for index in range(2100)]
    write_trajectories(path, written)
    rows = [2099, 0, 1024, 1023, 5, 5]
    assert all(map(same, read_rows(path, rows), (written[row] for row in rows)))
    assert read_rows(path, []) == []
    for row in (2100, -1):
        with pytest.raises(IndexError, match="2100 trajectories"):
            read_rows(path, [0, row])


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow], deadline=None)
@given(st.lists(trajectories, min_size=1, max_size=6), st.data())
def test_a_row_is_read_like_the_whole_file(
    tmp_path: Path, written: list[Trajectory], data: st.DataObject
) -> None:
    path = tmp_path / "some.parquet"
    write_trajectories(path, written)
    row = data.draw(st.integers(0, len(written) - 1))
    (read,) = read_rows(path, [row])
    assert same(read, written[row])


def test_derived_columns_repeat_what_the_turns_say(tmp_path: Path) -> None:
    path = tmp_path / "some.parquet"
    write_trajectories(path, [an_episode(3, num_turns=3)])
    assert read_columns(path, ["num_turns", "total_reward"]) == {"num_turns": [3], "total_reward": [1.5]}


def test_metadata_comes_back_as_bytes_without_the_formats_own_keys(tmp_path: Path) -> None:
    path = tmp_path / "some.parquet"
    write_trajectories(path, [an_episode()], metadata={"text": "é", "raw": b"\x00\xff\n"})
    assert read_metadata(path) == {"text": "é".encode(), "raw": b"\x00\xff\n"}


def test_the_formats_own_metadata_key_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"envsdk\.schema_version"):
        write_trajectories(tmp_path / "some.parquet", [], metadata={"envsdk.schema_version": "2"})


def test_nan_rewards_and_metrics_survive(tmp_path: Path) -> None:
    path = tmp_path / "some.parquet"
    turn = dataclasses.replace(an_episode().turns[0], reward=math.nan, metrics={"score": math.nan})
    write_trajectories(path, [dataclasses.replace(an_episode(), turns=(turn,))])
    (read,) = read_trajectories(path)[0].turns
    assert math.isnan(read.reward)
    assert math.isnan(read.metrics["score"])


def test_a_lone_surrogate_is_replaced_and_does_not_lose_the_episode(tmp_path: Path) -> None:
    path = tmp_path / "some.parquet"
    write_trajectories(path, [an_episode(reply="go \ud800 😀")])
    assert read_trajectories(path)[0].turns[0].reply == "go \ufffd 😀"


def test_arrays_that_were_read_can_be_written_to(tmp_path: Path) -> None:
    path = tmp_path / "some.parquet"
    log = TokenArrays(
        ids=np.array([1, 2], np.int32),
        response_mask=np.array([0, 1], np.int8),
        behavior_logprobs=np.array([0, -0.5], np.float32),
        versions=np.array([-1, 4], np.int32),
    )
    write_trajectories(path, [an_episode(), dataclasses.replace(an_episode(1), tokens=log)])
    first, second = read_trajectories(path)
    assert first.tokens is None
    assert second.tokens is not None
    assert second.tokens.oldest_version == 4
    assert second.tokens.ids.flags.writeable


def test_a_flipped_byte_is_either_harmless_or_an_error_that_names_the_file(tmp_path: Path) -> None:
    path = tmp_path / "some.parquet"
    written = [an_episode(index) for index in range(5)]
    write_trajectories(path, written)
    content = path.read_bytes()
    num_noticed = 0
    for position in range(0, len(content), 7):
        damaged = bytearray(content)
        damaged[position] ^= 0xFF
        path.write_bytes(damaged)
        try:
            read = read_trajectories(path)
        except StorageError as error:
            num_noticed += str(path) in str(error)
        else:
            assert all(same(one, other) for one, other in zip(written, read, strict=True))
    assert num_noticed > 0.6 * len(content) / 7


@pytest.mark.parametrize("content", [b"", b"hello", b"PAR1" + b"\x00" * 50 + b"PAR1"])
def test_a_file_that_is_not_parquet_is_named(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "some.parquet"
    path.write_bytes(content)
    for read in (read_trajectories, read_metadata):
        with pytest.raises(StorageError, match=r"some\.parquet is damaged or not a Parquet file"):
            read(path)


def test_a_truncated_file_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "some.parquet"
    write_trajectories(path, [an_episode()])
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(StorageError, match=r"some\.parquet is damaged"):
        read_trajectories(path)


def test_another_parquet_file_and_a_newer_schema_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "some.parquet"
    table = pa.table({"a": [1]})
    pq.write_table(table, path)
    with pytest.raises(StorageError, match="not one that envsdk wrote"):
        read_trajectories(path)
    pq.write_table(table.replace_schema_metadata({"envsdk.schema_version": "99"}), path)
    with pytest.raises(StorageError, match="Upgrade envsdk"):
        read_trajectories(path)


def test_a_missing_file_and_a_missing_folder_are_named(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match=r"no trajectory file .*nothing\.parquet"):
        read_trajectories(tmp_path / "nothing.parquet")
    with pytest.raises(StorageError, match=r"Cannot write .*absent/some\.parquet"):
        write_trajectories(tmp_path / "absent" / "some.parquet", [an_episode()])


def test_an_error_in_the_middle_leaves_the_earlier_file_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "some.parquet"
    write_trajectories(path, [an_episode(7)])

    def broken():
        yield from (an_episode(index) for index in range(2000))
        raise RuntimeError("producer died")

    with pytest.raises(RuntimeError, match="producer died"):
        write_trajectories(path, broken())
    assert [t.task.index for t in read_trajectories(path)] == [7]
    assert os.listdir(tmp_path) == ["some.parquet"]


def test_a_file_that_cannot_grow_is_reported_and_nothing_is_half_written(tmp_path: Path) -> None:
    # The limit on file size makes write(2) fail in the middle, as a full disk does.
    script = """
        import random, resource, sys
        from pathlib import Path
        from envsdk.contracts.failures import StorageError
        from envsdk.base.store.trajectories import write_trajectories
        from tests.envsdk.base.store.test_trajectories import an_episode
        sys.dont_write_bytecode = True  # a later import would leave a bytecode file cut at the limit
        resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))
        noise = random.Random(0)
        try:
            write_trajectories(
                Path(sys.argv[1]), [an_episode(i, reply=noise.randbytes(200).hex()) for i in range(1000)]
            )
        except StorageError as error:
            print(error)
    """
    path = tmp_path / "some.parquet"
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script), str(path)],
        capture_output=True,
        text=True,
        check=True,
        cwd=Path(__file__).parents[4],
    )
    assert done.stdout.startswith(f"Cannot write {path}: File too large.")
    assert os.listdir(tmp_path) == []


def test_a_full_disk_is_named_with_what_to_do(tmp_path: Path) -> None:
    path = tmp_path / "some.bin"

    def fill_the_disk() -> None:
        with atomic_file(path) as file, open("/dev/full", "wb", buffering=0) as full:
            file.write(b"half")
            full.write(b"x")

    with pytest.raises(StorageError, match=r"some\.bin: No space left on device\. .*free some space"):
        fill_the_disk()
    assert os.listdir(tmp_path) == []


def test_a_killed_writer_leaves_only_what_remove_leftovers_takes_away(tmp_path: Path) -> None:
    script = """
        import os, signal, sys
        from pathlib import Path
        from envsdk.base.store.atomic import atomic_file
        with atomic_file(Path(sys.argv[1])) as file:
            file.write(b"half"); file.flush()
            os.kill(os.getpid(), signal.SIGKILL)
    """
    path = tmp_path / "some.bin"
    subprocess.run([sys.executable, "-c", textwrap.dedent(script), str(path)], check=False)
    assert not path.exists()
    assert len(os.listdir(tmp_path)) == 1
    remove_leftovers(tmp_path)
    assert os.listdir(tmp_path) == []


def test_files_get_the_permissions_of_ordinary_files(tmp_path: Path) -> None:
    ordinary = tmp_path / "ordinary"
    ordinary.touch()
    write_trajectories(tmp_path / "some.parquet", [])
    assert (tmp_path / "some.parquet").stat().st_mode == ordinary.stat().st_mode


def test_make_folder_refuses_a_file_in_its_place(tmp_path: Path) -> None:
    (tmp_path / "taken").touch()
    with pytest.raises(StorageError, match="is a file, not a folder"):
        make_folder(tmp_path / "taken")
    with pytest.raises(StorageError, match="a file, not a folder"):
        make_folder(tmp_path / "taken" / "below")
    make_folder(tmp_path / "a" / "b")
    assert os.listdir(tmp_path / "a" / "b") == []
