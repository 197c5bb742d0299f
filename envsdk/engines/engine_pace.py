"""How fast engines answer: which one stands still, which is slow, and how many the load asks for. Pure.

    look -> look -> ... -> rates of the stretch -> slow_engines(rates of all)

An engine is **slow** when more than half of the others do `ratio` times as much in each of four measures:
tokens per second, and tokens per second and request, of sampled tokens and of all computed ones (prompts
included). Load alone does not make an engine slow. Between two equally fast engines, the one with
more requests gives more tokens per second, and the one with fewer gives more to each request. Longer prompts
mean more computed tokens, longer replies more sampled ones. So neither engine is behind in all four.

An engine that has no other to be compared with, or that was idle most of the time, is not judged.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from envsdk.engines.engine import EngineHealth

MIN_BUSY_SHARE = 0.5
"""Share of a stretch: with requests for less of it, an engine is neither judged nor compared with."""


class Rates(NamedTuple):
    """What an engine did in a stretch of time in which it had requests; tokens per second."""

    sampled: float
    computed: float
    """Sampled tokens and those of prompts that were not reused."""
    sampled_per_request: float
    computed_per_request: float

    def is_behind(self, other: Rates, ratio: float) -> bool:
        """Whether the other does more than `ratio` times as much in each measure."""
        return all(theirs > ratio * own for own, theirs in zip(self, other, strict=True))


def slow_engines(rates: Mapping[str, Rates | None], ratio: float) -> set[str]:
    """Names of the slow ones; `ratio` 0 finds none. None: an engine that is not judged."""
    known = {name: rate for name, rate in rates.items() if rate is not None}
    if not ratio:
        return set()
    # No engine is behind itself.
    return {
        name
        for name, rate in known.items()
        if 2 * sum(rate.is_behind(other, ratio) for other in known.values()) > len(known) - 1
    }


class Pace:
    """One engine's counters, look by look. Owner: its incarnation in the pool."""

    def __init__(self) -> None:
        self._last: EngineHealth | None = None
        self._begin_stretch()
        self.stalled_s = 0.0
        """For so long it had requests and computed nothing."""

    def look(self, health: EngineHealth, elapsed_s: float) -> None:
        """Its counters now, so much time after the last look."""
        last, self._last = self._last, health
        if last is None:
            return
        self._stretch_s += elapsed_s
        sampled = health.num_tokens_sampled - last.num_tokens_sampled
        computed = sampled + health.num_prefilled_tokens - last.num_prefilled_tokens
        stands_still = computed == 0 and health.version == last.version
        has_requests = min(num_open(last), num_open(health)) > 0
        self.stalled_s = self.stalled_s + elapsed_s if stands_still and has_requests else 0.0
        num_running = (last.num_running + health.num_running) / 2
        self._request_s += num_running * elapsed_s
        self._busy_s += elapsed_s if num_running else 0.0
        self._sampled += sampled
        self._computed += computed

    def skip(self) -> None:
        """It is paused on purpose: what lies between the looks around this counts for nothing."""
        self._last = None
        self.stalled_s = 0.0

    def end_stretch(self) -> Rates | None:
        """The rates since the last call; None when it had too little to do."""
        rates = None
        if self._busy_s > 0 and self._busy_s >= MIN_BUSY_SHARE * self._stretch_s:
            rates = Rates(
                sampled=self._sampled / self._busy_s,
                computed=self._computed / self._busy_s,
                sampled_per_request=self._sampled / self._request_s,
                computed_per_request=self._computed / self._request_s,
            )
        self._begin_stretch()
        return rates

    def _begin_stretch(self) -> None:
        self._stretch_s = self._busy_s = self._request_s = 0.0
        self._sampled = self._computed = 0


def num_open(health: EngineHealth) -> int:
    """Requests it has not answered."""
    return health.num_running + health.num_queued


MAX_SHARE_OF_FEWER = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class DemandConfig:
    """When the number of engines follows the load."""

    places: int = 128
    """Requests one engine runs at once."""
    max_queued: float = 8.0
    """Per engine."""
    grow_s: float = 10.0
    idle_s: float = 300.0


class Demand:
    """Owner: the pool.

    demand.look([health of each engine that serves], elapsed_s=1.0)
    if demand.wants_more: ...; demand.begin_again()

        look (of all that serve) -> wants_more | wants_fewer -> the pool acts -> begin_again

    One more when more than `max_queued` requests per engine wait for `grow_s` on end. One fewer when for
    `idle_s` on end no request waits and the open requests, run on one engine fewer, would fill at most half
    of the remaining engines' places and of their KV caches.
    """

    def __init__(self, config: DemandConfig) -> None:
        self._config = config
        self.begin_again()

    @property
    def wants_more(self) -> bool:
        return self._crowded_s >= self._config.grow_s

    @property
    def wants_fewer(self) -> bool:
        return self._idle_s >= self._config.idle_s

    def begin_again(self) -> None:
        """The number of engines changed: what was seen before says nothing of it."""
        self._crowded_s = self._idle_s = 0.0

    def look(self, serving: Sequence[EngineHealth], elapsed_s: float) -> None:
        """All engines that serve, so much time after the last look."""
        num_queued = sum(health.num_queued for health in serving)
        is_crowded = num_queued > self._config.max_queued * len(serving)
        self._crowded_s = self._crowded_s + elapsed_s if is_crowded else 0.0
        is_idle = num_queued == 0 and self._load(serving) <= MAX_SHARE_OF_FEWER * (len(serving) - 1)
        self._idle_s = self._idle_s + elapsed_s if is_idle else 0.0

    def _load(self, serving: Sequence[EngineHealth]) -> float:
        """In engines that are full."""
        by_requests = sum(map(num_open, serving)) / self._config.places
        return max(by_requests, sum(health.kv_usage for health in serving))
