"""A sandbox server: one application on one port.

created -> start (its port is known) -> serving -> close
"""

from __future__ import annotations

from envsdk.base.net.web_server import WebServer
from envsdk.rewards.sandbox.sandboxd.app import App
from envsdk.rewards.sandbox.sandboxd.boxes import Boxes
from envsdk.rewards.sandbox.sandboxd.settings import ServerSettings

GRACE_S = 5
"""How long calls that are under way are waited for when the server closes, seconds."""


class SandboxServer:
    """Serves this machine's sandboxes on the running event loop. There is no TLS."""

    def __init__(self, settings: ServerSettings, *, host: str = "127.0.0.1", port: int = 0) -> None:
        self.boxes = Boxes(settings)
        self._server = WebServer(App(self.boxes), host=host, port=port, grace_s=GRACE_S)

    @property
    def url(self) -> str:
        return self._server.url

    async def start(self) -> None:
        """Try the backend, bind and serve.

        Raises SandboxUnavailable: sandboxes do not run here. Raises OSError: the address cannot be bound.
        """
        await self.boxes.open()
        try:
            await self._server.start()
        except OSError:
            await self.boxes.close()
            raise

    async def close(self) -> None:
        """End all sandboxes, then stop serving. Idempotent."""
        await self.boxes.close()
        await self._server.close()
