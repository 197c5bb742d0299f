"""`envsdk buffer`: what it shows and changes, and what it says when something is wrong."""

from __future__ import annotations

import json
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
import sqlalchemy as sa

from envsdk.base.store.trajectories import read_trajectories
from envsdk.buffer import tables
from envsdk.buffer.command import main
from envsdk.buffer.contract import GroupState, Role, Signal
from envsdk.buffer.inspection import inspect
from envsdk.buffer.places import opened
from tests.envsdk.buffer.buffer_jobs import BEGAN, GROUP_SIZE, Job, play

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("played") / "buffer.db"
    play(str(file))
    return file


@pytest.fixture
def job(tmp_path: Path, played: Path) -> Path:
    """A job's folder."""
    shutil.copy(played, tmp_path)
    return tmp_path


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs the command: its exit code, and what it prints on stdout and stderr."""

    def run(*argv: object) -> tuple[int, str, str]:
        code = main([str(each) for each in argv])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run


def states(folder: Path) -> dict[str, int]:
    with opened(str(folder / "buffer.db")) as engine:
        return {state.value: total.num_groups for state, total in inspect(engine).by_state().items()}


def change(folder: Path, statement: str) -> None:
    with closing(sqlite3.connect(folder / "buffer.db", isolation_level=None)) as connection:
        connection.execute(statement)


def test_a_table_shows_groups_by_state_tag_explorer_and_version(job: Path, run: Run) -> None:
    code, out, _ = run(job)
    assert code == 0
    rows = [line.split() for line in out.splitlines()]
    assert next(row[:7] for row in rows if row[:1] == ["open"]) == ["open", "1", "0", "0", "0", "B", "-"]
    assert next(row for row in rows if row[:1] == ["FrozenLake"])[1:7] == ["-", "1", "1", "1", "2", "2"]
    assert next(row for row in rows if row[:1] == ["west"])[1:7] == ["1", "-", "1", "-", "2", "2"]
    assert next(row for row in rows if row[:1] == ["1"])[1:7] == ["-", "-", "1", "2", "-", "-"]
    assert ["too", "old", "3"] in rows


def test_programs_versions_and_steps_are_listed(job: Path) -> None:
    with opened(str(job / "buffer.db")) as engine:
        content = inspect(engine, now=BEGAN + 100)
    programs = {program.name: program for program in content.programs}
    assert {name: program.state(content.read_at) for name, program in programs.items()} == {
        "trainer": "lives",
        "east": "lives",
        "west": "left",
    }
    assert (programs["east"].num_held, programs["east"].waited_places_s, programs["east"].version) == (
        1,
        4,
        2,
    )
    assert [(one.version, one.method) for one in content.newest_versions] == [
        (2, "checkpoint"),
        (1, "checkpoint"),
        (0, "checkpoint"),
    ]
    assert [(one.step, one.waited_s, one.trained_at is None) for one in content.newest_steps] == [
        (2, 8.0, True),
        (1, 7.0, False),
        (0, 6.0, False),
    ]


def test_groups_are_as_old_as_their_state(job: Path) -> None:
    with opened(str(job / "buffer.db")) as engine:
        by_state = inspect(engine).by_state()
    # The batch of step 2 was taken 10 s before the end; the ready group came one second before that.
    assert by_state[GroupState.TAKEN].first_at == by_state[GroupState.READY].last_at + 1


def test_json_is_alone_on_stdout(job: Path, run: Run) -> None:
    code, out, err = run(job, "--json", "--verify", "--tag", "FrozenLake")
    assert code == 0
    found = json.loads(out)
    assert found["groups"]["trained"]["groups"] == 2
    assert set(found["groups_by_tag"]) == {"FrozenLake"}
    assert found["groups_by_explorer"]["east"]["leased"]["groups"] == 1
    assert err == "every promise was kept (the buffer alone was looked at)\n"


def test_looking_changes_nothing(job: Path, run: Run) -> None:
    change(job, "PRAGMA journal_mode = DELETE")
    before = (job / "buffer.db").read_bytes()
    run(job, "--verify", "--export", job / "all.parquet")
    assert (job / "buffer.db").read_bytes() == before


def test_what_waits_is_dropped_by_hand_and_what_is_taken_stays(job: Path, run: Run) -> None:
    code, out, _ = run(job, "--drop", "--version", 1)
    assert code == 0
    assert out.startswith(
        "dropped 1 group that was ready\n2 groups stayed: a trainer has taken them; --group "
    )
    assert states(job) == {"open": 1, "leased": 1, "taken": 2, "trained": 4, "dropped": 5}
    with opened(str(job / "buffer.db")) as engine:
        assert inspect(engine).reasons["dropped by hand"] == 1
    assert run(job, "--drop", "--version", 1)[1].startswith("dropped nothing")
    assert run(job, "--verify")[0] == 0


def test_a_taken_group_is_dropped_by_its_id_once_the_trainer_has_ended_and_its_place_filled(
    tmp_path: Path, run: Run
) -> None:
    job = play(str(tmp_path / "buffer.db"))
    with opened(str(tmp_path / "buffer.db")) as engine, engine.connect() as connection:
        query = sa.select(tables.groups.c.id).where(tables.groups.c.state == GroupState.TAKEN)
        first, second = connection.execute(query).scalars()
    change(tmp_path, "update members set expires_at = 9e18 where role = 'trainer'")
    assert (
        "1 group stayed: a trainer has taken it; end it first" in run(tmp_path, "--drop", "--group", first)[1]
    )
    change(tmp_path, "update members set left_at = seen_at where role = 'trainer'")
    assert run(tmp_path, "--drop", "--group", first)[1] == "dropped 1 group that was taken\n"
    assert states(tmp_path)["taken"] == 1

    trainer = job.buffer.join(Role.TRAINER, "trainer")
    job.buffer.trainer.begin(trainer, 2)
    taken = job.buffer.trainer.take(trainer, 2, version=2)
    assert taken is not None
    ids = [group.group_id for group in taken.groups]
    assert second in ids
    assert first not in ids
    assert len(ids) == 2
    assert run(tmp_path, "--verify")[0] == 0
    job.buffer.engine.dispose()


def test_a_group_that_was_dropped_cannot_be_put_and_its_place_is_free(tmp_path: Path, run: Run) -> None:
    job = Job(str(tmp_path / "buffer.db"))
    east = job.buffer.join(Role.EXPLORER, "east")
    claimed = job.claim(east, -1)
    seen = job.buffer.signal_number(Signal.PLACES)
    assert run(tmp_path, "--drop", "--explorer", "east", "--state", "leased")[0] == 0
    assert job.buffer.signal_number(Signal.PLACES) == seen + 1
    assert job.put(east, claimed, 0) == [group.group_id for group in claimed]
    assert not job.buffer.renew(east).held


def test_a_group_to_be_used_again_is_not_dropped(job: Path, run: Run) -> None:
    change(job, "update groups set state = 'ready' where state = 'taken'")
    assert "2 groups stayed" in run(job, "--drop", "--state", "ready")[1]
    assert states(job)["ready"] == 2


def test_dropping_everything_has_to_be_said(job: Path, run: Run) -> None:
    code, _, err = run(job, "--drop")
    assert code == 2
    assert "--state ready" in err


def test_trajectories_are_exported(job: Path, run: Run) -> None:
    target = job / "deep" / "kept.parquet"
    code, out, _ = run(job, "--export", target, "--state", "ready", "--state", "taken")
    assert (code, out) == (0, f"{target} with {3 * GROUP_SIZE} trajectories\n")
    assert len(read_trajectories(target)) == 3 * GROUP_SIZE
    assert run(job, "--export", target, "--tag", "SimpleSokoban")[0] == 0
    assert {each.task.tag for each in read_trajectories(target)} == {"SimpleSokoban"}


def test_a_damaged_group_is_named_and_no_file_is_left(job: Path, run: Run) -> None:
    change(job, "update payloads set data = x'00' where group_id = 10")
    code, _, err = run(job, "--export", job / "all.parquet")
    assert code == 1
    assert "group 10: a group in the buffer is damaged" in err
    assert not (job / "all.parquet").exists()
    code, out, _ = run(job, "--verify")
    assert code == 1
    assert "broken: groups that are damaged: 10\npromises broken: 1\n" in out


def test_vacuum_removes_what_is_trained_and_says_how_much(job: Path, run: Run) -> None:
    change(job, "update payloads set data = randomblob(500000)")
    before = (job / "buffer.db").stat().st_size
    code, out, _ = run(job, "--vacuum")
    assert code == 0
    freed = before - (job / "buffer.db").stat().st_size
    assert freed > 2_000_000
    assert out.startswith("removed the trajectories of 4 groups (2 MB); the database is 2.0")
    with opened(str(job / "buffer.db")) as engine, engine.connect() as connection:
        kept = connection.execute(
            sa.select(tables.groups.c.state).join(
                tables.payloads, tables.payloads.c.group_id == tables.groups.c.id
            )
        )
        assert sorted(kept.scalars()) == ["ready", "taken", "taken"]


def test_all_this_works_while_the_programs_run(job: Path, run: Run) -> None:
    with closing(sqlite3.connect(job / "buffer.db", isolation_level=None)) as other:
        other.execute("begin immediate")
        other.execute("update job set step = 9")
        assert run(job)[0] == 0
        assert run(job, "--verify")[0] == 0
        other.execute("rollback")


@pytest.mark.parametrize(
    ("statement", "promise"),
    [
        ("delete from payloads where group_id in (select id from groups where state = 'ready')", "are gone"),
        ("update groups set oldest_version = 0 where state = 'taken'", "versions old when they were taken"),
        ("update groups set task_index = 0 where state = 'ready'", "in several groups"),
        ("delete from groups where state = 'open'", "were handed out"),
        ("delete from batch_groups where step = 2", "has 0 groups instead of 2"),
        ("delete from batches where step = 1", "there are 2 batches"),
        ("insert into batch_groups select 1, group_id from batch_groups where step = 2", "less often"),
        ("update groups set state = 'dropped', reason = 'x' where state = 'taken'", "are in a batch"),
        ("update batches set trained_at = null", "in no checkpoint"),
        ("update groups set reason = null where state = 'dropped'", "without a reason"),
        ("update members set left_at = 1", "explorers that left"),
        ("update groups set state = 'lost' where state = 'open'", "no known state"),
        ("update groups set oldest_version = 7 where state = 'ready'", "after the newest"),
        ("update payloads set data = (select max(data) from payloads)", "hold other trajectories"),
        ("update groups set state = 'leased' where state in ('trained', 'dropped')", "may be"),
    ],
)
def test_a_broken_promise_is_found(job: Path, run: Run, statement: str, promise: str) -> None:
    change(job, statement)
    code, out, _ = run(job, "--verify")
    assert code == 1
    assert promise in out


def test_a_job_is_found_by_its_configuration(job: Path, run: Run) -> None:
    (job / "elsewhere").mkdir()
    keys = {"buffer": {"trainer_input": {"experience_buffer": {"path": str(job / "buffer.db")}}}}
    (job / "elsewhere" / "config.yaml").write_text(json.dumps(keys))
    assert run(job / "elsewhere")[0] == 0
    assert run(f"sqlite:///{job / 'buffer.db'}")[0] == 0


def test_what_is_not_there_or_no_buffer_is_said(tmp_path: Path, run: Run) -> None:
    assert run(tmp_path)[0] == 2
    assert "has no buffer.db" in run(tmp_path)[2]
    assert "there is no" in run(tmp_path / "no.db")[2]
    assert "there is no file" in run(f"sqlite:///{tmp_path / 'no.db'}")[2]
    assert not list(tmp_path.iterdir())
    assert "SQLite or PostgreSQL" in run("mysql://host/name")[2]
    (tmp_path / "text.db").write_text("this is no database, however long it may be " * 100)
    code, _, err = run(tmp_path / "text.db")
    assert (code, err) == (
        1,
        f"error: {tmp_path / 'text.db'} is no database: name another file, or put the buffer's copy there\n",
    )
    with closing(sqlite3.connect(tmp_path / "other.db")) as other:
        other.execute("create table t (x)")
    assert "no table `job`" in run(tmp_path / "other.db")[2]
    assert "'nowhere' is none of open, leased" in run(tmp_path / "other.db", "--state", "nowhere")[2]


def test_a_later_format_is_refused(job: Path, run: Run) -> None:
    change(job, "update job set format = 99")
    code, _, err = run(job)
    assert code == 1
    assert "has format 99" in err
    assert "Upgrade envsdk" in err


def test_a_job_that_is_just_starting_is_said(job: Path, run: Run) -> None:
    change(job, "delete from job")
    assert "its first program is just starting" in run(job)[2]


def test_a_locked_buffer_is_said(job: Path, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("envsdk.buffer.places.BUSY_S", 0.01)
    with closing(sqlite3.connect(job / "buffer.db", isolation_level=None)) as other:
        other.execute("begin immediate")
        code, _, err = run(job, "--drop", "--state", "ready")
        assert code == 1
        assert "is locked: another program" in err
        other.execute("rollback")


def test_a_server_that_is_away_is_said_without_its_password(run: Run) -> None:
    pytest.importorskip("psycopg")
    code, _, err = run("postgresql://me:secret@127.0.0.1:1/nothing")
    assert code == 1
    assert "does not answer" in err
    assert "secret" not in err
