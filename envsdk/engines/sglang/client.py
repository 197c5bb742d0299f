"""Shell: requests to one SGLang server."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from typing import Any

import httpx2

from envsdk.engines.engine_support.failures import ReplyRefused
from envsdk.engines.engine_support.http import events, http_client, refusal, unavailable
from envsdk.engines.sglang.settings import SGLangSettings


class SGLangClient:
    """Connections to one server. Owner: the engine, on its event loop.

    Every method raises Unavailable or ReplyRefused.
    """

    def __init__(self, base_url: str, settings: SGLangSettings, api_key: str | None) -> None:
        self._base_url = base_url.rstrip("/")
        self._connect_timeout_s = settings.connect_timeout_s
        self._silence_timeout_s = settings.silence_timeout_s
        self._http = http_client(
            api_key=api_key,
            connect_timeout_s=settings.connect_timeout_s,
            silence_timeout_s=settings.silence_timeout_s,
        )

    def messages(self, body: Mapping[str, Any]) -> AsyncGenerator[str, None]:
        """`data` of each message of one reply; see `http.events`."""
        # A request waits in silence for its turn; whether the server is alive is asked elsewhere.
        limits = httpx2.Timeout(None, connect=self._connect_timeout_s)
        return events(self._http, self._base_url + "/generate", body, limits=limits)

    async def post(
        self, path: str, body: Mapping[str, Any] | None = None, *, timeout_s: float | None = None
    ) -> httpx2.Response:
        """The answer, of a status that is a success."""
        return await self._ask("POST", path, dict(body or {}), timeout_s)

    async def get(self, path: str, *, timeout_s: float | None = None) -> dict[str, Any]:
        """The JSON object in the answer; an empty one when there is none."""
        response = await self._ask("GET", path, None, timeout_s)
        try:
            answer = response.json() if response.content else {}
        except ValueError as error:
            raise ReplyRefused(f"{path} answered no JSON: {response.text[:200]!r}") from error
        return answer if isinstance(answer, dict) else {}

    async def _ask(
        self, method: str, path: str, body: dict[str, Any] | None, timeout_s: float | None
    ) -> httpx2.Response:
        url = self._base_url + path
        timeout = httpx2.Timeout(timeout_s or self._silence_timeout_s, connect=self._connect_timeout_s)
        try:
            response = await self._http.request(method, url, json=body, timeout=timeout)
        except httpx2.TransportError as error:
            raise unavailable(url, error) from error
        if not response.is_success:
            raise await refusal(response)
        return response

    async def close(self) -> None:
        await self._http.aclose()
