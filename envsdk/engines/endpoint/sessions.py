"""Sessions: one episode of an outside agent each.

open -> (request | env step)* -> end -> Episode
          idle too long ------------> end, as failed
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import itertools
import re
import secrets
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from envsdk.contracts.failures import Boundary, Failure
from envsdk.contracts.trajectory import Outcome, Task, Trajectory
from envsdk.engines.endpoint.errors import ApiError, invalid
from envsdk.engines.endpoint.parsing import Histories
from envsdk.engines.endpoint.record import ConversationRecord, message_keys, next_key
from envsdk.engines.endpoint.sampling import ContextFull, SamplingRules
from envsdk.engines.endpoint.trajectories import Reward, trajectory

_SESSION_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")


class SessionEnvironment(ABC):
    """An environment that a session's agent plays in over HTTP."""

    @abstractmethod
    async def look(self) -> Mapping[str, Any]:
        """What the agent is shown now, as JSON."""

    @abstractmethod
    async def step(self, action: str) -> Mapping[str, Any]:
        """Act; what came of it, as JSON. Raises ApiError."""


@dataclass(slots=True, kw_only=True, eq=False)
class Session:
    """One episode. Owner: the book it was opened in."""

    session_id: str
    api_key: str
    """Opens this session's paths and no others."""
    task: Task
    group_id: int
    seed: int
    """Seed of the task, as the agent or the environment says; recorded only."""
    rules: SamplingRules
    env: SessionEnvironment | None = None
    state_hash: str | None = None
    """Hash of the environment's present state; recorded with the replies to it."""
    record: ConversationRecord = field(default_factory=ConversationRecord)
    calls: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    """Names and arguments of the tool calls in its replies, by the ids that clients were given."""
    rewards: list[Reward] = field(default_factory=list)
    running: set[asyncio.Future[Any]] = field(default_factory=set)
    """Replies that are being sampled; ending the session cancels them."""
    started_at: float = field(default_factory=time.time)
    """Unix time, seconds."""
    used_at: float = field(default_factory=time.monotonic)
    is_over: bool = False
    full: ContextFull | None = None
    """Failure of the latest request that found no room in the context."""
    engine_error: str = ""
    """Why no engine could finish the latest reply; empty where one did."""
    num_begun: int = 0
    """Replies that were sampled, or began to be."""
    env_s: float = 0.0
    ignored: Counter[str] = field(default_factory=Counter)
    """Fields of its requests that changed nothing, by their names."""
    histories: Histories = field(default_factory=Histories)
    """What its latest request was read as."""
    _numbers: itertools.count[int] = field(default_factory=itertools.count)
    _keyed: tuple[Any, Sequence[Mapping[str, Any]], Sequence[str]] = (..., (), ())
    """Tools and messages of the latest request, with their keys."""

    def next_number(self) -> int:
        """Number of a reply that is asked for, from 0."""
        return next(self._numbers)

    def message_keys(
        self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] | None
    ) -> list[str]:
        """As in `record`, with this session's calls as the policy wrote them: clients add defaults to them.

        The keys of what the latest request had too are known.
        """
        known_tools, known_messages, keys = self._keyed
        if tools != known_tools or messages[: len(known_messages)] != known_messages:
            keys = message_keys([], tools)
        keys = list(keys)
        for message in messages[len(keys) - 1 :]:
            if self.calls and "tool_calls" in message:
                calls = [self.calls.get(each["id"], each["function"]) for each in message["tool_calls"]]
                message = {**message, "tool_calls": [{"function": function} for function in calls]}
            keys.append(next_key(keys[-1], message))
        self._keyed = tools, messages, keys
        return keys

    def reward(
        self, reward: float, metrics: Mapping[str, float] | None = None, details: str | None = None
    ) -> None:
        """For the latest reply."""
        count = len(self.record.replies)
        self.rewards.append(Reward(num_replies=count, reward=reward, metrics=metrics or {}, details=details))

    def episode(
        self,
        *,
        outcome: Outcome = Outcome.TERMINATED,
        success: bool = False,
        failure: Failure | None = None,
        final_observation: str = "",
        worker: str = "",
        task_name: str = "",
        last_reward: float = 0.0,
    ) -> Trajectory:
        """The session as an episode that ends now; `last_reward` is for the latest reply."""
        last = Reward(num_replies=len(self.record.replies), reward=last_reward)
        head = Trajectory(
            trajectory_id=self.session_id,
            task=self.task,
            group_id=self.group_id,
            seed=self.seed,
            turns=(),
            tokens=None,
            outcome=outcome,
            success=success,
            failure=failure,
            final_observation=final_observation,
            started_at=self.started_at,
            ended_at=time.time(),
            env_s=self.env_s,
            worker=worker,
            task_name=task_name,
        )
        return trajectory(self.record, [*self.rewards, last], head)


