"""A real `envsdk sandboxd` on this loop, for tests of its clients."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from envsdk.rewards.sandbox.sandboxd.app import SandboxServer
from envsdk.rewards.sandbox.sandboxd.settings import ServerSettings

OURS, THEIRS = "e2b_" + "0" * 40, "e2b_" + "1" * 40


def access(server: SandboxServer, key: str = OURS) -> dict[str, str]:
    """How E2B's SDK finds the server."""
    return {"api_key": key, "api_url": server.url, "sandbox_url": server.url}


@asynccontextmanager
async def sandbox_server(folder: Path, **settings: Any) -> AsyncIterator[SandboxServer]:
    """One with two tokens; nothing is left of it."""
    tokens = {"ours": {"token": OURS, "sandboxes": 1000}, "theirs": {"token": THEIRS, "sandboxes": 1}}
    places = {"backend_settings": {"state_dir": folder / "sandboxes"}, "state_dir": folder / "server"}
    server = SandboxServer(ServerSettings(**{"tokens": tokens, **places, **settings}))
    await server.start()
    try:
        yield server
    finally:
        await server.close()
    left = [path.name for name in ("sandboxes", "server") for path in (folder / name).glob("*")]
    assert left in ([], ["images"])
