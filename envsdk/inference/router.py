"""Which engine answers which request: prefix affinity with spill by outstanding tokens. Pure.

    dispatch -> (outstanding) -> done
                     \\-> engine removed: returned to be dispatched again

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
    """Every engine has been removed."""


class Router:
    """The choice and its bookkeeping. O(number of engines) per request."""

    def __init__(self, config: RouterConfig | None = None) -> None:
        self._config = config or RouterConfig()
        self._load: dict[str, int] = {}
        self._requests: dict[str, tuple[str, int]] = {}
        self._sessions: OrderedDict[str, str] = OrderedDict()

    @property
    def engines(self) -> tuple[str, ...]:
        return tuple(self._load)

    def outstanding_tokens(self, engine: str) -> int:
        return self._load[engine]

    def add_engine(self, engine: str) -> None:
        """Known engines keep their load."""
        self._load.setdefault(engine, 0)

    def remove_engine(self, engine: str) -> list[str]:
        """Forget an engine; returns its outstanding requests in dispatch order, to be dispatched again."""
        self._load.pop(engine, None)
        lost = [request for request, (where, _) in self._requests.items() if where == engine]
        for request in lost:
            del self._requests[request]
        return lost

    def dispatch(self, request_id: str, session_id: str, num_tokens: int) -> str:
        """Choose an engine and count `num_tokens` against it until `done`. Raises NoEngineLeft."""
        if not self._load:
            raise NoEngineLeft
        least = min(self._load, key=self._load.__getitem__)
        engine = self._sessions.get(session_id, least) if session_id else least
        limit = self._config.spill_factor * self._load[least] + self._config.spill_slack
        if engine not in self._load or self._load[engine] > limit:
            engine = least
        if session_id:
            self._sessions[session_id] = engine
            self._sessions.move_to_end(session_id)
            if len(self._sessions) > self._config.max_sessions:
                self._sessions.popitem(last=False)
        self._load[engine] += num_tokens
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
        engine, num_tokens = found
        if engine in self._load:
            self._load[engine] -= num_tokens
        return True
