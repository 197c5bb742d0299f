"""Commands that serve until they are asked to stop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

from envsdk.base.processes.interrupts import on_stop_signals
from envsdk.contracts.failures import ConfigurationError


class Server(Protocol):
    """What such a command serves."""

    async def start(self) -> None: ...

    async def close(self) -> None: ...


async def serve_until_stopped(server: Server, where: str, on_serving: Callable[[], object]) -> None:
    """Serve until Ctrl-C or SIGTERM. ConfigurationError when it cannot serve `where`, `HOST:PORT`."""
    stop = asyncio.Event()
    on_stop_signals(stop.set)
    try:
        await server.start()
    except OSError as error:
        raise ConfigurationError(
            f"cannot serve on {where}: {error.strerror}; give another --host or --port"
        ) from error
    try:
        on_serving()
        await stop.wait()
    finally:
        await server.close()
