"""Shell: the routes of sessions, which are episodes of outside agents."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from envsdk.contracts.failures import Boundary, Failure, StorageError
from envsdk.contracts.prompts import SUMMARY
from envsdk.contracts.trajectory import Outcome, Trajectory
from envsdk.engines.endpoint.errors import ApiError, invalid
from envsdk.engines.endpoint.parsing import read_json, validate
from envsdk.engines.endpoint.sampling import SamplingRules
from envsdk.engines.endpoint.sessions import Session, SessionBook, SessionEnvironment, idle_failure

Handler = Callable[[Request], Coroutine[Any, Any, Response]]
OnEnded = Callable[[list[Trajectory]], Awaitable[None]]
"""What becomes of an ended session's trajectories; the client is answered when it is done."""

BODY_TIMEOUT_S = 120
MAX_ENDED = 4096
"""Ended sessions whose answer is remembered."""


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


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionRoutes:
    """`POST /sessions` and what is under `/sessions/ID`, but for requests for replies. Owner: the app."""

    sessions: SessionBook
    rules: SamplingRules
    model_name: str
    max_body_bytes: int
    on_ended: OnEnded | None
    idle_s: float
    _ended: dict[str, dict[str, Any]] = field(default_factory=dict)
    """What the ends of the latest sessions were answered: a client that asks again gets the same."""

    def routes(self) -> Sequence[tuple[str, Handler, str]]:
        """Their paths under `/sessions/ID`, handlers and verbs."""
        return [
            ("", self._status, "GET"),
            ("/end", self._end_session, "POST"),
            ("/reward", self._reward, "POST"),
            ("/env", self._look, "GET"),
            ("/env/step", self._step, "POST"),
        ]

    async def open(self, request: Request) -> Response:
        host = _host(request)
        fields = validate(OpenFields, read_json(await read_body(request, self.max_body_bytes)))
        await self.end_idle()
        task = fields.model_dump(exclude={"id"})
        session = self.sessions.open(rules=self.rules, session_id=fields.id, **task)
        base = f"{request.url.scheme}://{host}/sessions/{session.session_id}"
        return JSONResponse(
            {
                "id": session.session_id,
                "base_url": f"{base}/v1",
                "anthropic_base_url": base,
                "api_key": session.api_key,
                "model": self.model_name,
                "index": session.task.index,
            },
            201,
        )

    async def _status(self, request: Request) -> Response:
        session = self.sessions.get(request.path_params["session_id"])
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

    async def _reward(self, request: Request) -> Response:
        session = self.sessions.get(request.path_params["session_id"])
        fields = validate(RewardFields, read_json(await read_body(request, self.max_body_bytes)))
        session.reward(fields.reward, fields.metrics)
        return JSONResponse({"num_replies": len(session.record.replies)})

    async def _end_session(self, request: Request) -> Response:
        session_id = request.path_params["session_id"]
        if (told := self._ended.get(session_id)) is not None and not self.sessions.is_open(session_id):
            return JSONResponse(told)
        session = self.sessions.get(session_id)
        if session.env is not None:
            raise ApiError(409, "this session ends with its environment", code="session_has_environment")
        fields = validate(EndFields, read_json(await read_body(request, self.max_body_bytes)))
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
        answer = {
            "id": session_id,
            "num_replies": len(session.record.replies),
            "reward": sum(reward.reward for reward in session.rewards) + fields.reward,
            "trajectories": [
                {
                    "id": each.trajectory_id,
                    "turns": len(each.turns),
                    "tokens": len(each.tokens or ()),
                    "segments": [len(segment.turns) for segment in each.segments()],
                }
                for each in ended
            ],
        }
        while len(self._ended) >= MAX_ENDED:
            self._ended.pop(next(iter(self._ended)))
        self._ended[session_id] = answer
        return JSONResponse(answer)

    async def end_idle(self) -> None:
        """End the sessions that were left behind, as failed. One that cannot be stored stays open."""
        for session in self.sessions.idle():
            episode = session.episode(outcome=Outcome.FAILED, failure=idle_failure(self.idle_s))
            # The next client that opens a session is not to blame: it tries again.
            with suppress(ApiError):
                await self._end(session, episode)

    async def _end(self, session: Session, episode: Trajectory) -> list[Trajectory]:
        """The session is over once its episode is stored; until then it stays open, whatever went wrong."""
        self.sessions.end(session)
        ended = [episode] if session.record.replies else []
        try:
            if self.on_ended is not None:
                await self.on_ended(ended)
        except BaseException as error:
            self.sessions.restore(session)
            if isinstance(error, StorageError):
                raise ApiError(500, str(error), code="storage_error") from error
            raise
        return ended

    async def _look(self, request: Request) -> Response:
        return JSONResponse(await self._environment(request).look())

    async def _step(self, request: Request) -> Response:
        env = self._environment(request)
        fields = validate(StepFields, read_json(await read_body(request, self.max_body_bytes)))
        return JSONResponse(await env.step(fields.action))

    def _environment(self, request: Request) -> SessionEnvironment:
        session = self.sessions.get(request.path_params["session_id"])
        if session.env is None:
            raise ApiError(404, "this session has no environment", code="no_environment")
        return session.env


async def read_body(request: Request, limit: int) -> bytes:
    """The body of a request. ApiError when it is longer than `limit` bytes, or takes too long."""
    body = bytearray()
    try:
        async with asyncio.timeout(BODY_TIMEOUT_S):
            async for chunk in request.stream():
                body += chunk
                if len(body) > limit:
                    raise ApiError(413, f"the request is longer than {limit} bytes", code="request_too_large")
    except TimeoutError:
        message = f"the request's body did not come within {BODY_TIMEOUT_S} s"
        raise ApiError(408, message, code="request_timeout") from None
    return bytes(body)


_ROLE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


def role_of(path_params: Mapping[str, str]) -> str:
    """The role in a path, empty where there is none. ApiError for what no role can be called."""
    role = path_params.get("role", "")
    if role and (role == SUMMARY or not _ROLE.fullmatch(role)):
        raise invalid(
            "role",
            f"a role is up to 64 letters, digits, `.`, `_` and `-`, a letter or digit first, not `{SUMMARY}`",
        )
    return role


_HOST = re.compile(r"[A-Za-z0-9._-]+(:\d+)?|\[[0-9A-Fa-f:.]+\](:\d+)?")


def _host(request: Request) -> str:
    """The name that the client reached the endpoint by, which may be a proxy's. ApiError when it is none."""
    host = request.headers.get("host", "")
    if not _HOST.fullmatch(host):
        raise ApiError(400, "the `Host` header is not the name of a host", code="invalid_host")
    return host
