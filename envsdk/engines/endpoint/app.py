"""Shell: the HTTP routes. Every answer that is no success is an error in OpenAI's format.

bearer token -> body within its limit -> handler -> JSON, or server-sent events
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import re
import secrets
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import suppress
from functools import partial
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from envsdk.contracts.failures import Boundary, Failure, StorageError
from envsdk.contracts.trajectory import Outcome, Trajectory
from envsdk.engines.endpoint.answering import Answer, Answerer, OnPiece, Prompt
from envsdk.engines.endpoint.bodies import Writer
from envsdk.engines.endpoint.errors import ApiError, invalid
from envsdk.engines.endpoint.replying import all_of, events, unless_disconnected
from envsdk.engines.endpoint.sampling import SamplingRules
from envsdk.engines.endpoint.sessions import Session, SessionBook, SessionEnvironment, idle_failure
from envsdk.engines.endpoint.trajectories import Episode, trajectories
from envsdk.engines.endpoint.wire import (
    ChatFields,
    CompletionFields,
    read_chat,
    read_completion,
    read_json,
    validate,
)

_logger = logging.getLogger(__name__)

Handler = Callable[[Request], Coroutine[Any, Any, Response]]
OnEnded = Callable[[list[Trajectory]], Awaitable[None]]
"""What becomes of an ended session's trajectories; the client is answered when it is done."""

BODY_TIMEOUT_S = 120
MAX_BYTES_PER_TOKEN = 64
"""Most bytes of a request for replies per token of the context: ten times what words or token ids take."""
MIN_PROMPT_BYTES = 1024**2
"""What such a request may have however small the context: room for tools and schemas."""
CLIENT_CLOSED = 499
"""Status of an answer that nobody waits for any more."""


class _Body(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)


Stored = Annotated[int, Field(ge=-(2**63), lt=2**63)]
"""Whole numbers as a data set holds them."""
Name = Annotated[str, Field(min_length=1, max_length=200, pattern=r"^[^\x00-\x1f\x7f]*$")]
RewardValue = Annotated[float, Field(ge=-1e30, le=1e30)]
"""So that the sum of as many as a session can get is a number."""


class OpenFields(_Body):
    """`POST /sessions`."""

    id: str | None = None
    tag: Name = "agent"
    split: Name = "train"
    index: Annotated[int, Field(ge=0, lt=2**63)] | None = None
    """Index of the task in its split; counted when absent."""
    group_id: Stored | None = None
    """Sessions that may be compared with each other; `index` when absent."""
    seed: Stored = 0
    """Seed of the task; recorded."""


class EndFields(_Body):
    """`POST /sessions/ID/end`."""

    reward: RewardValue = 0.0
    """For the latest reply."""
    success: bool = False
    outcome: Literal["terminated", "truncated", "failed"] = "terminated"
    failure: Annotated[str, Field(max_length=500)] = ""
    """Why an episode that failed has no outcome."""
    final_observation: str = ""


class RewardFields(_Body):
    """`POST /sessions/ID/reward`."""

    reward: RewardValue
    metrics: Annotated[dict[Name, RewardValue], Field(max_length=100)] = Field(default_factory=dict)


class StepFields(_Body):
    """`POST /sessions/ID/env/step`."""

    action: str


