"""Connections that ask for nothing: they are closed, and nobody else waits for them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, cast

import pytest

from envsdk.base.net import web_server
from envsdk.base.net.web_server import WebServer

REQUEST = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"


async def hello(scope: Any, receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
    await send({"type": "http.response.body", "body": b"hi"})


@asynccontextmanager
async def served() -> AsyncIterator[int]:
    server = WebServer(hello, host="127.0.0.1", port=0, grace_s=1)
    await server.start()
    try:
        yield int(server.url.rpartition(":")[2])
    finally:
        await server.close()


async def ask(port: int, sent: bytes) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(sent)
    return reader, writer


async def until_closed(reader: asyncio.StreamReader) -> bytes:
    try:
        return await reader.read()
    except ConnectionResetError:
        return b""


@pytest.mark.parametrize("sent", [b"", b"GET / HTTP/1.1\r\nHost: a\r\nX"])
@pytest.mark.parametrize("num_answered", [0, 2])
async def test_a_connection_that_sends_no_headers_is_closed(
    sent: bytes, num_answered: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(web_server, "HEADERS_TIMEOUT_S", 0.2)
    monkeypatch.setattr(web_server, "KEEP_ALIVE_S", 1)
    async with served() as port:
        reader, writer = await ask(port, b"")
        for _ in range(num_answered):
            writer.write(REQUEST)
            assert (await reader.readuntil(b"hi")).startswith(b"HTTP/1.1 200 OK")
        writer.write(sent)
        assert await until_closed(reader) == b""
        writer.close()


async def test_half_open_connections_make_way_for_those_that_ask(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(web_server, "_max_connections", lambda: 8)
    async with served() as port:
        half_open = await asyncio.gather(*(ask(port, b"GET / HTTP/1.1\r\nX") for _ in range(60)))
        for _ in range(3):
            reader, writer = await ask(port, REQUEST)
            assert b"200 OK" in await reader.readline()
            writer.close()
        closing = [asyncio.ensure_future(until_closed(reader)) for reader, _ in half_open]
        while sum(each.done() for each in closing) < 52:
            await asyncio.wait([each for each in closing if not each.done()], return_when="FIRST_COMPLETED")
        for each in closing:
            each.cancel()
        for _, writer in half_open:
            writer.close()


async def test_what_one_turn_of_the_loop_writes_is_sent_at_once_and_in_order() -> None:
    sent: list[Any] = []

    class Transport:
        def write(self, data: bytes) -> None:
            sent.append(data)

        def close(self) -> None:
            sent.append("closed")

    transport: Any = web_server._OneWritePerTurn(cast(Any, Transport()), asyncio.get_running_loop())
    transport.write(b"headers, ")
    transport.write(b"body")
    transport.write(b"")
    assert sent == []
    await asyncio.sleep(0)
    assert sent == [b"headers, body"]
    transport.write(b"more")
    transport.close()
    await asyncio.sleep(0)
    assert sent == [b"headers, body", b"more", "closed"]
