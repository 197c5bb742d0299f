"""The buffer as the programs of a job call it: in threads, tried again while the database is away, waking up.

client = BufferClient(buffer, retry_s=300, say=print)
groups = await client.call(lambda: buffer.claim(member, tags, version=3, token=token))
await client.changed(Signal.BATCH, seen, timeout_s=1.0)
"""

from __future__ import annotations

import asyncio
import sqlite3
import time
from collections.abc import Callable
from typing import TypeVar

from sqlalchemy.exc import DBAPIError, OperationalError

from envsdk.buffer.contract import Signal
from envsdk.buffer.sql_buffer import SqlBuffer
from envsdk.buffer.waking import Bell, bell_of
from envsdk.failures import StorageError

Result = TypeVar("Result")

FIRST_PAUSE_S = 0.05
LONGEST_PAUSE_S = 2.0


class BufferClient:
    """Owner: a program of a job; called from one event loop."""

    def __init__(self, buffer: SqlBuffer, *, retry_s: float, say: Callable[[str], None]) -> None:
        self.buffer = buffer
        self._retry_s = retry_s
        self._say = say
        self._is_away = False
        self._bell: Bell | None = None

    async def call(self, work: Callable[[], Result]) -> Result:
        """The answer of one method of the buffer.

        While the database is away it is asked again, for `retry_s`; then StorageError.
        """
        began, pause = time.monotonic(), FIRST_PAUSE_S
        while True:
            try:
                answer = await asyncio.to_thread(work)
            except DBAPIError as error:
                if not _may_pass(error):
                    raise StorageError(f"the buffer cannot be used: {_reason(error)}") from error
                if time.monotonic() - began > self._retry_s:
                    raise StorageError(
                        f"the buffer {self._place} does not answer for {self._retry_s:g} s (buffer.retry_s): "
                        f"{_reason(error)}. Nothing that was put into it is lost: start this program "
                        "again when it is back"
                    ) from error
                if not self._is_away:
                    self._is_away = True
                    self._say(
                        f"the buffer {self._place} does not answer ({_reason(error)}); trying for "
                        f"{self._retry_s:g} s more (buffer.retry_s)"
                    )
                await asyncio.sleep(pause)
                pause = min(2 * pause, LONGEST_PAUSE_S)
                continue
            if self._is_away:
                self._is_away = False
                self._say("the buffer answers again")
            return answer

    @property
    def _place(self) -> str:
        url = self.buffer.engine.url
        plain = url.set(drivername=url.get_backend_name())
        return (url.database if plain.drivername == "sqlite" else None) or plain.render_as_string()

    async def changed(self, signal: Signal, seen: int, *, timeout_s: float) -> int:
        """Wait until the signal's number is above `seen`, at most `timeout_s`; the number."""
        if self._bell is None:
            self._bell = bell_of(self.buffer.engine)
        deadline = time.monotonic() + timeout_s
        while (number := await self.call(lambda: self.buffer.signal_number(signal))) <= seen:
            left = deadline - time.monotonic()
            if left <= 0:
                break
            await self._bell.wait(timeout_s=left)
        return number

    async def close(self) -> None:
        """End the connections. Idempotent."""
        if self._bell is not None:
            await self._bell.close()
        await asyncio.to_thread(self.buffer.engine.dispose)


def _may_pass(error: DBAPIError) -> bool:
    """Whether it may work a moment later: a locked file, a full disk, a server that starts again."""
    if error.connection_invalidated:
        return True
    code = getattr(error.orig, "sqlite_errorcode", None)
    return isinstance(error, OperationalError) if code is None else code & 0xFF in _PASSING


_PASSING = {
    sqlite3.SQLITE_BUSY,
    sqlite3.SQLITE_LOCKED,
    sqlite3.SQLITE_IOERR,
    sqlite3.SQLITE_FULL,
    sqlite3.SQLITE_CANTOPEN,
}


def _reason(error: DBAPIError) -> str:
    return " ".join(str(error.orig).split())
