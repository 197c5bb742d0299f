"""Shell: what an HTTP client of a server needs besides the requests themselves."""

from __future__ import annotations

import asyncio
import itertools
import json
import random
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from typing import Any, TypeVar

import httpx2

from envsdk.engines.engine_support.failures import (
    TRANSIENT_STATUSES,
    ReplyRefused,
    Unavailable,
    Unreachable,
    error_text,
    retry_after_s,
    wait_s,
)

ReplyT = TypeVar("ReplyT")

_END = "[DONE]"
_MESSAGES = ("error", "detail", "error_message")
"""Where servers say what is wrong."""


def http_client(
    *, api_key: str | None, connect_timeout_s: float, silence_timeout_s: float
) -> httpx2.AsyncClient:
    """Connections without a limit on their number: the engine bounds how many requests run."""
    return httpx2.AsyncClient(
        headers={"Authorization": f"Bearer {api_key}"} if api_key else {},
        timeout=httpx2.Timeout(silence_timeout_s, connect=connect_timeout_s, pool=None),
        limits=httpx2.Limits(max_connections=None),
    )


async def post_json(http: httpx2.AsyncClient, url: str, body: Mapping[str, Any]) -> str:
    """The server's answer to one request. Raises Unavailable or ReplyRefused."""
    try:
        response = await http.post(url, json=body)
    except httpx2.RequestError as error:
        raise unavailable(url, error) from error
    if response.status_code != httpx2.codes.OK:
        raise await refusal(response)
    return response.text


async def events(
    http: httpx2.AsyncClient, url: str, body: Mapping[str, Any], *, limits: httpx2.Timeout | None = None
) -> AsyncGenerator[str, None]:
    """`data` of each server-sent event of one answer; closing the iterator ends the request on the server.

    Raises Unavailable or ReplyRefused.
    """
    try:
        async with http.stream("POST", url, json=dict(body), timeout=limits or http.timeout) as response:
            if response.status_code != httpx2.codes.OK:
                raise await refusal(response)
            # An event may hold the full prompt: no limit on its size.
            async for event in httpx2.EventSource(response, max_event_size=None):
                if event.data != _END:  # but read on, so that the connection can be used again
                    yield event.data
    except httpx2.SSEError as error:
        raise ReplyRefused(f"{url} does not stream: {error}") from error
    except httpx2.TransportError as error:
        raise unavailable(url, error) from error


async def with_retries(
    ask: Callable[[], Awaitable[ReplyT]], *, max_retries: int, backoff_s: float, draw: random.Random
) -> ReplyT:
    """`ask()`, again after each Unavailable; raises the one after the last retry."""
    for attempt in itertools.count():
        try:
            return await ask()
        except Unavailable as error:
            if attempt == max_retries:
                raise Unavailable(f"{error} (asked {attempt + 1} times)") from error
            await back_off(error, attempt, backoff_s=backoff_s, draw=draw)
    raise AssertionError("unreachable")


async def back_off(error: Unavailable, attempt: int, *, backoff_s: float, draw: random.Random) -> None:
    """Wait before retry number `attempt`, from 0."""
    await asyncio.sleep(
        wait_s(attempt, backoff_s=backoff_s, at_least_s=error.retry_after_s, uniform=draw.random())
    )


def unavailable(url: str, error: httpx2.RequestError) -> Unavailable:
    """A broken, refused or silent connection."""
    what = " ".join(str(error).split()) or type(error).__name__
    kind = Unreachable if isinstance(error, httpx2.ConnectError | httpx2.ConnectTimeout) else Unavailable
    return kind(f"{url}: {what}")


async def refusal(response: httpx2.Response) -> ReplyRefused | Unavailable:
    """What a status that is no success means, with the server's words."""
    await response.aread()
    try:
        answer = json.loads(response.text)
        if isinstance(answer, dict):
            answer = next((answer[key] for key in _MESSAGES if answer.get(key)), answer)
    except ValueError:
        answer = response.text
    message = f"{response.request.url} answered {response.status_code}: {error_text(answer)}"
    if response.status_code in TRANSIENT_STATUSES:
        return Unavailable(message, retry_after_s=retry_after_s(response.headers.get("Retry-After")))
    return ReplyRefused(message, status=response.status_code)
