"""Episodes on workers whose node goes away: which may be played to their end, and which cannot. Pure.

    leave -> (cannot_end -> hand over)* -> forget

An episode whose end nobody can expect within the time left is handed over at once; it is played elsewhere
sooner. What is expected follows from the latest episodes of its tag: of those that lasted longer than it has,
the shortest must fit. The last part of the grace is kept for ending what is left.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable
from dataclasses import dataclass

MOST_KEPT = 256
SHARE_KEPT = 0.2
MOST_KEPT_S = 5.0
"""Seconds of the grace, for environments and processes to close."""


@dataclass(frozen=True, slots=True)
class PlayedEpisode:
    """An episode that is being played."""

    slot_id: str
    tag: str
    began: float
    """On the caller's clock, seconds."""


class EpisodeTimes:
    """How long the latest episodes of each tag took."""

    def __init__(self) -> None:
        self._seconds: dict[str, deque[float]] = defaultdict(lambda: deque(maxlen=MOST_KEPT))

    def add(self, tag: str, seconds: float) -> None:
        """An episode ended after so long."""
        self._seconds[tag].append(seconds)

    def may_end(self, tag: str, *, age_s: float, left_s: float) -> bool:
        """Whether an episode of that age can be expected to end within the time left."""
        if left_s <= 0:
            return False
        longer = [seconds for seconds in self._seconds[tag] if seconds > age_s]
        return not longer or min(longer) <= age_s + left_s


class Departures:
    """Workers that must be gone by a deadline. Owner: the scheduler."""

    def __init__(self) -> None:
        self._deadlines: dict[str, float] = {}

    @property
    def names(self) -> list[str]:
        """Workers that are on their way out."""
        return list(self._deadlines)

    def leave(self, name: str, now: float, grace_s: float) -> None:
        """This worker's node goes away in `grace_s`. Of several notices the earliest end counts."""
        deadline = now + grace_s - min(MOST_KEPT_S, SHARE_KEPT * grace_s)
        self._deadlines[name] = min(deadline, self._deadlines.get(name, deadline))

    def forget(self, name: str) -> None:
        """It is gone."""
        self._deadlines.pop(name, None)

    def cannot_end(
        self, name: str, episodes: Iterable[PlayedEpisode], times: EpisodeTimes, now: float
    ) -> list[str]:
        """Slots of this worker whose episodes are to be handed over now."""
        left_s = self._deadlines[name] - now
        return [
            episode.slot_id
            for episode in episodes
            if not times.may_end(episode.tag, age_s=now - episode.began, left_s=left_s)
        ]
