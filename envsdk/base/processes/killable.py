"""A forked process that answers one call at a time and can be killed in the middle of it.

    fork -> ask(verb, arguments) -> answer -> ask -> ... -> end
                                \\-> EOFError: it died; exit_code()

The owner decides how long an answer may take, and ends the process that is late.
"""

from __future__ import annotations

import asyncio
import os
import pickle
import socket
import struct
from collections.abc import Mapping
from typing import Any, Self

from envsdk.base.processes.forked import STATUS, ForkedProcesses

_LENGTH = struct.Struct("!i")
"""Stands before each message, as `multiprocessing.connection.Connection` has it."""
_CODE_TIMEOUT_S = 5.0
_LAST_ANSWER_S = 0.05


class KillableProcess:
    """Made by `fork`, in the event loop it belongs to."""

    def __init__(
        self,
        processes: ForkedProcesses,
        pid: int,
        status: int,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        self.pid = pid
        self._processes = processes
        self._status = status
        self._reader, self._writer = reader, writer
        self._loop = asyncio.get_running_loop()
        self._exit: asyncio.Future[int | None] = self._loop.create_future()
        self._loop.add_reader(status, self._on_status)

    @classmethod
    async def fork(cls, processes: ForkedProcesses, timeout_s: float | None = None) -> Self:
        """A process that has built nothing. Raises OSError and TimeoutError."""
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        reader, writer = await asyncio.open_connection(sock=ours)
        status, their_status = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)

        def started() -> int:
            try:
                return processes.start(theirs, their_status)
            finally:
                theirs.close()
                os.close(their_status)

        def end(done: asyncio.Future[int]) -> None:
            if done.exception() is None:
                processes.end(done.result())

        starting = asyncio.get_running_loop().run_in_executor(None, started)
        try:
            pid = await asyncio.wait_for(asyncio.shield(starting), timeout_s)
        except BaseException:
            writer.transport.abort()
            os.close(status)
            starting.add_done_callback(end)
            raise
        return cls(processes, pid, status, reader, writer)

    @property
    def has_ended(self) -> bool:
        return self._exit.done()

    def ask(self, verb: str, arguments: Mapping[str, Any]) -> asyncio.Task[bytes]:
        """The pickled answer of `forked.serve`; EOFError when the process ends before it.

        Raises what pickling `arguments` does.
        """
        body = pickle.dumps((verb, arguments))
        self._writer.write(_LENGTH.pack(len(body)) + body)
        return self._loop.create_task(self._message())

    async def exit_code(self) -> int | None:
        """Exit code of a process that ends, negative for a signal; None where that is not known."""
        await asyncio.wait((self._exit,), timeout=_CODE_TIMEOUT_S)
        return self._exit.result() if self._exit.done() else None

    def end(self) -> None:
        """Kill the process, without waiting for its end. Idempotent."""
        if self._status < 0:
            return
        self._processes.end(self.pid)
        if not self._loop.is_closed():
            self._loop.remove_reader(self._status)
            self._writer.transport.abort()
        os.close(self._status)
        self._status = -1

    async def _message(self) -> bytes:
        try:
            (length,) = _LENGTH.unpack(await self._reader.readexactly(_LENGTH.size))
            return await self._reader.readexactly(length)
        except (OSError, ValueError) as error:
            # A connection that was reset, or a process that writes what is no message.
            raise EOFError from error

    def _on_status(self) -> None:
        status = os.read(self._status, STATUS.size)
        self._loop.remove_reader(self._status)
        if not self._exit.done():
            self._exit.set_result(STATUS.unpack(status)[0] if len(status) == STATUS.size else None)
        # Its last answer may still arrive; and a child of its own may hold the connection open.
        self._loop.call_later(_LAST_ANSWER_S, self._writer.transport.abort)
