"""The endpoint: a proxy's engines behind OpenAI's HTTP protocol.

    created -> start (its port is known) -> serving -> close

    endpoint = Endpoint(proxy, chat, EndpointConfig(model_name="policy", sequence_length=4096))
    await endpoint.start()
    session = endpoint.sessions.open(rules=SamplingRules())
    client = openai.AsyncOpenAI(base_url=endpoint.base_url(session), api_key=session.api_key)

Without TLS: bind it to other interfaces than loopback only inside a network you trust.
"""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from envsdk.base.net.web_server import WebServer, unix_door
from envsdk.contracts.chat import ChatTokenizer
from envsdk.contracts.failures import ConfigurationError
from envsdk.engines.endpoint.answering import Answerer
from envsdk.engines.endpoint.app import EndpointApp
from envsdk.engines.endpoint.reply_text import ReplyReader
from envsdk.engines.endpoint.sampling import SamplingRules
from envsdk.engines.endpoint.session_routes import OnEnded, SessionRoutes
from envsdk.engines.endpoint.sessions import Session, SessionBook
from envsdk.engines.proxy import InferenceProxy
from envsdk.engines.tool_calls.reading import ToolParser

MIN_TOKEN_LENGTH = 16
GRACE_S = 5
"""How long answers that are under way are waited for when the endpoint closes, seconds."""
REQUESTS_PER_REPLY = 8
SPARE_REQUESTS = 200
"""How many requests and connections one door takes: so many for each reply, and some more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EndpointConfig:
    """Where and what an endpoint serves. ConfigurationError for a token that is too short."""

    model_name: str
    """What requests must give as `model`."""
    sequence_length: int
    """Longest prompt plus reply, tokens."""
    host: str = "127.0.0.1"
    port: int = 0
    """0 takes a free one."""
    token: str = field(default="", repr=False)
    """What opens everything; empty makes one up."""
    rules: SamplingRules = field(default_factory=SamplingRules)
    """Rules of requests without a session, and of sessions that are opened over HTTP."""
    tool_parser: ToolParser = "auto"
    max_body_bytes: int = 16 * 1024**2
    max_sessions: int = 4096
    """Open at the same time."""
    session_idle_s: float = 3600.0
    """A session that nobody used for so long is ended as failed when the next one is opened."""

    def __post_init__(self) -> None:
        check_token(self.token)


def check_token(token: str) -> None:
    """ConfigurationError for one that could be guessed, or that no header could hold."""
    if token and len(token) < MIN_TOKEN_LENGTH:
        raise ConfigurationError(f"the endpoint's token has fewer than {MIN_TOKEN_LENGTH} characters")
    if not token.isascii() or not token.isprintable() or " " in token:
        raise ConfigurationError("the endpoint's token holds spaces, or characters that are not ASCII")


class Endpoint:
    """Serves one proxy on its event loop. Owner: the owner of the proxy, which outlives it."""

    def __init__(
        self,
        proxy: InferenceProxy,
        chat: ChatTokenizer,
        config: EndpointConfig,
        *,
        on_ended: OnEnded | None = None,
        used: Mapping[str, int] | None = None,
    ) -> None:
        """`on_ended` gets the trajectories of each session that ends over HTTP; `used`: see `SessionBook`."""
        self.config = config
        self.token = config.token or secrets.token_urlsafe(24)
        self.sessions = SessionBook(
            self.token, max_sessions=config.max_sessions, idle_s=config.session_idle_s, used=used
        )
        reader = ReplyReader(chat, config.tool_parser)
        self._answerer = Answerer(proxy, reader, sequence_length=config.sequence_length)
        of_sessions = SessionRoutes(
            sessions=self.sessions,
            rules=config.rules,
            model_name=config.model_name,
            max_body_bytes=config.max_body_bytes,
            on_ended=on_ended,
            idle_s=config.session_idle_s,
        )
        self._app = EndpointApp(self._answerer, of_sessions, token=self.token)
        self._server = WebServer(self._app.asgi, host=config.host, port=config.port, grace_s=GRACE_S)

    async def start(self) -> None:
        """Bind and serve. OSError when the address cannot be bound."""
        await self._server.start()

    @property
    def url(self) -> str:
        """`http://HOST:PORT`."""
        return self._server.url

    def tell_version(self, version: int) -> None:
        """`/v1/models` names this version of the weights from now on. Replies name their own."""
        self._app.version = version

    @property
    def ignored(self) -> Mapping[str, int]:
        """Fields that requests gave and that changed nothing: how often, by their names."""
        return self._answerer.ignored

    def base_url(self, session: Session | None = None) -> str:
        """What OpenAI's clients are given; without a session nothing is recorded."""
        return f"{self.url}/v1" if session is None else f"{self.session_url(session)}/v1"

    def session_url(self, session: Session) -> str:
        return f"{self.url}/sessions/{session.session_id}"

    @asynccontextmanager
    async def door(self, session: Session, socket: Path) -> AsyncIterator[None]:
        """Serve this session's replies, and nothing else, on a Unix socket of its own while the block runs.

        A program that is not trusted may have it: rewards, the environment, the session's end and other
        sessions are out of its reach. It asks at `/v1`, with the session's key.
        """
        prefix = f"/sessions/{session.session_id}"

        async def replies_only(scope: Any, receive: Any, send: Any) -> None:
            path = scope["path"]
            inner = path if path == "/" or path.startswith("/v1/") else "/v1/"
            await self._app.asgi({**scope, "path": prefix + inner.rstrip("/")}, receive, send)

        most_requests = session.rules.max_replies * REQUESTS_PER_REPLY + SPARE_REQUESTS
        async with unix_door(replies_only, socket, most_requests=most_requests):
            yield

    async def wait_closed(self) -> None:
        """Until the server ends."""
        await self._server.wait_closed()

    async def close(self) -> None:
        """End open sessions without a word, cancel their replies, and stop serving. Idempotent."""
        for session in self.sessions.all():
            self.sessions.end(session)
        await self._server.close()
        self._answerer.close()
