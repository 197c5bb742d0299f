"""`Connection`: OpenEnv's own client, which raises a server's error messages with all that they say."""

from __future__ import annotations

from typing import Any

from openenv.core import GenericEnvClient
from websockets.exceptions import WebSocketException as WebSocketException

from envsdk.adapters.openenv.client import ServerError


class Connection(GenericEnvClient):  # type: ignore[misc]
    """A session on a WebSocket; `.sync()` waits for its answers."""

    async def _receive(self) -> dict[str, Any]:
        answer: dict[str, Any] = await super()._receive()
        if answer["type"] == "error":
            raise ServerError(answer["data"])
        return answer
