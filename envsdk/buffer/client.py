"""The buffer as the programs of a job call it: in threads, tried again while the database is away, waking up.

client = BufferClient(buffer, retry_s=300, say=print)
groups = await client.call(lambda: buffer.claim(member, tags, version=3, token=token))
await client.changed(Signal.BATCH, seen, timeout_s=1.0)
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import TypeVar

from sqlalchemy.exc import DBAPIError, OperationalError

from envsdk.buffer.contract import Signal
from envsdk.buffer.sql_buffer import SqlBuffer
from envsdk.failures import StorageError

Result = TypeVar("Result")

FIRST_PAUSE_S = 0.05
LONGEST_PAUSE_S = 2.0
LOOK_S = 0.01
"""How often a program that waits looks for a signal in SQLite."""


class BufferClient:
    """Owner: a program of a job; called from one event loop."""

    def __init__(self, buffer: SqlBuffer, *, retry_s: float, say: Callable[[str], None]) -> None:
        self.buffer = buffer
        self._retry_s = retry_s
        self._say = say
        self._is_away = False

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
                        f"the buffer does not answer for {self._retry_s:g} s (buffer.retry_s): "
                        f"{_reason(error)}. Nothing that was put into it is lost: start this program "
                        "again when it is back"
                    ) from error
                if not self._is_away:
                    self._is_away = True
                    self._say(
                        f"the buffer does not answer ({_reason(error)}); trying for {self._retry_s:g} s more"
                    )
                await asyncio.sleep(pause)
                pause = min(2 * pause, LONGEST_PAUSE_S)
                continue
            if self._is_away:
                self._is_away = False
                self._say("the buffer answers again")
            return answer

    async def changed(self, signal: Signal, seen: int, *, timeout_s: float) -> int:
        """Wait until the signal's number is above `seen`, at most `timeout_s`; the number."""
        deadline = time.monotonic() + timeout_s
        while (number := await self.call(lambda: self.buffer.signal_number(signal))) <= seen:
            if time.monotonic() > deadline:
                break
            await asyncio.sleep(LOOK_S)
        return number


def _may_pass(error: DBAPIError) -> bool:
    """Whether it may work a moment later: a locked file, a full disk, a server that starts again."""
    return isinstance(error, OperationalError) or error.connection_invalidated


def _reason(error: DBAPIError) -> str:
    return " ".join(str(error.orig).split())
