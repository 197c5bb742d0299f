"""The buffer's promises on PostgreSQL: `make test-postgres`."""

from __future__ import annotations

import asyncio
import os

import psycopg
import pytest
import sqlalchemy as sa
from hypothesis import settings
from sqlalchemy.exc import OperationalError

from envsdk.buffer import tables
from envsdk.buffer.client import BufferClient
from envsdk.buffer.connecting import may_pass, open_engine
from envsdk.buffer.contract import FinishedGroup, Role, Signal, Terms
from envsdk.buffer.sql_buffer import SqlBuffer
from envsdk.contracts.failures import StorageError
from tests.envsdk.buffer.buffer_machine import BufferMachine
from tests.envsdk.buffer.test_buffer_client import wake_both
from tests.postgres_server import running

URL = os.environ.get("ENVSDK_POSTGRES", "")
pytestmark = [
    pytest.mark.postgres,
    pytest.mark.skipif(not URL, reason="needs a server of PostgreSQL: make test-postgres"),
]


def empty_engine() -> sa.Engine:
    engine = open_engine(URL)
    tables.metadata.drop_all(engine)
    return engine


class PostgresMachine(BufferMachine):
    def new_engine(self) -> sa.Engine:
        return empty_engine()


PostgresMachine.TestCase.settings = settings(max_examples=25, stateful_step_count=30, deadline=None)
TestPostgresBuffer = PostgresMachine.TestCase


async def test_everything_that_waits_in_a_program_wakes_up() -> None:
    buffer = SqlBuffer(empty_engine(), lease_s=30)
    buffer.create("job", Terms(seed=1, group_size=2, groups_per_batch=2, alpha=1.0))
    await wake_both(buffer, SqlBuffer(open_engine(URL), lease_s=30))


async def test_the_trainer_is_woken_by_the_group_that_completes_its_batch() -> None:
    buffer = SqlBuffer(empty_engine(), lease_s=30)
    buffer.create("job", Terms(seed=1, group_size=2, groups_per_batch=2, alpha=1.0))
    trainer = buffer.join(Role.TRAINER, "trainer")
    buffer.trainer.begin(trainer, 0)
    buffer.trainer.publish(trainer, 0, 0, {})
    explorer = buffer.join(Role.EXPLORER, "a")
    claimed = buffer.explorer.claim(explorer, ["lake"] * 2, version=0, token="one")
    assert buffer.trainer.take(trainer, 0, version=0) is None

    client = BufferClient(buffer, retry_s=5, say=print)
    seen = buffer.signal_number(Signal.BATCH)
    waiting = asyncio.create_task(client.changed(Signal.BATCH, seen, timeout_s=60))
    for group in claimed:
        finished = FinishedGroup(
            group_id=group.group_id, payload=b"x", num_trajectories=2, num_tokens=1, oldest_version=0
        )
        assert await client.call(lambda finished=finished: buffer.explorer.put(explorer, [finished])) == []  # type: ignore[misc]
    assert await waiting == seen + 1
    assert buffer.trainer.take(trainer, 0, version=0) is not None
    await client.close()


@pytest.mark.parametrize("part", ["user", "database"])
async def test_what_the_server_refuses_is_not_waited_for(part: str) -> None:
    url = sa.make_url(URL)
    other = url.set(username="nobody_here") if part == "user" else url.set(database="nothing_here")
    engine = open_engine(other.render_as_string(hide_password=False))
    client = BufferClient(SqlBuffer(engine, lease_s=30), retry_s=60, say=pytest.fail)
    with pytest.raises(StorageError, match=r"refuses this program: .* does not exist\. Correct the user"):
        await client.call(client.buffer.view)
    await client.close()


async def test_a_wrong_password_is_not_waited_for() -> None:
    with running() as server:
        admin = sa.create_engine(server.url.replace("postgresql://", "postgresql+psycopg://"))
        with admin.begin() as connection:
            connection.execute(sa.text("CREATE ROLE bob LOGIN PASSWORD 'right'"))
            (server.folder / "data" / "pg_hba.conf").write_text(
                "host all envsdk 127.0.0.1/32 trust\nhost all all 127.0.0.1/32 scram-sha-256\n"
            )
            connection.execute(sa.text("SELECT pg_reload_conf()"))
        admin.dispose()
        for password, reason in [("wrong", "password authentication failed"), (None, "no password supplied")]:
            url = sa.make_url(server.url).set(username="bob", password=password)
            engine = open_engine(url.render_as_string(hide_password=False))
            client = BufferClient(SqlBuffer(engine, lease_s=30), retry_s=60, say=pytest.fail)
            with pytest.raises(StorageError, match=f"refuses this program: .*{reason}.* Correct the user"):
                await client.call(client.buffer.view)
            await client.close()


@pytest.mark.parametrize(
    ("message", "passes"),
    [
        ('FATAL:  password authentication failed for user "bob"', False),
        ("fe_sendauth: no password supplied", False),
        ('FATAL:  role "nol" is not permitted to log in', False),
        ('FATAL:  pg_hba.conf rejects connection for host "10.0.0.1"', False),
        ("FATAL:  the database system is starting up", True),
        ("FATAL:  sorry, too many clients already", True),
        ("Connection refused\n\tIs the server running on that host and accepting TCP/IP connections?", True),
    ],
)
def test_refusals_while_connecting_are_known_by_their_words(message: str, passes: bool) -> None:
    text = f'connection failed: connection to server at "127.0.0.1", port 5432 failed: {message}'
    assert may_pass(OperationalError("", None, psycopg.OperationalError(text))) is passes
