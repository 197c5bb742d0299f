"""Programs that wait for the buffer, and a buffer that is away for a while."""

from __future__ import annotations

import asyncio
import sqlite3
from pathlib import Path

import pytest

from envsdk.buffer.client import BufferClient
from envsdk.buffer.connecting import open_engine
from envsdk.buffer.contract import Role, Signal, Terms
from envsdk.buffer.sql_buffer import SqlBuffer
from envsdk.failures import ConfigurationError, StorageError

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
    other.begin(trainer, 0)
    assert await waiting > seen
    other.leave(explorer)
    await client.close()


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


@pytest.fixture
def no_database(file: Path) -> Path:
    file.write_bytes(b"no database, but long enough to be taken for one" * 100)
    return file


async def test_what_will_not_pass_is_not_waited_for(no_database: Path) -> None:
    client = BufferClient(SqlBuffer(open_engine(str(no_database)), lease_s=30), retry_s=60, say=pytest.fail)
    with pytest.raises(StorageError, match="file is not a database"):
        await client.call(lambda: client.buffer.create("job", TERMS))


def test_the_buffer_of_another_job_is_refused(buffer: SqlBuffer) -> None:
    with pytest.raises(ConfigurationError, match="that of another job, 'job': give this one, 'mine'"):
        buffer.create("mine", TERMS)


@pytest.mark.parametrize("path", ["postgres//host/name", "postgresql:/host/name", "mysql://host/name"])
def test_what_is_neither_a_file_nor_a_url_of_a_database_is_told(path: str) -> None:
    with pytest.raises(ConfigurationError, match=r"neither a file nor a URL|SQLite or PostgreSQL"):
        open_engine(path)
