"""The buffer's promises on SQLite."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import pytest
import sqlalchemy as sa
from hypothesis import settings

from envsdk.buffer.connecting import open_engine
from envsdk.buffer.contract import FinishedGroup, LeaseLost, Member, Role, Terms
from envsdk.buffer.sql_buffer import SqlBuffer
from envsdk.contracts.failures import ConfigurationError
from tests.envsdk.buffer.buffer_machine import BufferMachine


class SqliteMachine(BufferMachine):
    def new_engine(self) -> sa.Engine:
        self.folder = tempfile.mkdtemp()
        engine = open_engine(f"{self.folder}/buffer.db")
        # No test cuts the power; waiting for the disk would take most of the time.
        sa.event.listen(engine, "connect", lambda file, _: file.execute("PRAGMA synchronous = OFF"))
        return engine

    def teardown(self) -> None:
        super().teardown()
        if hasattr(self, "folder"):
            shutil.rmtree(self.folder)


SqliteMachine.TestCase.settings = settings(max_examples=15, stateful_step_count=30, deadline=None)
TestSqliteBuffer = SqliteMachine.TestCase

TERMS = Terms(seed=1, group_size=2, groups_per_batch=2, alpha=1.0)


@pytest.fixture
def buffer(tmp_path: Path) -> SqlBuffer:
    made = SqlBuffer(open_engine(str(tmp_path / "buffer.db")), lease_s=30)
    made.create("job", TERMS)
    return made


def test_a_second_explorer_of_the_same_name_is_told_where_the_first_one_runs(buffer: SqlBuffer) -> None:
    buffer.join(Role.EXPLORER, "a")
    with pytest.raises(ConfigurationError, match=r"an explorer named 'a' plays already \(process \d+ on "):
        buffer.join(Role.EXPLORER, "a")
    buffer.join(Role.EXPLORER, "b")


def test_a_second_trainer_is_refused(buffer: SqlBuffer) -> None:
    buffer.join(Role.TRAINER, "trainer")
    with pytest.raises(ConfigurationError, match="this job has a trainer already"):
        buffer.join(Role.TRAINER, "another")


def test_other_terms_are_named_key_by_key(buffer: SqlBuffer) -> None:
    with pytest.raises(ConfigurationError, match=r"group_size is 4 here and 2 in the job; async_generation"):
        buffer.create("job", Terms(seed=1, group_size=4, groups_per_batch=2, alpha=2.0))


def begun(tmp_path: Path, now: list[float], explorer: str) -> tuple[SqlBuffer, Member, Member]:
    """A job whose first weights are there, by the clock `now`; its trainer and an explorer."""
    buffer = SqlBuffer(open_engine(str(tmp_path / "b.db")), lease_s=30, clock=lambda connection: now[0])
    buffer.create("job", TERMS)
    trainer, member = buffer.join(Role.TRAINER, "trainer"), buffer.join(Role.EXPLORER, explorer)
    buffer.trainer.begin(trainer, 0)
    buffer.trainer.publish(trainer, 0, 0, {})
    return buffer, trainer, member


def test_a_database_that_was_away_takes_nobody_for_dead(tmp_path: Path) -> None:
    now = [1000.0]
    buffer, trainer, explorer = begun(tmp_path, now, "a")
    (claimed,) = buffer.explorer.claim(explorer, ["lake"], version=0, token="one")
    now[0] += 100  # nobody could be heard
    buffer.renew(trainer)
    assert buffer.renew(explorer).held == {claimed.group_id}
    for _ in range(4):  # now the explorer is silent alone
        now[0] += 10
        view = buffer.renew(trainer)
    assert view.explorer_versions == {}
    with pytest.raises(LeaseLost):
        buffer.renew(explorer)


def test_a_clock_that_goes_back_keeps_no_dead_explorer_alive(tmp_path: Path) -> None:
    now = [100_000.0]
    buffer, trainer, dead = begun(tmp_path, now, "dead")
    living = buffer.join(Role.EXPLORER, "living")
    (claimed,) = buffer.explorer.claim(dead, ["lake"], version=0, token="one")
    now[0] -= 86_400  # its last sign of life is now in the future
    for _ in range(4):
        buffer.renew(trainer)
        view = buffer.renew(living)
        assert view.explorer_versions.keys() <= {"dead", "living"}
        now[0] += 10
    view = buffer.renew(trainer)
    assert set(view.explorer_versions) == {"living"}
    assert claimed.group_id in {
        group.group_id for group in buffer.explorer.claim(living, ["lake"] * 4, version=0, token="two")
    }


def test_a_group_that_another_explorer_plays_by_now_is_not_taken_from_the_one_that_lost_it(
    tmp_path: Path,
) -> None:
    now = [1000.0]
    buffer, trainer, silent = begun(tmp_path, now, "silent")
    (lost,) = buffer.explorer.claim(silent, ["lake"], version=0, token="one")
    for _ in range(4):
        now[0] += 10
        buffer.renew(trainer)
    other = buffer.join(Role.EXPLORER, "other")
    (again,) = buffer.explorer.claim(other, ["lake"], version=0, token="two")
    assert again.group_id == lost.group_id
    finished = FinishedGroup(
        group_id=lost.group_id, payload=b"x", num_trajectories=2, num_tokens=4, oldest_version=0
    )
    assert buffer.explorer.put(silent, [finished]) == [lost.group_id]
    assert buffer.num_ready() == 0
    assert buffer.explorer.put(other, [finished]) == []
    assert buffer.num_ready() == 1
