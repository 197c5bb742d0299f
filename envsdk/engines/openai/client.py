"""Shell: one completion as a stream of server-sent events."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any

from envsdk.engines.engine_support.http import events, http_client
from envsdk.engines.openai.settings import OpenAISettings


class CompletionsClient:
    """Connections to one server. Owner: the engine, on its event loop."""

    def __init__(self, settings: OpenAISettings, api_key: str | None) -> None:
        self._url = settings.base_url.rstrip("/") + "/completions"
        self._http = http_client(
            api_key=api_key,
            connect_timeout_s=settings.connect_timeout_s,
            silence_timeout_s=settings.silence_timeout_s,
        )

    def events(self, body: dict[str, Any]) -> AsyncGenerator[str, None]:
        """`data` of each event; see `http.events`."""
        return events(self._http, self._url, body)

    async def close(self) -> None:
        await self._http.aclose()
