"""Runs in a sandbox, which has no network: leads TCP connections to a Unix socket while a program runs.

    python connect.py PORT SOCKET PROGRAM ARGUMENT ...

Most programs reach the endpoint at an address only. Ends with the program's exit code.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from asyncio import StreamReader, StreamWriter


async def _copy(reader: StreamReader, writer: StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await reader.read(1 << 16):
            writer.write(data)
            await writer.drain()
        writer.write_eof()


async def _run(port: str, path: str, *command: str) -> None:
    async def lead(reader: StreamReader, writer: StreamWriter) -> None:
        try:
            inner, outer = await asyncio.open_unix_connection(path)
        except OSError:
            writer.transport.abort()
            return
        await asyncio.gather(_copy(reader, outer), _copy(inner, writer))
        outer.close()
        writer.close()

    await asyncio.start_server(lead, "127.0.0.1", int(port))
    program = await asyncio.create_subprocess_exec(*command)
    code = await program.wait()
    # Connections may still be open, and closing them is not worth a word.
    os._exit(code if code >= 0 else 128 - code)


if __name__ == "__main__":
    asyncio.run(_run(*sys.argv[1:]))
