"""Which engine answers which request: prefix affinity with spill by outstanding tokens. Pure.

    dispatch -> (outstanding) -> done
                     \\-> engine removed: returned to be dispatched again
    engine: added -> (drained: takes no more) -> removed

A session goes back to the engine that holds its prefix unless that engine has
`spill_factor` times the outstanding tokens of the least loaded one plus `spill_slack` tokens.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class RouterConfig:
    spill_factor: float = 2.0
    spill_slack: int = 4096
    """Tokens."""
    max_sessions: int = 65536
    """Sessions whose engine is remembered; the least recently used is forgotten first."""


class NoEngineLeft(Exception):
    """Every engine has been removed or drained."""


@dataclass(slots=True)
class _Engine:
    num_tokens: int = 0
    """Outstanding, prompts and longest possible replies."""
    num_requests: int = 0
    """Outstanding."""
    is_draining: bool = False


class Router:
    """The choice and its bookkeeping. O(number of engines) per request."""

    def __init__(self, config: RouterConfig | None = None) -> None:
        self._config = config or RouterConfig()
        self._engines: dict[str, _Engine] = {}
        self._requests: dict[str, tuple[str, int]] = {}
        self._sessions: OrderedDict[str, str] = OrderedDict()

    @property
    def engines(self) -> tuple[str, ...]:
        """Those that take requests."""
        return tuple(name for name, engine in self._engines.items() if not engine.is_draining)

    def outstanding_tokens(self, engine: str) -> int:
        return self._engines[engine].num_tokens

    def add_engine(self, engine: str) -> None:
        """Known engines keep their load; one that was being drained takes requests again."""
        self._engines.setdefault(engine, _Engine()).is_draining = False

    def drain_engine(self, engine: str) -> None:
        """Choose it no more; its sessions go elsewhere."""
        self._engines[engine].is_draining = True
        self._forget_sessions(engine)

    def is_drained(self, engine: str) -> bool:
        """Whether it is being drained and has nothing outstanding left."""
        found = self._engines.get(engine)
        return found is not None and found.is_draining and not found.num_requests

    def remove_engine(self, engine: str) -> list[str]:
        """Forget an engine; returns its outstanding requests in dispatch order, to be dispatched again."""
        if self._engines.pop(engine, None) is not None:
            self._forget_sessions(engine)
        lost = [request for request, (where, _) in self._requests.items() if where == engine]
        for request in lost:
            del self._requests[request]
        return lost

    def dispatch(self, request_id: str, session_id: str, num_tokens: int) -> str:
        """Choose an engine and count `num_tokens` against it until `done`. Raises NoEngineLeft."""
        loads = {name: engine.num_tokens for name, engine in self._engines.items() if not engine.is_draining}
        if not loads:
            raise NoEngineLeft
        least = min(loads, key=loads.__getitem__)
        engine = self._sessions.get(session_id, least) if session_id else least
        limit = self._config.spill_factor * loads[least] + self._config.spill_slack
        if loads[engine] > limit:
            engine = least
        if session_id:
            self._sessions[session_id] = engine
            self._sessions.move_to_end(session_id)
            if len(self._sessions) > self._config.max_sessions:
                self._sessions.popitem(last=False)
        self._engines[engine].num_tokens += num_tokens
        self._engines[engine].num_requests += 1
        self._requests[request_id] = (engine, num_tokens)
        return engine

    def engine_of(self, request_id: str) -> str | None:
        """Where an outstanding request runs."""
        found = self._requests.get(request_id)
        return found[0] if found else None

    def done(self, request_id: str) -> bool:
        """Take the request off its engine's load; False when it is not outstanding (answered twice)."""
        found = self._requests.pop(request_id, None)
        if found is None:
            return False
        name, num_tokens = found
        engine = self._engines[name]
        engine.num_tokens -= num_tokens
        engine.num_requests -= 1
        return True

    def _forget_sessions(self, engine: str) -> None:
        for session in [session for session, where in self._sessions.items() if where == engine]:
            del self._sessions[session]
