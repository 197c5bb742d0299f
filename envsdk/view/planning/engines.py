"""Engines in virtual time: replies that slow each other down, and the choice of an engine. Pure.

    reply: submitted -> waiting (for the router, or for a place at its engine) -> running -> ended | canceled

A reply needs `work` seconds alone on an engine. With n replies running, each advances by 1 / slowdown(n) per
second, so all replies of one engine share one clock, and the order of their ends does not change.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count

from envsdk.contracts.seeds import stable_seed
from envsdk.engines.router import Router

_ALMOST = 1e-9
"""Seconds of work that rounding may leave over."""


def speeds(slowdown: Mapping[int, float], max_running: int) -> tuple[float, ...]:
    """Progress per second of each reply, by the number of replies that run, from 0 to `max_running`.

    `slowdown` has points (replies at once, how many times longer one takes than alone); between them, and
    after the last two, it goes in straight lines.

    >>> speeds({1: 1.0, 3: 2.0}, 3)
    (1.0, 1.0, 0.6666666666666666, 0.5)
    """
    points = sorted({1: 1.0, **slowdown}.items())
    found = [1.0]
    for number in range(1, max_running + 1):
        after = next((i for i, (load, _) in enumerate(points) if load >= number), len(points) - 1)
        (x0, y0), (x1, y1) = points[max(after - 1, 0)], points[after]
        factor = y1 if x0 == x1 else y0 + (y1 - y0) * (number - x0) / (x1 - x0)
        found.append(1.0 / factor)
    return tuple(found)


@dataclass(slots=True, eq=False)
class Reply:
    """One reply that an environment waits for. Owner: the simulation."""

    owner: object
    """The one that waits for it."""
    session: str
    group: int | None
    """The group whose first replies go to one engine; None: any engine will do."""
    work: float
    """Seconds alone on an engine."""
    num_tokens: int
    """Tokens of its prompt and of the longest reply: what the router balances."""
    worker: int
    request_id: str = ""
    engine: int = -1
    """Where it waits or runs; -1 while it waits at the router."""
    is_running: bool = False
    is_open: bool = True
    version: int = 0
    """Version of the weights that sampled its first token."""
    end: float = 0.0
    """On its engine's clock of work."""


@dataclass(slots=True, eq=False)
class Engine:
    """Answers up to `len(speeds) - 1` replies at once; further ones wait in the order of their arrival."""

    speeds: Sequence[float]
    num_running: int = 0
    is_held: bool = False
    """Begins no further reply."""
    is_frozen: bool = False
    """Nothing advances."""
    work: float = 0.0
    """What every reply that ran all the time has had."""
    at: float = 0.0
    """When `work` was that much."""
    busy_s: float = 0.0
    served_s: float = 0.0
    """Running replies, summed over time."""
    queue: deque[Reply] = field(default_factory=deque)
    num_queued: int = 0
    ends: list[tuple[float, int, Reply]] = field(default_factory=list)
    version: int = 0
    _tie: count[int] = field(default_factory=count)

    def advance(self, now: float) -> None:
        """Bring the clocks to `now`."""
        passed, self.at = now - self.at, now
        if self.num_running:
            self.busy_s += passed
            self.served_s += passed * self.num_running
            if not self.is_frozen:
                self.work += passed * self.speeds[self.num_running]

    def submit(self, reply: Reply) -> None:
        """Begin a reply, or let it wait. `advance` first, as before all that follow."""
        self.queue.append(reply)
        self.num_queued += 1
        self.fill()

    def fill(self) -> None:
        """Begin what has a place."""
        while self.queue and not self.is_held and self.num_running < len(self.speeds) - 1:
            reply = self.queue.popleft()
            if reply.is_open:
                self.num_queued -= 1
                self.num_running += 1
                self._begin(reply)

    def _begin(self, reply: Reply) -> None:
        reply.is_running, reply.version = True, self.version
        reply.end = self.work + reply.work
        heapq.heappush(self.ends, (reply.end, next(self._tie), reply))

    def cancel(self, reply: Reply) -> None:
        """Forget a reply."""
        reply.is_open = False
        if reply.is_running:
            self.num_running -= 1
            self.fill()
        else:
            self.num_queued -= 1

    def restart(self) -> None:
        """All that runs begins again from its prompt."""
        running = [reply for _, _, reply in self.ends if reply.is_open]
        self.ends.clear()
        for reply in running:
            self._begin(reply)

    def next_end(self) -> float | None:
        """When a reply ends unless something changes before."""
        while self.ends and not self.ends[0][2].is_open:
            heapq.heappop(self.ends)
        if not self.ends or self.is_frozen:
            return None
        return self.at + max(0.0, self.ends[0][0] - self.work) / self.speeds[self.num_running]

    def take_ended(self) -> list[Reply]:
        """Replies whose work is done; the next ones begin."""
        ended = []
        while self.ends and self.ends[0][0] <= self.work + _ALMOST:
            reply = heapq.heappop(self.ends)[2]
            if reply.is_open:
                reply.is_open = False
                self.num_running -= 1
                ended.append(reply)
        self.fill()
        return ended


