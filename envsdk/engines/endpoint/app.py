"""Shell: the HTTP routes. Every answer that is no success is an error in the format of the path's protocol.

bearer token -> body within its limit -> handler -> JSON, or server-sent events
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import secrets
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from envsdk.contracts.players import POLICY
from envsdk.engines.endpoint.answering import Answerer
from envsdk.engines.endpoint.bodies import CHAT, COMPLETIONS
from envsdk.engines.endpoint.errors import ApiError
from envsdk.engines.endpoint.parsing import Histories
from envsdk.engines.endpoint.protocol import Answer, OnPiece, Piece, Protocol, ReplyHead, ReplyWriter
from envsdk.engines.endpoint.protocols.anthropic import MESSAGES
from envsdk.engines.endpoint.protocols.generate import GENERATE
from envsdk.engines.endpoint.protocols.responses import RESPONSES
from envsdk.engines.endpoint.record import Prompt
from envsdk.engines.endpoint.session_routes import Handler, SessionRoutes, read_body, role_of
from envsdk.engines.endpoint.sessions import Session

_logger = logging.getLogger(__name__)

PROTOCOLS = (CHAT, COMPLETIONS, MESSAGES, RESPONSES, GENERATE)
"""Ways to ask for replies."""

MAX_BYTES_PER_TOKEN = 64
"""Most bytes of a request for replies per token of the context: ten times what words or token ids take."""
MIN_PROMPT_BYTES = 1024**2
"""What such a request may have however small the context: room for tools and schemas."""
IN_SESSION = "/sessions/{session_id}"
IN_ROLE = IN_SESSION + "/roles/{role}"
"""The paths of one of an episode's agents."""
CLIENT_CLOSED = 499
"""Status of an answer that nobody waits for any more."""


class EndpointApp:
    """The routes and what they need. Owner: the `Endpoint`."""

    def __init__(self, answerer: Answerer, of_sessions: SessionRoutes, *, token: str) -> None:
        self._answerer = answerer
        self._of_sessions = of_sessions
        self._token = token
        self.version: int | None = None
        """Version of the weights; None where nobody says."""
        self._created = int(time.time())
        self._records = of_sessions.on_ended is not None
        """Sessions are kept, and nobody has been told yet that other requests are not."""
        counting = [each for each in PROTOCOLS if each.count_body is not None]
        model_routes: list[tuple[str, Handler, str]] = [
            *((each.path, partial(self._reply, each), "POST") for each in PROTOCOLS),
            *((f"{each.path}/count_tokens", partial(self._count, each), "POST") for each in counting),
            ("/v1/models", self._models, "GET"),
            ("/v1/models/{model:path}", self._model, "GET"),
        ]
        # Tried in this order: requests for replies come first, and HEAD before a GET that would answer it.
        self.asgi = Starlette(
            routes=[
                *(each for at in (IN_SESSION, "", IN_ROLE) for each in self._routes(model_routes, at)),
                *(Route(path, _is_there, methods=["HEAD"]) for path in ("/", IN_SESSION, IN_ROLE)),
                *self._routes([("/sessions", of_sessions.open, "POST")]),
                *self._routes(of_sessions.routes(), IN_SESSION),
            ],
            exception_handlers={HTTPException: _not_a_route, Exception: _is_a_bug},
        )

    def _routes(self, routes: Sequence[tuple[str, Handler, str]], at: str = "") -> list[Route]:
        return [Route(at + path, self._guarded(handler), methods=[verb]) for path, handler, verb in routes]

    def _guarded(self, handler: Handler) -> Handler:
        async def guarded(request: Request) -> Response:
            try:
                self._authorize(request)
                return await handler(request)
            except ApiError as error:
                return _refusal(request, error)
            except ClientDisconnect:
                return Response(status_code=CLIENT_CLOSED)

        return guarded

    def _authorize(self, request: Request) -> None:
        """The endpoint's token opens everything, a session's key its own paths."""
        scheme, _, bearer = request.headers.get("authorization", "").partition(" ")
        given = [request.headers.get("x-api-key", "")] + ([bearer] if scheme.lower() == "bearer" else [])
        keys = [self._token]
        if session_id := request.path_params.get("session_id"):
            keys.append(self._of_sessions.sessions.key_of(session_id))
        is_known = [
            hmac.compare_digest(each.strip().encode(), key.encode()) for each in given for key in keys
        ]
        if not any(is_known):
            raise ApiError(
                401,
                "wrong or missing key: send `Authorization: Bearer KEY` or `x-api-key: KEY` with the "
                "endpoint's token, or with the session's `api_key`",
                code="invalid_api_key",
            )

    async def _prompt_body(self, request: Request, session: Session | None) -> bytes:
        """Body of a request for replies. What the context cannot hold anyway is refused before it is parsed,
        which holds up the event loop."""
        body = await read_body(request, self._of_sessions.max_body_bytes)
        length = self._answerer.sequence_length
        if len(body) > max(MIN_PROMPT_BYTES, length * MAX_BYTES_PER_TOKEN):
            raise self._answerer.too_long(
                session, f"the request's {len(body)} bytes", num_tokens=len(body) // MAX_BYTES_PER_TOKEN
            )
        return body

    def _session(self, request: Request) -> Session | None:
        session_id = request.path_params.get("session_id")
        return None if session_id is None else self._of_sessions.sessions.get(session_id)

    async def _models(self, request: Request) -> Response:
        return JSONResponse({"object": "list", "data": [self._model_card()]})

    async def _model(self, request: Request) -> Response:
        self._check_model(request.path_params["model"])
        return JSONResponse(self._model_card())

    def _model_card(self) -> dict[str, Any]:
        card = {
            "id": self._of_sessions.model_name,
            "object": "model",
            "created": self._created,
            "owned_by": "envsdk",
            "max_model_len": self._answerer.sequence_length,
        }
        return card if self.version is None else card | {"version": self.version}

    def _check_model(self, name: str) -> None:
        if name not in (self._of_sessions.model_name, POLICY):
            raise ApiError(
                404,
                f"there is no model `{name}`; `{self._of_sessions.model_name}` is served",
                code="model_not_found",
            )

    async def _reply(self, protocol: Protocol, request: Request) -> Response:
        session = self._session(request)
        writer, prompts = await self._asked(protocol, request, session)
        return await self._answer(protocol, request, session, writer, prompts)

    async def _count(self, protocol: Protocol, request: Request) -> Response:
        assert protocol.count_body is not None, "it has a route"
        _, prompts = await self._asked(protocol, request, self._session(request))
        return JSONResponse(protocol.count_body(sum(len(prompt.ids) for prompt in prompts)))

    async def _asked(
        self, protocol: Protocol, request: Request, session: Session | None
    ) -> tuple[ReplyWriter, Sequence[Prompt]]:
        """The writer of the answer to a request, and what the replies are sampled from."""
        body = await self._prompt_body(request, session)
        head = ReplyHead(
            unique=secrets.token_hex(12),
            created=int(time.time()),
            model=self._of_sessions.model_name,
            token_text=lambda token: self._answerer.chat.decode([token], skip_special_tokens=False),
            histories=Histories() if session is None else session.histories,
        )
        writer = protocol.read(body, head)
        self._check_model(writer.fields.model)
        prompts = await self._answerer.prompts(session, len(body), writer.fields)
        role = role_of(request.path_params)
        return writer, [replace(prompt, role=role) for prompt in prompts] if role else prompts

    async def _answer(
        self,
        protocol: Protocol,
        request: Request,
        session: Session | None,
        writer: ReplyWriter,
        prompts: Sequence[Prompt],
    ) -> Response:
        fields = writer.fields
        rules = self._of_sessions.rules if session is None else session.rules
        orders = [
            (prompt, self._answerer.sampling(session, rules, fields, prompt, choice))
            for prompt in prompts
            for choice in range(fields.num_choices)
        ]
        self._answerer.count_ignored(session, fields.ignored)
        if session is None and self._records:
            self._records = False
            _logger.warning(
                "requests at %s are answered and not recorded: open a session (`POST /sessions`) and use its "
                "base_url; this is said once",
                protocol.path,
            )

        async def answer(number: int, on_piece: OnPiece | None = None) -> Answer:
            prompt, sampling = orders[number]
            return await self._answerer.answer(
                session, fields, prompt, sampling, on_piece, unique=f"{writer.head.unique}_{number}"
            )

        if fields.stream:
            chunks = events(writer, prompts, [prompt for prompt, _ in orders], answer)
            return StreamingResponse(
                chunks, media_type="text/event-stream", headers={"Cache-Control": "no-cache"}
            )
        work = all_of([answer(number) for number in range(len(orders))])
        answers = await unless_disconnected(request, work)
        prompt_of = [prompt for prompt, _ in orders]
        return JSONResponse(writer.whole(prompts, list(zip(prompt_of, answers, strict=True))))


