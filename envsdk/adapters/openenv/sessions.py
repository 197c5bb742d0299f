"""Sessions of a server: an environment each, closed when its connection or its episode ends.

opened -> (reset -> step* -> done)* -> closed
"""

from __future__ import annotations

import asyncio
import secrets
import time
import uuid
from collections.abc import Callable
from typing import Any, Protocol

from envsdk.adapters.openenv.messages import (
    EpisodeState,
    ErrorCode,
    ProtocolError,
    ResetData,
    TextAction,
    TextObservation,
)


class SessionEnvironment(Protocol):
    """One environment, wherever it runs: on the event loop, on a thread, in a process of its own."""

    async def reset(self, seed: int) -> tuple[str, dict[str, Any]]: ...

    async def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]: ...

    def discard(self) -> None:
        """Throw the environment away; the next reset builds a fresh one."""
        ...

    def close(self) -> None: ...


class Session:
    """One environment and where its episode stands. One message is answered at a time."""

    def __init__(self, env: SessionEnvironment) -> None:
        self._env = env
        self._lock = asyncio.Lock()
        self._state: EpisodeState | None = None
        self.last_used = time.monotonic()

    async def reset(self, data: ResetData) -> TextObservation:
        """Start an episode. Raises ProtocolError when the environment fails."""
        async with self._lock:
            self._touch()
            self._state = None
            seed = secrets.randbelow(2**31) if data.seed is None else data.seed
            try:
                text, _ = await self._env.reset(seed)
            except Exception as error:
                raise self._failed(error) from error
            self._state = EpisodeState(episode_id=data.episode_id or uuid.uuid4().hex, seed=seed)
            return TextObservation(text=text)

    async def step(self, action: TextAction) -> TextObservation:
        """Play one reply. Raises ProtocolError before the first reset and when the environment fails."""
        async with self._lock:
            self._touch()
            state = self._state
            if state is None:
                raise ProtocolError(ErrorCode.EXECUTION_ERROR, "no episode: send reset before step")
            try:
                text, reward, terminated, truncated, info = await self._env.step(action.text)
            except Exception as error:
                raise self._failed(error) from error
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

    def state(self) -> EpisodeState:
        self._touch()
        return self._state or EpisodeState()

    def close(self) -> None:
        self._env.close()

    def _failed(self, error: Exception) -> ProtocolError:
        self._state = None
        self._env.discard()
        return ProtocolError(ErrorCode.EXECUTION_ERROR, str(error) or type(error).__name__)

    def _touch(self) -> None:
        self.last_used = time.monotonic()


class SessionBook:
    """All open sessions of a server, at most `max_sessions`: of WebSockets, and over HTTP by episode id."""

    def __init__(
        self, open_env: Callable[[], SessionEnvironment], *, max_sessions: int, idle_s: float
    ) -> None:
        self._open_env = open_env
        self._max_sessions = max_sessions
        self._idle_s = idle_s
        self._sessions: dict[str, Session] = {}
        self._over_http: set[str] = set()

    def __len__(self) -> int:
        return len(self._sessions)

    def open(self, *, episode_id: str | None = None) -> tuple[str, Session]:
        """A new session; with an `episode_id` it is found again by `over_http`.

        Raises ProtocolError when there are too many, or the environment cannot be built.
        """
        self._close_idle()
        if len(self._sessions) >= self._max_sessions:
            raise ProtocolError(
                ErrorCode.CAPACITY_REACHED,
                f"{len(self._sessions)} of {self._max_sessions} sessions are open: close one, or serve more",
                {"active_sessions": len(self._sessions), "max_sessions": self._max_sessions},
            )
        key = f"http/{episode_id}" if episode_id is not None else uuid.uuid4().hex
        session = self._sessions[key] = Session(self._open_env())
        if episode_id is not None:
            self._over_http.add(key)
        return key, session

    def over_http(self, episode_id: str | None) -> Session | None:
        return self._sessions.get(f"http/{episode_id}")

    def close(self, key: str) -> None:
        self._over_http.discard(key)
        session = self._sessions.pop(key, None)
        if session is not None:
            session.close()

    def close_episode(self, episode_id: str | None) -> None:
        self.close(f"http/{episode_id}")

    def close_all(self) -> None:
        for key in list(self._sessions):
            self.close(key)

    def _close_idle(self) -> None:
        """A connection says when its client goes away; HTTP does not."""
        before = time.monotonic() - self._idle_s
        for key in [key for key in self._over_http if self._sessions[key].last_used < before]:
            self.close(key)