class EndpointApp:
    """The routes and what they need. Owner: the `Endpoint`."""

    def __init__(
        self,
        *,
        answerer: Answerer,
        sessions: SessionBook,
        rules: SamplingRules,
        token: str,
        model_name: str,
        max_body_bytes: int,
        on_ended: OnEnded | None,
        idle_s: float,
    ) -> None:
        self._answerer = answerer
        self._sessions = sessions
        self._rules = rules
        self._token = token
        self._model_name = model_name
        self._max_body_bytes = max_body_bytes
        self._on_ended = on_ended
        self._idle_s = idle_s
        self.ignored: Counter[str] = Counter()
        """Fields of requests that were given and changed nothing, by their names."""
        self.version: int | None = None
        """Version of the weights; None where nobody says."""
        self._created = int(time.time())
        model_routes: list[tuple[str, Handler, str]] = [
            ("/v1/chat/completions", self._chat, "POST"),
            ("/v1/completions", self._completions, "POST"),
            ("/v1/models", self._models, "GET"),
            ("/v1/models/{model:path}", self._model, "GET"),
        ]
        session_routes: list[tuple[str, Handler, str]] = [
            ("", self._session_status, "GET"),
            ("/end", self._end_session, "POST"),
            ("/reward", self._reward_session, "POST"),
            ("/env", self._look, "GET"),
            ("/env/step", self._step, "POST"),
            *model_routes,
        ]
        routes = [("/sessions", self._open_session, "POST"), *model_routes]
        routes += [("/sessions/{session_id}" + path, handler, verb) for path, handler, verb in session_routes]
        self.asgi = Starlette(
            routes=[Route(path, self._guarded(handler), methods=[verb]) for path, handler, verb in routes],
            exception_handlers={HTTPException: _not_a_route, Exception: _is_a_bug},
        )

    def _guarded(self, handler: Handler) -> Handler:
        async def guarded(request: Request) -> Response:
            try:
                self._authorize(request)
                return await handler(request)
            except ApiError as error:
                return JSONResponse(error.body(), error.status)
            except ClientDisconnect:
                return Response(status_code=CLIENT_CLOSED)

        return guarded

    def _authorize(self, request: Request) -> None:
        """The endpoint's token opens everything, a session's key its own paths."""
        scheme, _, given = request.headers.get("authorization", "").partition(" ")
        keys = [self._token]
        if session_id := request.path_params.get("session_id"):
            keys.append(self._sessions.key_of(session_id))
        is_known = [hmac.compare_digest(given.strip().encode(), key.encode()) for key in keys]
        if scheme.lower() != "bearer" or not any(is_known):
            raise ApiError(
                401,
                "wrong or missing key: send `Authorization: Bearer KEY` with the endpoint's token, or with "
                "the session's `api_key`",
                code="invalid_api_key",
            )

    async def _body(self, request: Request) -> bytes:
        limit = self._max_body_bytes
        body = bytearray()
        try:
            async with asyncio.timeout(BODY_TIMEOUT_S):
                async for chunk in request.stream():
                    body += chunk
                    if len(body) > limit:
                        raise ApiError(
                            413, f"the request is longer than {limit} bytes", code="request_too_large"
                        )
        except TimeoutError:
            message = f"the request's body did not come within {BODY_TIMEOUT_S} s"
            raise ApiError(408, message, code="request_timeout") from None
        return bytes(body)

    async def _prompt_body(self, request: Request, session: Session | None) -> bytes:
        """Body of a request for replies. What the context cannot hold anyway is refused before it is parsed,
        which holds up the event loop."""
        body = await self._body(request)
        length = self._answerer.sequence_length
        if len(body) > max(MIN_PROMPT_BYTES, length * MAX_BYTES_PER_TOKEN):
            raise self._answerer.too_long(
                session, f"the request's {len(body)} bytes", num_tokens=len(body) // MAX_BYTES_PER_TOKEN
            )
        return body

    def _session(self, request: Request) -> Session | None:
        session_id = request.path_params.get("session_id")
        return None if session_id is None else self._sessions.get(session_id)

    async def _models(self, request: Request) -> Response:
        return JSONResponse({"object": "list", "data": [self._model_card()]})

    async def _model(self, request: Request) -> Response:
        self._check_model(request.path_params["model"])
        return JSONResponse(self._model_card())

    def _model_card(self) -> dict[str, Any]:
        card = {
            "id": self._model_name,
            "object": "model",
            "created": self._created,
            "owned_by": "envsdk",
            "max_model_len": self._answerer.sequence_length,
        }
        return card if self.version is None else card | {"version": self.version}

    def _check_model(self, name: str) -> None:
        if name != self._model_name:
            raise ApiError(
                404, f"there is no model `{name}`; `{self._model_name}` is served", code="model_not_found"
            )

    async def _chat(self, request: Request) -> Response:
        session = self._session(request)
        body = await self._prompt_body(request, session)
        fields = read_chat(body)
        self._check_model(fields.model)
        answerer = self._answerer
        prompt = await answerer.prepare(session, len(body), partial(answerer.chat_prompt, session, fields))
        return await self._answer(request, session, fields, [prompt])

    async def _completions(self, request: Request) -> Response:
        session = self._session(request)
        body = await self._prompt_body(request, session)
        fields = read_completion(body)
        self._check_model(fields.model)
        answerer = self._answerer
        prompts = [
            await answerer.prepare(session, len(body), partial(answerer.completion_prompt, session, prompt))
            for prompt in fields.prompts
        ]
        return await self._answer(request, session, fields, prompts)

    async def _answer(
        self,
        request: Request,
        session: Session | None,
        fields: ChatFields | CompletionFields,
        prompts: Sequence[Prompt],
    ) -> Response:
        rules = self._rules if session is None else session.rules
        orders = [
            (prompt, self._answerer.sampling(session, rules, fields, prompt, choice))
            for prompt in prompts
            for choice in range(fields.num_choices)
        ]
        for name in set(fields.ignored) - self.ignored.keys():
            _logger.info("`%s` of a request is ignored, since it changes nothing: counted from here on", name)
        self.ignored.update(fields.ignored)
        if session is not None:
            session.ignored.update(fields.ignored)
        writer = Writer(
            fields=fields,
            reply_id=("chatcmpl-" if isinstance(fields, ChatFields) else "cmpl-") + secrets.token_hex(12),
            created=int(time.time()),
            token_text=lambda token: self._answerer.chat.decode([token], skip_special_tokens=False),
        )

        async def answer(number: int, on_piece: OnPiece | None = None) -> Answer:
            prompt, sampling = orders[number]
            return await self._answerer.answer(session, fields, prompt, sampling, on_piece)

        if fields.stream:
            chunks = events(writer, prompts, [prompt for prompt, _ in orders], answer)
            return StreamingResponse(
                chunks, media_type="text/event-stream", headers={"Cache-Control": "no-cache"}
            )
        work = all_of([answer(number) for number in range(len(orders))])
        answers = await unless_disconnected(request, work)
        prompt_of = [prompt for prompt, _ in orders]
        return JSONResponse(writer.whole(prompts, list(zip(prompt_of, answers, strict=True))))

    async def _open_session(self, request: Request) -> Response:
        host = _host(request)
        fields = validate(OpenFields, read_json(await self._body(request)))
        await self.end_idle()
        session = self._sessions.open(
            rules=self._rules,
            session_id=fields.id,
            tag=fields.tag,
            split=fields.split,
            index=fields.index,
            group_id=fields.group_id,
            seed=fields.seed,
        )
        base = f"{request.url.scheme}://{host}/sessions/{session.session_id}"
        return JSONResponse(
            {
                "id": session.session_id,
                "base_url": f"{base}/v1",
                "api_key": session.api_key,
                "model": self._model_name,
                "index": session.task.index,
            },
            201,
        )

    async def _session_status(self, request: Request) -> Response:
        session = self._sessions.get(request.path_params["session_id"])
        replies = session.record.replies
        return JSONResponse(
            {
                "id": session.session_id,
                "num_replies": len(replies),
                "num_running": len(session.running),
                "num_sampled_tokens": sum(len(reply.token_ids) for reply in replies),
                "reward": sum(reward.reward for reward in session.rewards),
                "ignored": dict(session.ignored),
            }
        )

    async def _reward_session(self, request: Request) -> Response:
        session = self._sessions.get(request.path_params["session_id"])
        fields = validate(RewardFields, read_json(await self._body(request)))
        session.reward(fields.reward, fields.metrics)
        return JSONResponse({"num_replies": len(session.record.replies)})

    async def _end_session(self, request: Request) -> Response:
        session = self._sessions.get(request.path_params["session_id"])
        if session.env is not None:
            raise ApiError(409, "this session ends with its environment", code="session_has_environment")
        fields = validate(EndFields, read_json(await self._body(request)))
        if fields.failure and fields.outcome != "failed":
            raise invalid("failure", "a `failure` goes with `outcome: failed`")
        failure = None
        if fields.outcome == "failed":
            message = fields.failure or "the agent gave no reason"
            failure = Failure(boundary=Boundary.AGENT, kind="agent_failed", message=message)
        episode = session.episode(
            last_reward=fields.reward,
            outcome=Outcome(fields.outcome),
            success=fields.success and failure is None,
            failure=failure,
            final_observation=fields.final_observation,
        )
        ended = await self._end(session, episode)
        return JSONResponse(
            {
                "id": session.session_id,
                "num_replies": len(session.record.replies),
                "reward": sum(reward.reward for reward in episode.rewards),
                "trajectories": [
                    {"id": each.trajectory_id, "turns": len(each.turns), "tokens": len(each.tokens or ())}
                    for each in ended
                ],
            }
        )

    async def end_idle(self) -> None:
        """End the sessions that were left behind, as failed. One that cannot be stored stays open."""
        for session in self._sessions.idle():
            episode = session.episode(outcome=Outcome.FAILED, failure=idle_failure(self._idle_s))
            # The next client that opens a session is not to blame: it tries again.
            with suppress(ApiError):
                await self._end(session, episode)

    async def _end(self, session: Session, episode: Episode) -> list[Trajectory]:
        """The session is over once its episode is stored; until then it stays open, whatever went wrong."""
        self._sessions.end(session)
        try:
            ended = trajectories(session.record, episode)
            if self._on_ended is not None:
                await self._on_ended(ended)
        except BaseException as error:
            self._sessions.restore(session)
            if isinstance(error, StorageError):
                raise ApiError(500, str(error), code="storage_error") from error
            raise
        return ended

    async def _look(self, request: Request) -> Response:
        return JSONResponse(await self._environment(request).look())

    async def _step(self, request: Request) -> Response:
        env = self._environment(request)
        fields = validate(StepFields, read_json(await self._body(request)))
        return JSONResponse(await env.step(fields.action))

    def _environment(self, request: Request) -> SessionEnvironment:
        session = self._sessions.get(request.path_params["session_id"])
        if session.env is None:
            raise ApiError(404, "this session has no environment", code="no_environment")
        return session.env


