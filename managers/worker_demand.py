"""How many workers the load asks for: some more, one fewer, or as many as there are. Pure.

    look (while all of them play) -> num_more | wants_fewer -> the pool acts -> begin_again

More when episodes wait for a slot, or the workers' event loops are full, while the trainer waits for a batch.
Such time adds up and leaks away at a quarter of the speed otherwise, so that a trainer that waits for less
than a fifth of its time asks for nothing. Nor does time count in which requests wait at every engine: replies
are short then, not environments. A node whose CPU is in use takes no more workers.

One fewer when for `idle_s` no episode waited and the remaining workers would have been filled to at most four
fifths of their slots and half of their CPU. A moment in which they would not have sufficed starts this time
anew if the trainer waited, and else takes four times its length back. A synchronous run's training does not
count: nobody can play then.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

LEAK = 0.25
SETBACK = 4.0
FULL_LOOP = 0.9
"""CPU of a worker in cores, on average: its event loop hardly sleeps."""
MOST_SLOTS_OF_FEWER = 0.8
MOST_CPU_OF_FEWER = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerDemandConfig:
    """When the number of workers follows the load."""

    slots_per_worker: int
    max_node_cpu: float = 0.9
    """Share of a node's CPU, 0 to 1. With more in use, no worker is added."""
    grow_s: float = 10.0
    idle_s: float = 300.0


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerLoad:
    """One look at the workers that play."""

    num_workers: int
    num_waiting: int
    """Episodes that wait for a slot."""
    num_playing: int
    """Slots that play."""
    is_awaited: bool
    """The trainer waits for a batch."""
    engines_are_full: bool = False
    """Requests wait for a place at an engine: more episodes would only wait longer."""
    may_run_ahead: bool = False
    """Episodes are played while the trainer learns."""
    worker_cpu: float = 0.0
    """Cores that all of them use together."""
    node_cpu: float = 0.0
    """Share of CPU in use, 0 to 1, of the node with the most to spare."""


class WorkerDemand:
    """Owner: the pool.

    demand.look(WorkerLoad(...), elapsed_s=1.0)
    if demand.num_more: ...; demand.begin_again()
    """

    def __init__(self, config: WorkerDemandConfig) -> None:
        self._config = config
        self.begin_again()

    @property
    def num_more(self) -> int:
        """Workers to add: those that the waiting episodes fill, at most as many as there are."""
        if self._crowded_s < self._config.grow_s:
            return 0
        asked_for = math.ceil(self._last.num_waiting / self._config.slots_per_worker)
        return min(max(1, asked_for), max(1, self._last.num_workers))

    @property
    def wants_fewer(self) -> bool:
        return self._idle_s >= self._config.idle_s

    def begin_again(self) -> None:
        """The number of workers changed: earlier looks say nothing about it."""
        self._crowded_s = self._idle_s = 0.0
        self._last = WorkerLoad(num_workers=0, num_waiting=0, num_playing=0, is_awaited=False)

    def look(self, load: WorkerLoad, elapsed_s: float) -> None:
        """All workers that play, so much time after the last look."""
        self._last = load
        if load.node_cpu > self._config.max_node_cpu:
            self._crowded_s = 0.0
        elif self._is_crowded(load):
            self._crowded_s = min(self._crowded_s + elapsed_s, self._config.grow_s)
        else:
            self._crowded_s = max(0.0, self._crowded_s - LEAK * elapsed_s)
        if not self._would_fit_fewer(load):
            self._idle_s = 0.0 if load.is_awaited else max(0.0, self._idle_s - SETBACK * elapsed_s)
        elif load.num_playing or load.is_awaited or load.may_run_ahead:
            self._idle_s += elapsed_s

    def _is_crowded(self, load: WorkerLoad) -> bool:
        is_full = load.num_waiting > 0 or load.worker_cpu >= FULL_LOOP * load.num_workers
        return is_full and load.is_awaited and not load.engines_are_full

    def _would_fit_fewer(self, load: WorkerLoad) -> bool:
        fewer = load.num_workers - 1
        return (
            load.num_waiting == 0
            and load.num_playing <= MOST_SLOTS_OF_FEWER * fewer * self._config.slots_per_worker
            and load.worker_cpu <= MOST_CPU_OF_FEWER * fewer
        )
