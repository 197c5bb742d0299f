"""Serves an ASGI app on the running event loop, for the endpoint and for served environments.

created -> start (its port is known) -> serving -> close
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import resource
import socket
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any, ClassVar

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

HEADERS_TIMEOUT_S = 20.0
"""Seconds in which a connection must send the headers of a request."""
KEEP_ALIVE_S = 5
"""Seconds that a connection is kept open for its next request."""
MAX_BACKLOG = 128
"""Connections that may wait to be accepted. All of them are accepted at once, before one is served."""
MAX_CONNECTIONS_SHARE = 0.5
"""Share of the files this process may open. One more connection closes the oldest without a request."""
DOOR_CONNECTIONS = 16
"""Most connections of one Unix socket."""


class WebServer:
    """Serves one app. The caller of `start` also calls `close`, and keeps handling the process's signals.

    There is no TLS: bind it to interfaces other than loopback only inside a network you trust.
    """

    def __init__(self, app: Any, *, host: str, port: int, grace_s: int, **options: Any) -> None:
        """
        Args:
            app: The ASGI app.
            host: Address to bind.
            port: 0 takes a free one.
            grace_s: How long `close` waits for running requests.
            options: More of `uvicorn.Config`, such as `ws`; WebSockets are off by default.
        """
        self._host = host
        self._port = port
        self._server = _Server(
            _config(
                app,
                backlog=min(MAX_BACKLOG, max(16, _max_connections() // 4)),
                timeout_graceful_shutdown=grace_s,
                **options,
            )
        )
        self._serving: asyncio.Task[None] | None = None
        self.url = ""
        """`http://HOST:PORT`, after `start`."""

    async def start(self) -> None:
        """Bind and serve. OSError when the address cannot be bound."""
        listener = _bound(self._host, self._port)
        host = f"[{self._host}]" if ":" in self._host else self._host
        self.url = f"http://{host}:{listener.getsockname()[1]}"
        self._serving = asyncio.create_task(self._server.serve(sockets=[listener]))
        while not self._server.started:
            if self._serving.done():
                self._serving.result()
                raise RuntimeError("the HTTP server ended as it started")
            await asyncio.sleep(0.001)

    async def wait_closed(self) -> None:
        """Wait until the server ends."""
        assert self._serving is not None, "not started"
        await asyncio.shield(self._serving)

    async def close(self) -> None:
        """Stop serving. Idempotent; does nothing before `start`."""
        if self._serving is not None:
            self._server.should_exit = True
            await self._serving


@contextlib.asynccontextmanager
async def unix_door(app: Any, path: Path, *, most_requests: int) -> AsyncIterator[None]:
    """Serve `app` on a new Unix socket, open to every user who can see it, while the block runs.

    The socket closes for good after `most_requests` requests and connections together: a client that is not
    trusted cannot keep this process busy. Requests that are under way at the end are cut off.
    The file is the caller's to delete.
    """
    state, left = ServerState(), most_requests

    def count() -> None:
        nonlocal left
        left -= 1
        if left < 0:
            close()

    def close() -> None:
        server.close()
        for connection in list(state.connections):
            connection.transport.abort()

    async def counted(scope: Any, receive: Any, send: Any) -> None:
        count()
        await app(scope, receive, send)

    config = _config(counted)
    config.load()

    def connection() -> asyncio.Protocol:
        count()
        return _DoorConnection(config, state, {})

    folder = os.open(path.parent, os.O_PATH)  # an address holds 107 bytes, a path may have more
    try:
        server = await asyncio.get_running_loop().create_unix_server(
            connection, f"/proc/self/fd/{folder}/{path.name}", backlog=DOOR_CONNECTIONS
        )
    finally:
        os.close(folder)
    try:
        os.chmod(path, 0o666)
        yield
    finally:
        close()


def _config(app: Any, **options: Any) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        **{
            "http": _Connection,
            "timeout_keep_alive": KEEP_ALIVE_S,
            "lifespan": "off",
            "access_log": False,
            "log_config": None,
            "server_header": False,
            "ws": "none",
            **options,
        },
    )


def check_address(host: str, port: int) -> None:
    """OSError when the address cannot be bound: before what takes long is loaded."""
    _bound(host, port).close()


def _bound(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listener = socket.create_server((host, port), family=family)
        # Connections inherit it; asyncio leaves it out where a socket was made without a protocol's number.
        # Otherwise the second event of a stream waits for the client's delayed acknowledgment, some 40 ms.
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return listener
    except OSError as error:
        number = error.errno if error.errno in errno.errorcode else errno.EADDRNOTAVAIL  # no name of a host
        raise OSError(number, error.strerror, f"{host}:{port}") from error


class _Server(uvicorn.Server):
    """Leaves the process's signals to the owner of the event loop."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class _Connection(H11Protocol):
    """Closes a connection that sends no request.

    opened, or answered -> headers arrive -> (request) -> answered -> ...
                        -> too slow, or too many connections: closed
    """

    most: ClassVar[int | None] = None
    """Connections at once; None: the process's share of open files."""
    _deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(_OneWritePerTurn(transport, self.loop))  # type: ignore[arg-type]
        self._deadline = self.loop.call_later(HEADERS_TIMEOUT_S, self._close_unless_asked)
        if len(self.connections) > (self.most or _max_connections()):
            self._make_room()

    def _make_room(self) -> None:
        """Close the oldest connection without a request; that is this one if all others have one."""
        # A closed connection stays in the set for a moment.
        still_open = [
            each
            for each in self.connections
            if isinstance(each, _Connection) and not each.transport.is_closing()
        ]
        if len(still_open) > (self.most or _max_connections()):
            waiting = (each for each in still_open if each._waits)
            min(waiting, key=lambda each: each._expires_at).transport.abort()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if not self._waits:
            self._forget_deadline()
        elif self._deadline is None:
            self._deadline = self.loop.call_later(HEADERS_TIMEOUT_S, self._close_unless_asked)

    def connection_lost(self, exc: Exception | None) -> None:
        self._forget_deadline()
        super().connection_lost(exc)

    @property
    def _waits(self) -> bool:
        """Whether the headers of its next request have not arrived."""
        return self.conn.their_state is h11.IDLE

    @property
    def _expires_at(self) -> float:
        return self._deadline.when() if self._deadline is not None else 0.0

    def _close_unless_asked(self) -> None:
        self._deadline = None
        if self._waits:
            self.transport.abort()

    def _forget_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None


class _DoorConnection(_Connection):
    most = DOOR_CONNECTIONS


class _OneWritePerTurn:
    """A transport that sends what one turn of the event loop writes at once: a response's headers and body.

    Two writes wake the client twice, which costs as much CPU time as the rest of a short request.
    """

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport = transport
        self._loop = loop
        self._waiting = bytearray()

    def write(self, data: bytes) -> None:
        if data and not self._waiting:
            self._loop.call_soon(self._flush)
        self._waiting += data

    def __getattr__(self, name: str) -> Any:
        """Everything else comes behind what was written."""
        self._flush()
        return getattr(self._transport, name)

    def _flush(self) -> None:
        data, self._waiting = bytes(self._waiting), bytearray()
        if data:
            self._transport.write(data)


def _max_connections() -> int:
    most_files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return sys.maxsize if most_files < 0 else int(most_files * MAX_CONNECTIONS_SHARE)
