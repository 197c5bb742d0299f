"""Shell: environments of ours behind OpenEnv's protocol.

    created -> start (its port is known) -> serving -> close

    GET  /health /schema /metadata     GET /state?episode_id=ID
    POST /reset  /step                 one session per episode_id, closed when its episode is done
    WS   /ws                           one session per connection

Everything but `/health` wants the token: `Authorization: Bearer TOKEN`, or as the password of the address,
`http://any:TOKEN@HOST:PORT`, for clients that send no headers of their own.
"""

from __future__ import annotations

import base64
import binascii
import hmac
import json
import secrets
import uuid
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError
from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route, WebSocketRoute
from starlette.websockets import WebSocket, WebSocketDisconnect

from envsdk.adapters.openenv.messages import (
    MESSAGES,
    CloseMessage,
    ErrorCode,
    ProtocolError,
    ResetData,
    ResetMessage,
    StateMessage,
    StepBody,
    StepMessage,
    schemas,
)
from envsdk.adapters.openenv.sessions import Session, SessionBook, SessionEnvironment
from envsdk.failures import ConfigurationError
from envsdk.net.web_server import WebServer

Model = TypeVar("Model", bound=BaseModel)

MIN_TOKEN_LENGTH = 16
GRACE_S = 5
"""How long answers that are under way are waited for when the server closes, seconds."""