def idle_failure(idle_s: float) -> Failure:
    """Failure of a session that its agent left behind."""
    message = f"the agent neither asked for anything nor ended its session for {idle_s:g} s"
    return Failure(boundary=Boundary.AGENT, kind="session_idle", message=message)


class SessionBook:
    """The sessions that are open. Owner: the endpoint."""

    def __init__(
        self, token: str, *, max_sessions: int, idle_s: float, used: Mapping[str, int] | None = None
    ) -> None:
        """`used`: ids that are refused, with the indices that numbered sessions skip; it may grow."""
        self._token = token
        self._max_sessions = max_sessions
        self._idle_s = idle_s
        self._open: dict[str, Session] = {}
        self._used = {} if used is None else used
        self._numbers = itertools.filterfalse(set(self._used.values()).__contains__, itertools.count())

    def __len__(self) -> int:
        return len(self._open)

    def key_of(self, session_id: str) -> str:
        """The key that opens this session's paths, whether it is open or not."""
        return hmac.new(self._token.encode(), session_id.encode(), hashlib.sha256).hexdigest()

    def open(
        self,
        *,
        rules: SamplingRules,
        session_id: str | None = None,
        tag: str = "agent",
        split: str = "train",
        index: int | None = None,
        group_id: int | None = None,
        seed: int = 0,
        env: SessionEnvironment | None = None,
    ) -> Session:
        """A new session; without an `index` it is numbered, without a `group_id` that is the index.

        ApiError when its id is taken, or when too many are open.
        """
        session_id = secrets.token_hex(8) if session_id is None else session_id
        if not _SESSION_ID.fullmatch(session_id):
            raise invalid(
                "id", "an id is up to 128 letters, digits, `.`, `_` and `-`, a letter or digit first"
            )
        if session_id in self._open:
            raise ApiError(409, f"session `{session_id}` is open already", code="session_exists", param="id")
        if session_id in self._used:
            message = f"session `{session_id}` has ended and is recorded: choose another id"
            raise ApiError(409, message, code="session_exists", param="id")
        if len(self._open) >= self._max_sessions:
            raise ApiError(
                429, f"{len(self._open)} sessions are open; end some first", code="too_many_sessions"
            )
        number = next(self._numbers)
        task = Task(tag=tag, split=split, index=number if index is None else index)
        session = self._open[session_id] = Session(
            session_id=session_id,
            api_key=self.key_of(session_id),
            task=task,
            group_id=task.index if group_id is None else group_id,
            seed=seed,
            rules=rules,
            env=env,
        )
        return session

    def is_open(self, session_id: str) -> bool:
        return session_id in self._open

    def get(self, session_id: str) -> Session:
        """ApiError when it is not open."""
        session = self._open.get(session_id)
        if session is None:
            raise ApiError(
                404,
                f"no session `{session_id}` is open: it was never opened (`POST /sessions`), has ended, or "
                "was idle too long",
                code="session_not_found",
            )
        session.used_at = time.monotonic()
        return session

    def end(self, session: Session) -> None:
        """Take it off the book and cancel its replies. Idempotent."""
        session.is_over = True
        if self._open.get(session.session_id) is session:
            del self._open[session.session_id]
        for future in list(session.running):
            future.cancel()

    def restore(self, session: Session) -> None:
        """Open a session again that could not be ended."""
        session.is_over = False
        self._open[session.session_id] = session

    def idle(self) -> list[Session]:
        """The sessions that nobody used for too long and that have no reply running."""
        since = time.monotonic() - self._idle_s
        return [each for each in self._open.values() if each.used_at < since and not each.running]

    def all(self) -> list[Session]:
        return list(self._open.values())
