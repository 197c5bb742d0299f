"""How a program that waits for a signal wakes up: PostgreSQL tells it, SQLite's file is looked at."""

from __future__ import annotations

import asyncio
import sqlite3
from contextlib import suppress
from typing import Any, Protocol

from sqlalchemy import Engine

CHANNEL = "envsdk_buffer"
"""Of PostgreSQL's notifications; what is told is the signal's name."""

LOOK_S = 0.01
"""How often SQLite's file is looked at: a few microseconds of a counter in shared memory."""


class Bell(Protocol):
    """Owner: a `BufferClient`."""

    async def wait(self, *, timeout_s: float) -> None:
        """Return when something may have changed since the last call, or after this time."""
        ...

    async def close(self) -> None:
        """Idempotent."""
        ...


class SqliteBell:
    """Asks the file for its count of changes."""

    def __init__(self, file: str) -> None:
        self._file = file
        self._connection: sqlite3.Connection | None = None
        self._seen: int | None = None

    async def wait(self, *, timeout_s: float) -> None:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_s
        while (number := self._number()) == self._seen and number is not None:
            if loop.time() >= deadline:
                return
            await asyncio.sleep(LOOK_S)
        self._seen = number
        await asyncio.sleep(0 if number is not None else LOOK_S)

    async def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _number(self) -> int | None:
        """None when it cannot be told."""
        try:
            if self._connection is None:
                self._connection = sqlite3.connect(self._file, timeout=0, isolation_level=None)
            number: int = self._connection.execute("PRAGMA data_version").fetchone()[0]
            return number
        except sqlite3.Error:
            return None


class PostgresBell:
    """Listens on a connection of its own; while that is broken, the buffer is asked now and then."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._connection: Any = None

    async def wait(self, *, timeout_s: float) -> None:
        import psycopg

        try:
            if self._connection is None:
                self._connection = await psycopg.AsyncConnection.connect(self._url, autocommit=True)
                await self._connection.execute(f"LISTEN {CHANNEL}")
                return  # what was told before is not heard
            async for _ in self._connection.notifies(timeout=timeout_s, stop_after=1):
                pass
        except psycopg.Error:
            await self.close()
            await asyncio.sleep(min(timeout_s, 0.5))

    async def close(self) -> None:
        import psycopg

        connection, self._connection = self._connection, None
        if connection is not None:
            with suppress(psycopg.Error):
                await connection.close()


def bell_of(engine: Engine) -> Bell:
    """That of the engine's database."""
    if engine.dialect.name == "postgresql":
        plain = engine.url.set(drivername="postgresql")
        return PostgresBell(plain.render_as_string(hide_password=False))
    return SqliteBell(engine.url.database or "")