class RouterDispatch:
    """Chooses the engine of each reply: the real router, one for each worker process, as in a run."""

    def __init__(self, num_workers: int, num_engines: int) -> None:
        self._routers = [Router() for _ in range(num_workers)]
        names = [f"engine{index}" for index in range(num_engines)]
        self._index = {name: index for index, name in enumerate(names)}
        for worker, router in enumerate(self._routers):
            first = stable_seed("engines", worker) % num_engines
            for name in names[first:] + names[:first]:
                router.add_engine(name)
        self._open: dict[str, Reply] = {}
        self._arrivals = count()

    def submit(self, reply: Reply) -> list[tuple[Reply, int]]:
        """A reply is wanted. Returns replies that go to engines now."""
        arrival = next(self._arrivals)
        reply.request_id = str(arrival)
        self._open[reply.request_id] = reply
        self._routers[reply.worker].submit(
            reply.request_id, reply.session, reply.num_tokens, (0, arrival), group=reply.group
        )
        return self._take(reply.worker)

    def forget(self, reply: Reply) -> list[tuple[Reply, int]]:
        """A reply was canceled."""
        del self._open[reply.request_id]
        self._routers[reply.worker].done(reply.request_id)
        return self._take(reply.worker)

    def answered(self, reply: Reply, num_queued: int) -> list[tuple[Reply, int]]:
        """A reply ended, and its engine's report says how many wait there."""
        name = f"engine{reply.engine}"
        self._routers[reply.worker].look(name, num_queued=num_queued, kv_usage=0.0)
        return self.forget(reply)

    def ended_session(self, session: str) -> None:
        """No further reply of this session will come."""

    def _take(self, worker: int) -> list[tuple[Reply, int]]:
        found = []
        while (taken := self._routers[worker].take()) is not None:
            found.append((self._open[taken[0]], self._index[taken[1]]))
        return found


class LeastLoadedDispatch:
    """An aggregate of all routers, for thousands of engines: constant time per reply.

    A session stays with its engine; a session without one goes to an engine with the fewest open replies.
    Left out: the router's weights by tokens, its spills, and replies that wait at the router.
    """

    def __init__(self, num_engines: int) -> None:
        self._loads = [0] * num_engines
        self._by_load: list[dict[int, None]] = [dict.fromkeys(range(num_engines))]
        self._lowest = 0
        self._home: dict[str, int] = {}

    def submit(self, reply: Reply) -> list[tuple[Reply, int]]:
        engine = self._home.get(reply.session)
        if engine is None:
            if reply.group is not None:
                engine = reply.group % len(self._loads)
            else:
                engine = next(iter(self._by_load[self._lowest]))
            self._home[reply.session] = engine
        self._move(engine, 1)
        return [(reply, engine)]

    def forget(self, reply: Reply) -> list[tuple[Reply, int]]:
        self._move(reply.engine, -1)
        return []

    def answered(self, reply: Reply, num_queued: int) -> list[tuple[Reply, int]]:
        return self.forget(reply)

    def ended_session(self, session: str) -> None:
        self._home.pop(session, None)

    def _move(self, engine: int, by: int) -> None:
        load = self._loads[engine]
        del self._by_load[load][engine]
        self._loads[engine] = load = load + by
        while len(self._by_load) <= load:
            self._by_load.append({})
        self._by_load[load][engine] = None
        self._lowest = min(self._lowest, load)
        while not self._by_load[self._lowest]:
            self._lowest += 1
