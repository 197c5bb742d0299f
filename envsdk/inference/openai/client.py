"""Shell: one completion as a stream of server-sent events."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any

import httpx2

from envsdk.inference.engine_support.failures import ReplyRefused
from envsdk.inference.engine_support.http import http_client, refusal, unavailable
from envsdk.inference.openai.settings import OpenAISettings

_END = "[DONE]"


class CompletionsClient:
    """Connections to one server. Owner: the engine, on its event loop."""

    def __init__(self, settings: OpenAISettings, api_key: str | None) -> None:
        self._url = settings.base_url.rstrip("/") + "/completions"
        self._http = http_client(
            api_key=api_key,
            connect_timeout_s=settings.connect_timeout_s,
            silence_timeout_s=settings.silence_timeout_s,
        )

    async def events(self, body: dict[str, Any]) -> AsyncGenerator[str, None]:
        """`data` of each event up to the end; closing the iterator ends the request on the server.

        Raises Unavailable or ReplyRefused.
        """
        try:
            async with self._http.stream("POST", self._url, json=body) as response:
                if response.status_code != httpx2.codes.OK:
                    raise await refusal(response)
                # The first event holds the full prompt: no limit on its size.
                async for event in httpx2.EventSource(response, max_event_size=None):
                    if event.data != _END:  # but read on, so that the connection can be used again
                        yield event.data
        except httpx2.SSEError as error:
            raise ReplyRefused(f"{self._url} does not stream: {error}") from error
        except httpx2.TransportError as error:
            raise unavailable(self._url, error) from error

    async def close(self) -> None:
        await self._http.aclose()
