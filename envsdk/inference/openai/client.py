"""Shell: one completion as a stream of server-sent events."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from typing import Any

import httpx2

from envsdk.inference.openai.settings import OpenAISettings
from envsdk.inference.openai.wire import (
    TRANSIENT_STATUSES,
    ReplyRefused,
    Unavailable,
    error_text,
    retry_after_s,
)

_END = "[DONE]"


class CompletionsClient:
    """Connections to one server. Owner: the engine, on its event loop."""

    def __init__(self, settings: OpenAISettings, api_key: str | None) -> None:
        self._url = settings.base_url.rstrip("/") + "/completions"
        self._http = httpx2.AsyncClient(
            headers={"Authorization": f"Bearer {api_key}"} if api_key else {},
            timeout=httpx2.Timeout(settings.silence_timeout_s, connect=settings.connect_timeout_s, pool=None),
            limits=httpx2.Limits(max_connections=None),  # the engine bounds how many requests run
        )

    async def events(self, body: dict[str, Any]) -> AsyncGenerator[str, None]:
        """`data` of each event up to the end; closing the iterator ends the request on the server.

        Raises Unavailable or ReplyRefused.
        """
        try:
            async with self._http.stream("POST", self._url, json=body) as response:
                if response.status_code != httpx2.codes.OK:
                    raise await _refusal(response)
                # The first event holds the whole prompt: no limit on its size.
                async for event in httpx2.EventSource(response, max_event_size=None):
                    if event.data != _END:  # but read on, so that the connection can be used again
                        yield event.data
        except httpx2.SSEError as error:
            raise ReplyRefused(f"{self._url} does not stream: {error}") from error
        except httpx2.TransportError as error:
            what = " ".join(str(error).split()) or type(error).__name__
            raise Unavailable(f"{self._url}: {what}") from error

    async def close(self) -> None:
        await self._http.aclose()


async def _refusal(response: httpx2.Response) -> Exception:
    await response.aread()
    try:
        told = json.loads(response.text)
        told = told.get("error", told.get("detail", told)) if isinstance(told, dict) else told
    except ValueError:
        told = response.text
    message = f"{response.request.url} answered {response.status_code}: {error_text(told)}"
    if response.status_code in TRANSIENT_STATUSES:
        return Unavailable(message, retry_after_s=retry_after_s(response.headers.get("Retry-After")))
    return ReplyRefused(message)
