"""Shell: replies that are sampled at the same time, as one answer or as a stream of server-sent events."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine, Sequence
from typing import Any, Protocol, TypeVar

from starlette.requests import ClientDisconnect, Request

from envsdk.engines.endpoint.answers import Answer, OnPiece, Piece
from envsdk.engines.endpoint.errors import ApiError
from envsdk.engines.endpoint.protocol import ReplyWriter
from envsdk.engines.endpoint.record import Prompt

Result = TypeVar("Result")

PING_S = 15.0
"""Seconds without an event after which a stream sends a ping."""


class _Answers(Protocol):
    def __call__(self, number: int, on_piece: OnPiece | None = None) -> Coroutine[Any, Any, Answer]: ...


async def events(
    writer: ReplyWriter, prompts: Sequence[Prompt], prompt_of: Sequence[Prompt], answer: _Answers
) -> AsyncIterator[str]:
    """Server-sent events of all choices, as their pieces come."""
    chunks: asyncio.Queue[str | None] = asyncio.Queue()

    def send(chunk: str) -> None:
        if chunk:
            chunks.put_nowait(chunk)

    async def choice(index: int) -> Answer:
        send(writer.first(index, prompt_of[index]))
        waiting: list[Piece] = []
        """Pieces before which the prompt has to come, which is scored when the reply has ended."""
        if writer.scores_prompt:
            whole = await answer(index, waiting.append)
            send(writer.echo(index, prompt_of[index], whole.prompt_scores))
            for piece in waiting if whole.token_ids else ():
                send(writer.piece(index, piece))
        else:
            if writer.echoes:
                send(writer.echo(index, prompt_of[index], None))
            whole = await answer(index, lambda piece: send(writer.piece(index, piece)))
        send(writer.last(index, whole))
        return whole

    answering = asyncio.ensure_future(all_of([choice(index) for index in range(len(prompt_of))]))
    answering.add_done_callback(lambda _: chunks.put_nowait(None))
    try:
        while True:
            try:
                async with asyncio.timeout(PING_S):
                    chunk = await chunks.get()
            except TimeoutError:
                chunk = writer.ping()
            if chunk is None:
                break
            if chunk:
                yield chunk
        yield writer.end(prompts, answering.result())
    except ApiError as error:
        yield writer.failed(error)
    finally:
        answering.cancel()


async def all_of(answers: Sequence[Coroutine[Any, Any, Answer]]) -> list[Answer]:
    """All of them; when one fails its error, and none of the others goes on."""
    if len(answers) == 1:
        return [await answers[0]]
    tasks = [asyncio.ensure_future(answer) for answer in answers]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()


async def unless_disconnected(request: Request, work: Coroutine[Any, Any, Result]) -> Result:
    """The result; when the client goes away first, the work is canceled and ClientDisconnect raised."""
    task = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(_disconnected(request))
    gone.add_done_callback(lambda _: task.cancel())
    try:
        return await task
    except asyncio.CancelledError:
        if gone.done() and not gone.cancelled():
            raise ClientDisconnect from None
        raise
    finally:
        gone.cancel()
        task.cancel()


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