_HOST = re.compile(r"[A-Za-z0-9._-]+(:\d+)?|\[[0-9A-Fa-f:.]+\](:\d+)?")


def _host(request: Request) -> str:
    """The name that the client reached the endpoint by, which may be a proxy's. ApiError when it is none."""
    host = request.headers.get("host", "")
    if not _HOST.fullmatch(host):
        raise ApiError(400, "the `Host` header is not the name of a host", code="invalid_host")
    return host


async def _not_a_route(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    where = f"{request.method} {request.url.path}"
    hint = next((hint for path, hint in _OTHER_PROTOCOLS.items() if path in request.url.path), "")
    told = ApiError(error.status_code, f"{where}: {error.detail}{hint}", code="unknown_url")
    return JSONResponse(told.body(), error.status_code, headers=error.headers)


_OTHER_PROTOCOLS = {
    "/responses": ". The Responses API is not served: let the client use chat completions "
    "(openai-agents: `OpenAIChatCompletionsModel`, or `set_default_openai_api('chat_completions')`; "
    "LangChain: `use_responses_api=False`; inspect_ai: `-M responses_api=false`)",
    "/messages": ". Anthropic's Messages API is not served: use a client of OpenAI's chat completions",
    "/embeddings": ". The policy gives no embeddings",
}
"""Ends of paths that clients try, and what to do."""


async def _is_a_bug(request: Request, error: Exception) -> Response:
    """The error itself goes to the log of uvicorn."""
    return JSONResponse(ApiError(500, f"internal error: {type(error).__name__}").body(), 500)