_STATUS = {
    ErrorCode.VALIDATION_ERROR: 422,
    ErrorCode.INVALID_JSON: 400,
    ErrorCode.SESSION_ERROR: 404,
    ErrorCode.CAPACITY_REACHED: 503,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerConfig:
    """Where and what a server serves."""

    name: str
    """Of the environment."""
    description: str = ""
    host: str = "127.0.0.1"
    port: int = 0
    """0 takes a free one."""
    token: str = field(default="", repr=False)
    """Empty makes one up."""
    max_sessions: int = 64
    session_idle_s: float = 3600.0
    """A session over HTTP that nobody used for so long is closed when the next one is opened."""
    max_message_bytes: int = 1024**2


class OpenEnvServer:
    """Serves one environment, a fresh one per session. Runs on the event loop that calls `start`."""

    def __init__(self, open_env: Callable[[], SessionEnvironment], config: ServerConfig) -> None:
        """ConfigurationError for a token that is too short."""
        if config.token and len(config.token) < MIN_TOKEN_LENGTH:
            raise ConfigurationError(f"the server's token has fewer than {MIN_TOKEN_LENGTH} characters")
        self.config = config
        self.token = config.token or secrets.token_urlsafe(24)
        self.sessions = SessionBook(open_env, max_sessions=config.max_sessions, idle_s=config.session_idle_s)
        app = Starlette(
            routes=[
                Route("/health", self._health),
                Route("/schema", self._guarded(self._schema)),
                Route("/metadata", self._guarded(self._metadata)),
                Route("/reset", self._guarded(self._reset), methods=["POST"]),
                Route("/step", self._guarded(self._step), methods=["POST"]),
                Route("/state", self._guarded(self._state)),
                WebSocketRoute("/ws", self._websocket),
            ]
        )
        self._server = WebServer(
            app,
            host=config.host,
            port=config.port,
            grace_s=GRACE_S,
            ws="websockets-sansio",
            ws_max_size=config.max_message_bytes,
        )

    @property
    def url(self) -> str:
        """`http://HOST:PORT`."""
        return self._server.url

    async def start(self) -> None:
        """Bind and serve. OSError when the address cannot be bound."""
        await self._server.start()

    async def close(self) -> None:
        """Close all sessions and stop serving. Idempotent."""
        await self._server.close()
        self.sessions.close_all()

    def _guarded(self, handler: Callable[[Request], Awaitable[Response]]) -> Any:
        async def guarded(request: Request) -> Response:
            if not self._is_authorized(request.headers):
                refusal = {"detail": "wrong or missing token"}
                return JSONResponse(refusal, 401, headers={"WWW-Authenticate": "Bearer"})
            try:
                return await handler(request)
            except ProtocolError as error:
                return JSONResponse({"detail": error.data()}, _STATUS.get(ErrorCode(error.code), 500))

        return guarded

    def _is_authorized(self, headers: Headers) -> bool:
        scheme, _, given = headers.get("authorization", "").partition(" ")
        if scheme.lower() == "basic":
            try:
                given = base64.b64decode(given, validate=True).decode().partition(":")[2]
            except (binascii.Error, UnicodeDecodeError):
                return False
        elif scheme.lower() != "bearer":
            return False
        return hmac.compare_digest(given.strip().encode(), self.token.encode())

    async def _health(self, request: Request) -> Response:
        return JSONResponse({"status": "healthy"})

    async def _schema(self, request: Request) -> Response:
        return JSONResponse(schemas())

    async def _metadata(self, request: Request) -> Response:
        return JSONResponse({"name": self.config.name, "description": self.config.description})

    async def _reset(self, request: Request) -> Response:
        data = _validated(ResetData, await self._body(request))
        episode_id = data.episode_id or uuid.uuid4().hex
        session = self.sessions.over_http(episode_id) or self.sessions.open(episode_id=episode_id)[1]
        try:
            observation = await session.reset(data.model_copy(update={"episode_id": episode_id}))
        except BaseException:
            self.sessions.close_episode(episode_id)
            raise
        return JSONResponse(observation.data() | {"episode_id": episode_id})

    async def _step(self, request: Request) -> Response:
        body = _validated(StepBody, await self._body(request))
        observation = await self._session(body.episode_id).step(body.action)
        if observation.done:
            self.sessions.close_episode(body.episode_id)
        return JSONResponse(observation.data())

    async def _state(self, request: Request) -> Response:
        return JSONResponse(self._session(request.query_params.get("episode_id")).state().model_dump())

    def _session(self, episode_id: str | None) -> Session:
        session = self.sessions.over_http(episode_id)
        if session is None:
            why = "send the `episode_id` that /reset answered; an episode that is done or idle is closed"
            raise ProtocolError(ErrorCode.SESSION_ERROR, f"no episode {episode_id!r}: {why}")
        return session

    async def _body(self, request: Request) -> Any:
        body = bytearray()
        async for chunk in request.stream():
            body += chunk
            if len(body) > self.config.max_message_bytes:
                raise ProtocolError(ErrorCode.VALIDATION_ERROR, "the body is too long")
        return _read_json(bytes(body) or b"{}")

    async def _websocket(self, websocket: WebSocket) -> None:
        if not self._is_authorized(websocket.headers):
            await websocket.close(1008)  # before it is accepted: answered with 403
            return
        await websocket.accept()
        key = None
        try:
            key, session = self.sessions.open()
            while (answer := await _answer(session, await _received(websocket))) is not None:
                await websocket.send_text(json.dumps(answer))
        except ProtocolError as error:
            await websocket.send_text(json.dumps({"type": "error", "data": error.data()}))
        except WebSocketDisconnect:
            return
        finally:
            if key is not None:
                self.sessions.close(key)
        await websocket.close()


async def _received(websocket: WebSocket) -> str:
    """The next message; empty for one of bytes. Raises WebSocketDisconnect."""
    message = await websocket.receive()
    if message["type"] == "websocket.disconnect":
        raise WebSocketDisconnect(message.get("code", 1000))
    return message.get("text") or ""


async def _answer(session: Session, raw: str) -> dict[str, Any] | None:
    """The answer to one message; None ends the session."""
    try:
        match _message(raw):
            case ResetMessage(data=data):
                return {"type": "observation", "data": (await session.reset(data)).data()}
            case StepMessage(data=action):
                return {"type": "observation", "data": (await session.step(action)).data()}
            case StateMessage():
                return {"type": "state", "data": session.state().model_dump()}
            case CloseMessage():
                return None
    except ProtocolError as error:
        return {"type": "error", "data": error.data()}


def _message(raw: str) -> ResetMessage | StepMessage | StateMessage | CloseMessage:
    value = _read_json(raw.encode("utf-8", "replace"))
    kind = value.get("type") if isinstance(value, dict) else None
    model = MESSAGES.get(kind) if isinstance(kind, str) else None
    if model is None:
        raise ProtocolError(
            ErrorCode.UNKNOWN_TYPE, f"unknown message type {kind!r}: one of {', '.join(MESSAGES)}"
        )
    return _validated(model, value)


def _read_json(raw: bytes) -> Any:
    try:
        return json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise ProtocolError(ErrorCode.INVALID_JSON, f"not JSON: {error}") from error


def _validated(model: type[Model], value: Any) -> Model:
    try:
        return model.model_validate(value)
    except ValidationError as error:
        errors = [
            {"loc": [str(part) for part in each["loc"]], "msg": each["msg"], "type": each["type"]}
            for each in error.errors(include_url=False, include_input=False, include_context=False)
        ]
        raise ProtocolError(ErrorCode.VALIDATION_ERROR, "invalid message", {"errors": errors}) from error
