"""How a program that waits for a signal wakes up: PostgreSQL tells it, SQLite's file is looked at.

heard = await bell.heard()
...                                         # look whether there is something to do
await bell.wait(heard, timeout_s=5.0)       # something may have changed since `heard`
"""

from __future__ import annotations

import asyncio
import sqlite3
from contextlib import suppress
from typing import Protocol

from sqlalchemy import Engine

CHANNEL = "envsdk_buffer"
"""Channel of PostgreSQL's notifications, whose payload is the signal's name."""

LOOK_S = 0.01
"""How often SQLite's file is looked at: a few microseconds of a counter in shared memory."""
LISTEN_AGAIN_S = 0.5


class Bell(Protocol):
    """Owner: a `BufferClient`. Any number of tasks may wait at the same time."""

    async def heard(self) -> int | None:
        """A number that changes with the database; None when it is not known."""
        ...

    async def wait(self, heard: int | None, *, timeout_s: float) -> None:
        """Return when something may have changed since `heard`, or after this time."""
        ...

    async def close(self) -> None:
        """Idempotent."""
        ...


class SqliteBell:
    """Asks the file for its count of changes."""

    def __init__(self, file: str) -> None:
        self._file = file
        self._connection: sqlite3.Connection | None = None

    async def heard(self) -> int | None:
        try:
            if self._connection is None:
                self._connection = sqlite3.connect(self._file, timeout=0, isolation_level=None)
            number: int = self._connection.execute("PRAGMA data_version").fetchone()[0]
            return number
        except sqlite3.Error:
            return None

    async def wait(self, heard: int | None, *, timeout_s: float) -> None:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_s
        while loop.time() < deadline:
            await asyncio.sleep(LOOK_S)
            if heard is None or await self.heard() != heard:
                return

    async def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


class PostgresBell:
    """Listens on a connection of its own; while that is broken, the buffer is asked now and then."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._number = 0
        self._rang = asyncio.Condition()
        self._listening: asyncio.Task[None] | None = None

    async def heard(self) -> int | None:
        if self._listening is None:
            self._listening = asyncio.create_task(self._listen())
        return self._number

    async def wait(self, heard: int | None, *, timeout_s: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s), self._rang:
                await self._rang.wait_for(lambda: self._number != heard)

    async def _ring(self) -> None:
        async with self._rang:
            self._number += 1
            self._rang.notify_all()

    async def _listen(self) -> None:
        import psycopg

        while True:
            try:
                async with await psycopg.AsyncConnection.connect(self._url, autocommit=True) as connection:
                    await connection.execute(f"LISTEN {CHANNEL}")
                    await self._ring()  # earlier notifications are not heard
                    async for _ in connection.notifies():
                        await self._ring()
            except psycopg.Error:
                await self._ring()
                await asyncio.sleep(LISTEN_AGAIN_S)

    async def close(self) -> None:
        listening, self._listening = self._listening, None
        if listening is not None:
            listening.cancel()
            await asyncio.wait({listening})


def bell_of(engine: Engine) -> Bell:
    """That of the engine's database."""
    if engine.dialect.name == "postgresql":
        plain = engine.url.set(drivername="postgresql")
        return PostgresBell(plain.render_as_string(hide_password=False))
    return SqliteBell(engine.url.database or "")
