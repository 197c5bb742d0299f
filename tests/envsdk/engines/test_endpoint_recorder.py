"""Ended sessions on disk."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from envsdk.base.store.trajectories import read_metadata, read_trajectories
from envsdk.contracts.failures import ConfigurationError, StorageError
from envsdk.contracts.trajectory import Trajectory
from envsdk.engines.endpoint.errors import ApiError
from envsdk.engines.endpoint.recorder import SessionRecorder
from envsdk.engines.endpoint.sampling import SamplingRules
from envsdk.engines.endpoint.sessions import SessionBook


def episodes(*names: str) -> list[Trajectory]:
    book = SessionBook("token", max_sessions=100, idle_s=1.0)
    sessions = [book.open(rules=SamplingRules(), session_id=name) for name in names]
    return [session.episode() for session in sessions]


def names_in(folder: Path) -> list[list[str]]:
    return [
        [trajectory.trajectory_id for trajectory in read_trajectories(path)]
        for path in sorted(folder.glob("part-*.parquet"))
    ]


async def test_sessions_that_end_during_a_write_share_the_next_file(tmp_path: Path) -> None:
    with SessionRecorder(tmp_path, model_name="m") as recorder:
        await asyncio.gather(*(recorder.add(episodes(name)) for name in "abcd"))
    assert names_in(tmp_path) == [["a", "b", "c", "d"]]
    assert read_metadata(tmp_path / "part-00000.parquet")["envsdk.endpoint.model"] == b"m"


async def test_another_server_goes_on_with_the_next_number(tmp_path: Path) -> None:
    for name in "ab":
        with SessionRecorder(tmp_path, model_name="m") as recorder:
            await recorder.add(episodes(name))
            await recorder.add([])
    assert names_in(tmp_path) == [["a"], ["b"]]


async def test_another_server_continues_to_count_and_refuses_recorded_ids(tmp_path: Path) -> None:
    for expected in ([0, 1], [2, 3]):
        with SessionRecorder(tmp_path, model_name="m") as recorder:
            book = SessionBook("token", max_sessions=100, idle_s=1.0, used=recorder.used)
            for index in expected:
                session = book.open(rules=SamplingRules(), session_id=f"s{index}")
                assert (session.task.index, session.group_id) == (index, index)
                await recorder.add([session.episode()])
                book.end(session)
                with pytest.raises(ApiError, match="recorded"):
                    book.open(rules=SamplingRules(), session_id=f"s{index}")


async def test_a_failed_write_is_the_callers_and_the_next_one_can_succeed(tmp_path: Path) -> None:
    folder = tmp_path / "out"
    with SessionRecorder(folder, model_name="m") as recorder:
        blocker = folder / "part-00000.parquet"
        blocker.mkdir()
        with pytest.raises(StorageError):
            await recorder.add(episodes("a"))
        blocker.rmdir()
        await recorder.add(episodes("a"))
    assert names_in(folder) == [["a"]]


def test_a_collections_folder_and_one_in_use_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("envsdk.base.store.shards._LOCK_PATIENCE_S", 0.0)
    with SessionRecorder(tmp_path, model_name="m"), pytest.raises(StorageError, match="Another process"):
        SessionRecorder(tmp_path, model_name="m").__enter__()
    (tmp_path / "manifest.json").write_text("{}")
    with pytest.raises(ConfigurationError, match="collection"):
        SessionRecorder(tmp_path, model_name="m").__enter__()


def test_a_session_that_could_not_be_ended_is_open_again() -> None:
    book = SessionBook("token", max_sessions=1, idle_s=1.0)
    session = book.open(rules=SamplingRules(), session_id="a")
    book.end(session)
    with pytest.raises(ApiError):
        book.get("a")
    book.restore(session)
    assert book.get("a") is session
    assert not session.is_over
