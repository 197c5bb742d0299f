"""Which engine answers which request, and when: prefix affinity, spill, and room at the engines. Pure.

    request: submitted -> waiting -> dispatched -> done
                  ^                     \\-> engine removed: returned, to be submitted again
    engine:  added -> (drained: takes no more) -> removed

**Where.** A session goes back to the engine that holds its prefix unless that engine has `spill_factor` times
the outstanding tokens of the least loaded one plus `spill_slack` tokens. Other requests go to the least
loaded engine that has room.

A request of a *group* goes to the group's engine, or waits for it: number `group` modulo the number of
engines, in the order of their names. The members of a group may play in several processes, whose routers
agree without asking. A session that has an engine stays with that one.

**When.** An engine has room unless its health says that `max_queued` requests wait there, or that its KV
cache is filled to `max_kv_usage` and `max_queued_when_full` do; requests sent since that report count too. An
engine with no outstanding request from this router always has room: without a request, no answer would report
room again.

**In which order.** By priority, then by arrival. A request waits for its session's engine only where no less
loaded one would run it at once, and does not hold up those that can run elsewhere.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict
from dataclasses import dataclass

Order = tuple[int, int]
"""Priority and arrival, both lower first."""
_Place = tuple[str, bool]
"""An engine, and whether it is the only one that will do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RouterConfig:
    spill_factor: float = 2.0
    spill_slack: int = 4096
    """Tokens."""
    max_sessions: int = 65536
    """Sessions whose engine is remembered; the least recently used is forgotten first."""
    max_queued: int = 64
    """Requests, of all clients, that may wait at an engine."""
    max_kv_usage: float = 0.9
    """Share of its KV cache in use from which on it counts as full."""
    max_queued_when_full: int = 16
    """As many as keep it busy until the next answer tells of room, and show the pool that it is crowded."""


@dataclass(slots=True)
class _Engine:
    num_tokens: int = 0
    """Outstanding, prompts and longest possible replies."""
    num_requests: int = 0
    """Outstanding."""
    num_waiting_tokens: int = 0
    """Tokens of requests that wait here for this engine."""
    is_draining: bool = False
    num_queued: int = 0
    """There, at the last look."""
    kv_usage: float = 0.0
    num_since: int = 0
    """Requests sent since the last look."""


@dataclass(slots=True)
class _Request:
    session_id: str
    num_tokens: int
    order: Order
    engine: str = ""
    """Where it is outstanding, or what it waits for; empty when any engine will do."""
    is_waiting: bool = True