async def _is_there(request: Request) -> Response:
    """Claude Code asks at its base URL whether a server is there, without a key."""
    return Response()


def _refusal(request: Request, error: ApiError, headers: Mapping[str, str] | None = None) -> JSONResponse:
    """Claude Code asks eight times in silence, unless it is told that this changes nothing."""
    if error.status < 500 and error.status not in (408, 429):
        headers = {**(headers or {}), "x-should-retry": "false"}
    found = next((each for each in PROTOCOLS if each.path in request.url.path), CHAT)
    return JSONResponse(found.error_body(error), error.status, headers=headers)


async def _not_a_route(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    where = f"{request.method} {request.url.path}"
    hint = next((hint for path, hint in _OTHER_PROTOCOLS.items() if path in request.url.path), "")
    status = error.status_code
    if request.headers.get("upgrade", "").lower() == "websocket":  # Codex then falls back to requests
        status, hint = 426, ". WebSockets are not served: send a POST"
    told = ApiError(status, f"{where}: {error.detail}{hint}", code="unknown_url")
    return _refusal(request, told, error.headers)


_OTHER_PROTOCOLS = {
    "/responses/": ". Responses are not stored: they cannot be fetched, canceled or compacted",
    "/v1/v1/messages": ". Anthropic's clients add `/v1` themselves: give them a base URL without it",
    "/embeddings": ". The policy gives no embeddings",
}
"""Ends of paths that clients try, and what to do."""


async def _is_a_bug(request: Request, error: Exception) -> Response:
    """The error itself goes to the log of uvicorn."""
    return _refusal(request, ApiError(500, f"internal error: {type(error).__name__}"))


Result = TypeVar("Result")
_Answers = Callable[..., Coroutine[Any, Any, Answer]]

PING_S = 15.0
"""Seconds without an event after which a stream sends a ping."""


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
