"""Shell: an engine's requests on its server, and how they end there."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from envsdk.engines.core import Reply
from envsdk.engines.engine_support.failures import ReplyRefused, Unavailable
from envsdk.engines.sglang.connection import Connection

_AGAIN_S = 0.1
"""Between two requests to abort: an abort that arrives before its request has no effect."""
_ABORT_GRACE_S = 5.0
"""For the server to end one request; then the connection is closed."""


class ServerRequests:
    """Owner: the engine, on its event loop."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self.names: dict[Reply, str] = {}
        """The name on the server of each reply that it samples."""
        self.num_clearings = 0
        self._is_clearing = False
        self._changed = asyncio.Event()

    @contextmanager
    def named(self, reply: Reply) -> Iterator[str]:
        """The server samples the reply in here, under this name."""
        name = self.names[reply] = self._connection.new_name()
        try:
            yield name
        finally:
            del self.names[reply]
            self._changed.set()

    async def end(self, reply: Reply) -> None:
        """Returns when the server has ended it, or does not."""
        await self._until(lambda: not self._is_clearing)  # one request ends all of them
        loop = asyncio.get_running_loop()
        deadline = loop.time() + _ABORT_GRACE_S
        while (name := self.names.get(reply)) and loop.time() < deadline:
            with suppress(Unavailable, ReplyRefused):
                await self._connection.client.post("/abort_request", {"rid": name}, timeout_s=_ABORT_GRACE_S)
            await self._until(lambda: reply not in self.names, _AGAIN_S)

    async def let_end(self, holds: Callable[[Reply], bool]) -> None:
        """Wait for those for which this holds, while nothing more is sent there."""
        bound = {reply for reply in self.names if holds(reply)}
        await self._until(lambda: not bound & self.names.keys())

    async def clear(self, timeout_s: float) -> None:
        """Until the server samples nothing of what it was given before.

        Raises Unavailable, ReplyRefused and TimeoutError.
        """
        self._is_clearing = True
        self.num_clearings += 1
        there = set(self.names)
        try:
            async with asyncio.timeout(timeout_s):
                while there & self.names.keys():
                    await self._connection.client.post("/abort_request", {"abort_all": True})
                    await self._until(lambda: not there & self.names.keys(), _AGAIN_S)
        finally:
            self._is_clearing = False
            self._changed.set()

    async def _until(self, is_so: Callable[[], bool], timeout_s: float | None = None) -> None:
        """Returns when it is so, or the time is over."""
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                while not is_so():
                    self._changed.clear()
                    await self._changed.wait()
