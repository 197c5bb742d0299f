"""The buffer as the programs of a job call it: in threads, tried again while the database is away, waking up.

client = BufferClient(buffer, retry_s=300, say=print)
groups = await client.call(lambda: buffer.explorer.claim(member, tags, version=3, token=token))
await client.changed(Signal.BATCH, seen, timeout_s=1.0)
"""

from __future__ import annotations

import asyncio
import shutil
import sqlite3
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

from sqlalchemy.exc import DBAPIError, NoResultFound

from envsdk.buffer.connecting import may_pass, reason_of, shown_place, told
from envsdk.buffer.contract import Signal
from envsdk.buffer.sql_buffer import SqlBuffer
from envsdk.buffer.waking import Bell, bell_of
from envsdk.contracts.failures import StorageError

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
                if not may_pass(error):
                    raise told(error, f"the buffer {self._place}") from error
                if time.monotonic() - began > self._retry_s:
                    raise StorageError(
                        f"the buffer {self._place} does not answer for {self._retry_s:g} s (buffer.retry_s): "
                        f"{self._reason(error)}. Nothing that was put into it is lost: start this program "
                        "again when it is back"
                    ) from error
                if not self._is_away:
                    self._is_away = True
                    self._say(
                        f"the buffer {self._place} does not answer ({self._reason(error)}); trying for "
                        f"{self._retry_s:g} s more (buffer.retry_s)"
                    )
                await asyncio.sleep(pause)
                pause = min(2 * pause, LONGEST_PAUSE_S)
                continue
            except NoResultFound as error:
                raise StorageError(
                    f"the buffer {self._place} no longer holds this job: it was emptied or replaced. Put it "
                    "back from a copy, or begin another exp_name with the newest checkpoint's model as "
                    "`pretrain`"
                ) from error
            if self._is_away:
                self._is_away = False
                self._say("the buffer answers again")
            return answer

    @property
    def _place(self) -> str:
        return shown_place(self.buffer.engine.url.render_as_string(hide_password=False))

    def _reason(self, error: DBAPIError) -> str:
        """With the space that a disk has left where it is short of that."""
        reason, file = reason_of(error), self.buffer.engine.url.database
        if getattr(error.orig, "sqlite_errorcode", 0) & 0xFF not in (
            sqlite3.SQLITE_FULL,
            sqlite3.SQLITE_IOERR,
        ):
            return reason
        with suppress(OSError):
            reason += f"; its disk has {shutil.disk_usage(Path(file or '').parent).free / 1e6:,.1f} MB free"
        return reason

    async def changed(self, signal: Signal, seen: int, *, timeout_s: float) -> int:
        """Wait until the signal's number is above `seen`, at most `timeout_s`; the number."""
        if self._bell is None:
            self._bell = bell_of(self.buffer.engine)
        deadline = time.monotonic() + timeout_s
        while True:
            heard = await self._bell.heard()
            number = await self.call(lambda: self.buffer.signal_number(signal))
            left_s = deadline - time.monotonic()
            if number > seen or left_s <= 0:
                return number
            await self._bell.wait(heard, timeout_s=left_s)

    async def close(self) -> None:
        """End the connections. Idempotent."""
        if self._bell is not None:
            await self._bell.close()
        await asyncio.to_thread(self.buffer.engine.dispose)
