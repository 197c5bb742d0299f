"""How many engines the load asks for: one more, one fewer, or as many as there are. Pure.

    look (of all that serve) -> wants_more | wants_fewer -> the pool acts -> begin_again

One more when more than `max_queued` requests per engine wait for `grow_s` on end. One fewer when for `idle_s`
on end no request waits and the open requests, run on one engine fewer, would fill at most half of the
remaining engines' places and of their KV caches.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from envsdk.engines.engine import EngineHealth
from envsdk.engines.engine_pace import num_open

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
