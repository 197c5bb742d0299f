"""Programs that wait for the buffer, and a buffer that is away for a while."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from sqlalchemy.exc import OperationalError

from envsdk.buffer.client import BufferClient
from envsdk.buffer.connecting import open_engine
from envsdk.buffer.contract import Role, Signal, Terms
from envsdk.buffer.sql_buffer import SqlBuffer
from envsdk.buffer.tables import job
from envsdk.contracts.failures import ConfigurationError, StorageError

TERMS = Terms(seed=1, group_size=2, groups_per_batch=2, alpha=1.0)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "buffer.db"


@pytest.fixture
def buffer(file: Path) -> SqlBuffer:
    engine = open_engine(str(file), busy_s=0.05)
    made = SqlBuffer(engine, lease_s=30)
    made.create("job", TERMS)
    return made


async def test_a_program_wakes_up_when_another_signals(buffer: SqlBuffer, file: Path) -> None:
    client = BufferClient(buffer, retry_s=5, say=pytest.fail)
    seen = buffer.signal_number(Signal.PLACES)
    waiting = asyncio.create_task(client.changed(Signal.PLACES, seen, timeout_s=60))
    other = SqlBuffer(open_engine(str(file)), lease_s=30)
    explorer = other.join(Role.EXPLORER, "a")
    trainer = other.join(Role.TRAINER, "trainer")
    other.trainer.begin(trainer, 0)
    assert await waiting > seen
    other.leave(explorer)
    await client.close()


async def test_everything_that_waits_in_a_program_wakes_up(buffer: SqlBuffer, file: Path) -> None:
    await wake_both(buffer, SqlBuffer(open_engine(str(file)), lease_s=30))


async def wake_both(buffer: SqlBuffer, other: SqlBuffer) -> None:
    """An explorer waits for places and for weights; both come in one transaction, and nothing after it."""
    client = BufferClient(buffer, retry_s=5, say=pytest.fail)
    trainer = other.join(Role.TRAINER, "trainer")
    other.trainer.begin(trainer, 0)
    seen = {signal: buffer.signal_number(signal) for signal in (Signal.PLACES, Signal.VERSION)}
    waiting = [asyncio.create_task(client.changed(each, seen[each], timeout_s=60)) for each in seen]
    await asyncio.wait(waiting, timeout=0.2)  # both wait by now
    other.trainer.publish(trainer, 0, 0, {})
    _, late = await asyncio.wait(waiting, timeout=30)
    await client.close()
    assert not late


async def test_a_locked_file_is_waited_for_and_said_once(buffer: SqlBuffer, file: Path) -> None:
    said: list[str] = []
    is_said = asyncio.Event()

    def say(line: str) -> None:
        said.append(line)
        is_said.set()

    client = BufferClient(buffer, retry_s=60, say=say)
    holder = sqlite3.connect(file, isolation_level=None)
    holder.execute("BEGIN IMMEDIATE")
    joining = asyncio.create_task(client.call(lambda: buffer.join(Role.EXPLORER, "a")))
    await is_said.wait()
    assert "database is locked" in said[0]
    holder.execute("ROLLBACK")
    assert (await joining).name == "a"
    assert said[1:] == ["the buffer answers again"]
    await client.close()


async def test_a_file_that_stays_locked_ends_the_program_with_an_error(buffer: SqlBuffer, file: Path) -> None:
    client = BufferClient(buffer, retry_s=0.1, say=lambda line: None)
    holder = sqlite3.connect(file, isolation_level=None)
    holder.execute("BEGIN IMMEDIATE")
    with pytest.raises(StorageError, match=r"buffer\.db does not answer for 0\.1 s \(buffer\.retry_s\)"):
        await client.call(lambda: buffer.join(Role.EXPLORER, "a"))
    holder.close()


def no_database(file: Path) -> None:
    file.write_bytes(b"no database, but long enough to be taken for one" * 100)


def other_tables(file: Path) -> None:
    with closing(sqlite3.connect(file)) as connection:
        connection.execute("CREATE TABLE job (id INTEGER PRIMARY KEY, name TEXT)")


def cut(file: Path) -> None:
    SqlBuffer(open_engine(str(file)), lease_s=30).create("job", TERMS)
    with closing(sqlite3.connect(file)) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    file.write_bytes(file.read_bytes()[:5_000])


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (no_database, "is no database: name another file"),
        (other_tables, r"is no buffer of this envsdk \(.* column .*\): name another database"),
        (cut, "is damaged .*: put a copy there"),
    ],
)
async def test_what_will_not_pass_is_not_waited_for_and_the_file_is_named(
    file: Path, spoil: Callable[[Path], None], says: str
) -> None:
    spoil(file)
    client = BufferClient(SqlBuffer(open_engine(str(file)), lease_s=30), retry_s=60, say=pytest.fail)
    with pytest.raises(StorageError, match=rf"{file} {says}"):
        await client.call(lambda: client.buffer.create("job", TERMS))
    await client.close()


async def test_a_buffer_that_was_emptied_is_told(buffer: SqlBuffer, file: Path) -> None:
    client = BufferClient(buffer, retry_s=60, say=pytest.fail)
    explorer = buffer.join(Role.EXPLORER, "a")
    with buffer.engine.begin() as connection:
        connection.execute(job.delete())
    with pytest.raises(StorageError, match=rf"{file} no longer holds this job"):
        await client.call(lambda: buffer.leave(explorer))
    await client.close()


async def test_a_full_disk_is_told_with_what_it_has_left(buffer: SqlBuffer, file: Path) -> None:
    said: list[str] = []
    client = BufferClient(buffer, retry_s=0.0, say=said.append)

    def full() -> None:
        with closing(sqlite3.connect(file)) as connection:
            (pages,) = connection.execute("PRAGMA page_count").fetchone()
            connection.execute(f"PRAGMA max_page_count = {pages}")
            try:
                connection.execute("CREATE TABLE more AS SELECT zeroblob(1000000)")
            except sqlite3.Error as error:
                raise OperationalError("CREATE", None, error) from error

    with pytest.raises(StorageError, match=r"is full; its disk has [\d,.]+ MB free"):
        await client.call(full)
    await client.close()


def test_a_folder_is_no_buffer_and_one_that_is_not_there_is_not_made(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=rf"{tmp_path} is a folder: name a file"):
        open_engine(str(tmp_path))
    with pytest.raises(ConfigurationError, match=r"the buffer's folder .*/no/such is not there, for b\.db"):
        open_engine(str(tmp_path / "no" / "such" / "b.db"))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("table", ["invoices", "groups"])
def test_a_file_that_something_else_uses_is_refused_and_left_alone(file: Path, table: str) -> None:
    with closing(sqlite3.connect(file)) as connection:
        connection.execute(f"CREATE TABLE {table} (a)")
    with pytest.raises(ConfigurationError, match=rf"{file} is no buffer, .* \({table}\): name another"):
        SqlBuffer(open_engine(str(file)), lease_s=30).create("job", TERMS)
    with closing(sqlite3.connect(file)) as connection:
        assert connection.execute("SELECT name FROM sqlite_master").fetchall() == [(table,)]


def test_the_buffer_of_another_job_is_refused(buffer: SqlBuffer) -> None:
    with pytest.raises(ConfigurationError, match="that of another job, 'job': give this one, 'mine'"):
        buffer.create("mine", TERMS)


@pytest.mark.parametrize("path", ["postgres//host/name", "postgresql:/host/name", "mysql://host/name"])
def test_what_is_neither_a_file_nor_a_url_of_a_database_is_told(path: str) -> None:
    with pytest.raises(ConfigurationError, match=r"neither a file nor a URL|SQLite or PostgreSQL"):
        open_engine(path)