class Router:
    """The choice and its bookkeeping. O(number of engines) per request."""

    def __init__(self, config: RouterConfig | None = None) -> None:
        self._config = config or RouterConfig()
        self._engines: dict[str, _Engine] = {}
        self._requests: dict[str, _Request] = {}
        self._sessions: OrderedDict[str, str] = OrderedDict()
        self._waiting: dict[_Place, list[tuple[Order, str, _Request]]] = {}
        """A heap per engine that is waited for, another for requests that take no other engine, and one under
        "" for any. What is withdrawn stays a while."""

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
        """Choose it no more; its sessions, and what waits for it, go elsewhere."""
        self._engines[engine].is_draining = True
        self._forget_home(engine)

    def is_drained(self, engine: str) -> bool:
        """Whether it is being drained and has nothing outstanding left."""
        found = self._engines.get(engine)
        return found is not None and found.is_draining and not found.num_requests

    def remove_engine(self, engine: str) -> list[str]:
        """Forget an engine; returns its outstanding requests in dispatch order, to be submitted again."""
        if self._engines.pop(engine, None) is None:
            return []
        self._forget_home(engine)
        lost = [name for name, found in self._requests.items() if found.engine == engine]
        for request_id in lost:
            del self._requests[request_id]
        return lost

    def look(self, engine: str, *, num_queued: int, kv_usage: float) -> None:
        """What an engine's health says. Unknown engines are ignored."""
        found = self._engines.get(engine)
        if found is not None:
            found.num_queued, found.kv_usage, found.num_since = num_queued, kv_usage, 0

    def submit(
        self, request_id: str, session_id: str, num_tokens: int, order: Order, *, group: int | None = None
    ) -> None:
        """Let a request wait for `take`, which counts `num_tokens` against its engine until `done`.

        No two requests that wait have the same `order`.
        """
        home = self._sessions.get(session_id, "") if session_id else ""
        names = sorted(self.engines) if group is not None and not home else ()
        is_pinned = bool(names)
        if group is not None and names:
            home = names[group % len(names)]
        request = self._requests[request_id] = _Request(session_id, num_tokens, order, home)
        heapq.heappush(self._waiting.setdefault((home, is_pinned), []), (order, request_id, request))
        if home:
            self._engines[home].num_waiting_tokens += num_tokens

    def take(self) -> tuple[str, str] | None:
        """The next request to dispatch and its engine; None when none of those that wait can go anywhere."""
        if not self._waiting:
            return None
        loads: dict[str, int] = {}
        with_room: set[str] = set()
        freest = at_once = None
        for name, engine in self._engines.items():
            if engine.is_draining:
                continue
            load = loads[name] = engine.num_tokens
            if not self._has_room(engine):
                continue
            with_room.add(name)
            if freest is None or load < loads[freest]:
                freest = name
            if self._runs_at_once(engine) and (at_once is None or load < loads[at_once]):
                at_once = name
        if freest is None:
            return None
        limit = self._config.spill_factor * min(loads.values()) + self._config.spill_slack
        best: tuple[Order, _Place, str] | None = None
        for place in list(self._waiting):
            head = self._head(place)
            if head is None:
                continue
            order, _, request = head
            home, is_pinned = place
            target = freest
            if is_pinned:
                if home not in with_room:
                    continue
                target = home
            elif home and (load := loads[home] + self._num_ahead(home, request)) <= limit:
                if home in with_room:
                    target = home
                elif at_once is not None and loads[at_once] < load:
                    target = at_once
                else:
                    continue
            if best is None or order < best[0]:
                best = order, place, target
        if best is None:
            return None
        return self._dispatch(best[1], best[2])

    def engine_of(self, request_id: str) -> str | None:
        """Where an outstanding request runs."""
        found = self._requests.get(request_id)
        return None if found is None or found.is_waiting else found.engine

    def done(self, request_id: str) -> bool:
        """Forget a request, outstanding or waiting; False when it is neither (answered twice)."""
        request = self._requests.pop(request_id, None)
        if request is None:
            return False
        engine = self._engines.get(request.engine)
        if request.is_waiting:
            request.is_waiting = False  # met in its heap, it is withdrawn
            if engine is not None:
                engine.num_waiting_tokens -= request.num_tokens
        elif engine is not None:
            engine.num_tokens -= request.num_tokens
            engine.num_requests -= 1
        return True

    def _has_room(self, engine: _Engine) -> bool:
        if engine.num_requests == 0:
            return True
        num_queued = engine.num_queued + engine.num_since
        if engine.kv_usage >= self._config.max_kv_usage:
            return num_queued < self._config.max_queued_when_full
        # Where nobody waited, there may be room for many more than may wait.
        return engine.num_queued == 0 or num_queued < self._config.max_queued

    def _runs_at_once(self, engine: _Engine) -> bool:
        """As far as its last look tells."""
        return engine.num_queued == 0 and engine.kv_usage < self._config.max_kv_usage

    def _num_ahead(self, home: str, request: _Request) -> int:
        """Tokens of other requests that wait for a full engine."""
        engine = self._engines[home]
        return 0 if self._has_room(engine) else engine.num_waiting_tokens - request.num_tokens

    def _head(self, place: _Place) -> tuple[Order, str, _Request] | None:
        heap = self._waiting[place]
        while heap and not heap[0][2].is_waiting:
            heapq.heappop(heap)
        if heap:
            return heap[0]
        del self._waiting[place]
        return None

    def _dispatch(self, place: _Place, target: str) -> tuple[str, str]:
        _, request_id, request = heapq.heappop(self._waiting[place])
        if not self._waiting[place]:
            del self._waiting[place]
        home, _ = place
        if home:
            self._engines[home].num_waiting_tokens -= request.num_tokens
        request.engine, request.is_waiting = target, False
        engine = self._engines[target]
        engine.num_tokens += request.num_tokens
        engine.num_requests += 1
        engine.num_since += 1
        # Outstanding requests are listed in the order of their dispatch.
        del self._requests[request_id]
        self._requests[request_id] = request
        if request.session_id:
            self._sessions[request.session_id] = target
            self._sessions.move_to_end(request.session_id)
            if len(self._sessions) > self._config.max_sessions:
                self._sessions.popitem(last=False)
        return request_id, target

    def _forget_home(self, engine: str) -> None:
        for session in [session for session, where in self._sessions.items() if where == engine]:
            del self._sessions[session]
        for place in ((engine, False), (engine, True)):
            for entry in self._waiting.pop(place, ()):
                if entry[2].is_waiting:
                    entry[2].engine = ""
                    heapq.heappush(self._waiting.setdefault(("", False), []), entry)
