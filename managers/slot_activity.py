"""What the workers' slots play, and when a worker hangs or dies too often. Pure: policy without processes.

slot: idle -> playing -> idle
              playing -> stopping -> idle       not in time: its worker hangs
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from envsdk.managers.episode import EpisodeOrder
from envsdk.managers.ledger_types import CancelReason

MAX_RESTARTS_WITHOUT_PROGRESS = 5


class SlotActivity:
    """Which episode each slot plays, as far as its worker has reported. Owner: the scheduler."""

    def __init__(self) -> None:
        self.playing: dict[str, EpisodeOrder] = {}
        """Episodes by slot, until the worker reports the episode finished or released."""
        self.began: dict[str, float] = {}
        """Times by slot in `playing`: when its episode was granted."""
        self.stop_deadlines: dict[str, float] = {}
        """Deadlines by slot with a cancelled episode: when the episode must have stopped."""
        self.stop_reasons: dict[str, CancelReason] = {}
        """Reasons by such a slot."""
        self.stragglers: set[str] = set()
        """Slots that still play an episode of an earlier ledger."""

    def play(self, slot_id: str, order: EpisodeOrder, now: float) -> None:
        """The slot plays this episode from now on."""
        self.playing[slot_id] = order
        self.began[slot_id] = now

    def stop(self, slot_id: str, deadline: float, reason: CancelReason = CancelReason.SURPLUS) -> None:
        """The episode on this slot was cancelled and must stop by `deadline`."""
        self.stop_deadlines[slot_id] = deadline
        self.stop_reasons[slot_id] = reason

    def reported(self, slot_id: str) -> bool:
        """The slot is idle now. Returns whether it played for an earlier ledger."""
        self.playing.pop(slot_id, None)
        self.began.pop(slot_id, None)
        self.stop_deadlines.pop(slot_id, None)
        self.stop_reasons.pop(slot_id, None)
        if slot_id not in self.stragglers:
            return False
        self.stragglers.remove(slot_id)
        return True

    def forget(self, slot_ids: Iterable[str]) -> None:
        """The worker of these slots is gone."""
        for slot_id in slot_ids:
            self.reported(slot_id)

    def begin_again(self) -> list[tuple[str, int]]:
        """Another ledger takes over: returns the episodes to stop, as slot and lease id."""
        self.stragglers = set(self.playing)
        return [
            (slot_id, order.lease_id)
            for slot_id, order in self.playing.items()
            if slot_id not in self.stop_deadlines
        ]

    def hung(self, now: float) -> list[str]:
        """Slots that did not stop in time."""
        return [slot_id for slot_id, deadline in self.stop_deadlines.items() if deadline < now]


class RestartCounter:
    """Counts a worker's unexplained deaths until one of its episodes succeeds or a batch is delivered."""

    def __init__(self) -> None:
        self._deaths: Counter[str] = Counter()

    def died(self, worker: str) -> None:
        """This worker died for an unknown reason."""
        self._deaths[worker] += 1

    def progressed(self, worker: str) -> None:
        """An episode of this worker succeeded."""
        self._deaths.pop(worker, None)

    def reset(self) -> None:
        """A batch was delivered."""
        self._deaths.clear()

    def verdict(self, worker: str) -> str | None:
        """Why the worker must not be started again, if so."""
        deaths = self._deaths[worker]
        if deaths <= MAX_RESTARTS_WITHOUT_PROGRESS:
            return None
        return f"worker {worker} died {deaths} times in a row"


class AwakeClock:
    """Owner: one event loop, which reads it at least every `longest_s` while it runs.

    clock = AwakeClock(100.0, longest_s=1.0)
    clock.at(100.5)  # 100.5
    clock.at(160.5)  # 101.5: of the minute at most `longest_s` counts

    A process that was stopped (SIGSTOP, a suspended machine) has heard nothing meanwhile. On waking its
    timers come before the reports that wait for it, so deadlines on an ordinary clock would end what was on
    time.
    """

    def __init__(self, now: float, *, longest_s: float) -> None:
        self._read_at = self._shown = now
        self._longest_s = longest_s

    def at(self, now: float) -> float:
        """The time on this clock when the ordinary one shows `now`, in seconds."""
        self._shown += min(now - self._read_at, self._longest_s)
        self._read_at = now
        return self._shown
