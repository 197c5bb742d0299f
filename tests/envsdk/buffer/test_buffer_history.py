"""What is computed from the times in a buffer is what its rows say."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import sqlalchemy as sa

from envsdk.buffer.history import History, read_history
from envsdk.buffer.places import opened
from envsdk.buffer.tables import groups
from tests.envsdk.buffer.buffer_jobs import BEGAN, Job, play


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("played") / "buffer.db"
    play(str(file))
    return file


def history_of(path: Path, **options: int) -> tuple[History, list[sa.RowMapping]]:
    with opened(str(path)) as engine:
        with engine.connect() as connection:
            rows = connection.execute(sa.select(groups)).mappings().all()
        return read_history(engine, **options), list(rows)


def stage_at(row: sa.RowMapping, time: float) -> str | None:
    """Where a group was just before a time."""
    ends = [row["taken_at"], row["ended_at"]]
    if row["created_at"] >= time or any(end is not None and end < time for end in ends):
        return None
    return "ready" if row["ready_at"] is not None and row["ready_at"] < time else "played"


def check_depth(history: History, rows: list[sa.RowMapping]) -> None:
    # What happens at the very end counts to the last interval.
    times = [*history.times[:-1], history.times[-1] + 1]
    for at, time in enumerate(times):
        stages = [stage_at(row, history.began_at + time) for row in rows]
        for stage in ("played", "ready"):
            assert history.depth[stage][at] == stages.count(stage)


def test_the_depth_at_a_time_is_the_number_of_groups_in_each_state(played: Path) -> None:
    history, rows = history_of(played, num_times=97)
    check_depth(history, rows)
    assert {stage: counts[-1] for stage, counts in history.depth.items()} == {
        "played": 2,
        "ready": 1,
        "training": 2,
    }


def test_a_batch_is_trained_on_until_the_next_weights_are_published(played: Path) -> None:
    history, _ = history_of(played, num_times=78)
    # Batches are taken after 16, 42 and 68 s, weights published after 26 and 52 s.
    counts = history.depth["training"]
    changes = [at + 1 for at in range(1, 78) if counts[at] != counts[at - 1]]
    assert changes == [17, 27, 43, 53, 69]


def test_what_explorers_brought_and_steps_are_counted(played: Path) -> None:
    history, _ = history_of(played, num_times=3)
    east, west = history.brought
    assert (east.explorer, east.num_ready, sum(east.by_time)) == ("east", 6, 6)
    assert (west.num_ready, west.num_dropped) == (4, 2)
    assert [(step.step, step.waited_s, step.num_groups) for step in history.steps] == [
        (0, 6.0, 2),
        (1, 7.0, 2),
        (2, 8.0, 2),
    ]


@pytest.mark.parametrize("seed", range(3))
def test_any_times_give_the_depth_of_their_rows(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    job = Job(str(tmp_path / "buffer.db"))
    rows = []
    for number in range(300):
        times = sorted(BEGAN + rng.randint(0, 4000) / 4 for _ in range(4))
        is_ready = rng.random() < 0.8
        is_taken, is_over = is_ready and rng.random() < 0.6, rng.random() < 0.7
        rows.append(
            {
                "tag": "maze",
                "task_index": number,
                "state": "ready",
                "attempt": 0,
                "explorer": rng.choice(["a", "b"]),
                "incarnation": "",
                "token": "",
                "uses": 0,
                "rests_until": 0,
                "num_trajectories": 1,
                "num_tokens": 1,
                "num_bytes": 1,
                "mean_reward": 0.0,
                "created_at": times[0],
                "ready_at": times[1] if is_ready else None,
                "taken_at": times[2] if is_taken else None,
                "ended_at": times[3] if is_over else None,
            }
        )
    with job.buffer.engine.begin() as connection:
        connection.execute(groups.insert(), rows)
    history, found = history_of(tmp_path / "buffer.db", num_times=50)
    check_depth(history, found)
    assert sum(sum(each.by_time) for each in history.brought) == sum(
        row["ready_at"] is not None for row in rows
    )


def test_a_job_that_has_just_begun_has_a_history(tmp_path: Path) -> None:
    Job(str(tmp_path / "buffer.db"))
    history, _ = history_of(tmp_path / "buffer.db")
    assert set(history.depth["played"]) == {0}
    assert not history.brought
    assert not history.steps
