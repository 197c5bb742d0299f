"""Environments of ours on OpenEnv's own server.

    created -> start (its port is known) -> serving -> close

    GET /health /schema /metadata
    WS  /ws                         one session per connection

Everything but `/health` wants the token: `Authorization: Bearer TOKEN`, or as the password of the address,
`http://any:TOKEN@HOST:PORT`, for clients that send no headers of their own.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import hmac
import secrets
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

from openenv.core.env_server import Action, Environment, Observation, State, create_fastapi_app
from openenv.core.env_server.types import EnvironmentMetadata, ServerMode
from pydantic import Field
from starlette.datastructures import Headers
from starlette.responses import JSONResponse, Response

from envsdk.base.net.web_server import WebServer
from envsdk.contracts.failures import ConfigurationError

MIN_TOKEN_LENGTH = 16
GRACE_S = 5
"""How long answers that are under way are waited for when the server closes, seconds."""


class SessionEnvironment(Protocol):
    """One environment, wherever it runs: on the event loop, on a thread, in a process of its own."""

    async def reset(self, seed: int) -> tuple[str, dict[str, Any]]: ...

    async def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]: ...

    def discard(self) -> None:
        """Throw the environment away; the next reset builds a fresh one."""
        ...

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerConfig:
    """Where and what a server serves."""

    name: str
    """Name of the environment."""
    description: str = ""
    host: str = "127.0.0.1"
    port: int = 0
    """0 takes a free one."""
    token: str = field(default="", repr=False)
    """Empty makes one up."""
    max_sessions: int = 64
    max_message_bytes: int = 1024**2


class TextAction(Action):  # type: ignore[misc]
    """One reply of the policy."""

    text: str
    """All of the reply."""


class TextObservation(Observation):  # type: ignore[misc]
    """What an environment of ours answers."""

    text: str
    success: bool | None = None
    """Whether the task is solved; null before the first action."""
    truncated: bool = False
    """Whether the episode ended at its limit of turns."""
    metrics: dict[str, float] = Field(default_factory=dict)


class EpisodeState(State):  # type: ignore[misc]
    """What `state` answers."""

    seed: int | None = None
    done: bool = False


class ServedEnvironment(Environment):  # type: ignore[misc]
    """One session: its environment is made by the first reset and closed with the connection."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self, open_env: Callable[[], SessionEnvironment], config: ServerConfig) -> None:
        super().__init__()
        self._open_env = open_env
        self._config = config
        self._env: SessionEnvironment | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._state: EpisodeState | None = None

    async def reset_async(
        self, seed: int | None = None, episode_id: str | None = None, **_: Any
    ) -> TextObservation:
        """Start an episode. Raises what the environment raises."""
        self._state = None
        self._loop = asyncio.get_running_loop()
        self._env = self._env or self._open_env()
        seed = secrets.randbelow(2**31) if seed is None else seed
        try:
            text, _ = await self._env.reset(seed)
        except Exception:
            self._env.discard()
            raise
        self._state = EpisodeState(episode_id=episode_id or uuid.uuid4().hex, seed=seed)
        return TextObservation(text=text)

    async def step_async(self, action: TextAction, **_: Any) -> TextObservation:
        """Play one reply. Raises RuntimeError before the first reset, and what the environment raises."""
        if self._env is None or self._state is None:
            raise RuntimeError("no episode: send reset before step")
        state, self._state = self._state, None
        try:
            text, reward, terminated, truncated, info = await self._env.step(action.text)
        except Exception:
            self._env.discard()
            raise
        done = terminated or truncated
        self._state = state.model_copy(update={"step_count": state.step_count + 1, "done": done})
        return TextObservation(
            text=text,
            success=bool(info.get("success", False)),
            truncated=truncated and not terminated,
            metrics=info.get("metrics", {}),
            done=done,
            reward=reward,
        )

    @property
    def state(self) -> EpisodeState:
        return self._state or EpisodeState()

    def get_metadata(self) -> EnvironmentMetadata:
        return EnvironmentMetadata(name=self._config.name, description=self._config.description)

    def close(self) -> None:
        # OpenEnv closes on a thread; the environment belongs to the event loop.
        if self._env is not None and self._loop is not None:
            self._loop.call_soon_threadsafe(self._env.close)

    def reset(self, *_: Any, **__: Any) -> TextObservation:
        raise NotImplementedError

    def step(self, *_: Any, **__: Any) -> TextObservation:
        raise NotImplementedError


class OpenEnvServer:
    """Serves one environment, a fresh one per session. Runs on the event loop that calls `start`."""

    def __init__(self, open_env: Callable[[], SessionEnvironment], config: ServerConfig) -> None:
        """ConfigurationError for a token that is too short."""
        if config.token and len(config.token) < MIN_TOKEN_LENGTH:
            raise ConfigurationError(f"the server's token has fewer than {MIN_TOKEN_LENGTH} characters")
        self.config = config
        self.token = config.token or secrets.token_urlsafe(24)
        self._app = create_fastapi_app(
            partial(ServedEnvironment, open_env, config),
            TextAction,
            TextObservation,
            max_concurrent_envs=config.max_sessions,
            state_cls=EpisodeState,
            # OpenEnv's calls over HTTP have no session: each would play on an environment of its own.
            mode=ServerMode.PRODUCTION,
        )
        self._server = WebServer(
            self._guarded,
            host=config.host,
            port=config.port,
            grace_s=GRACE_S,
            interface="asgi3",
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

    async def _guarded(self, scope: Any, receive: Any, send: Any) -> None:
        """The ASGI app, for those who have the token."""
        if scope["path"] == "/health" or self._is_authorized(Headers(scope=scope)):
            await self._app(scope, receive, send)
        elif scope["type"] == "websocket":
            # Before it is accepted: answered with 403.
            await send({"type": "websocket.close", "code": 1008})
        else:
            refusal: Response = JSONResponse(
                {"detail": "wrong or missing token"}, 401, headers={"WWW-Authenticate": "Bearer"}
            )
            await refusal(scope, receive, send)

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
