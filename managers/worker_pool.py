"""How many workers the load asks for, which of them play, and which leave. Pure: events in, commands out.

    seat:   empty --more is needed--> taken --less is needed, or its worker leaves--> empty | taken again
    worker: starting --checked in--> playing --retired--> leaving --its last episode ended--> gone
                ^------- died ---------|                     `------------- died -------------^

A seat says which tags its worker plays. The seats in use are always the first ones, which together have
slots of every tag. A worker that leaves plays its episodes to their end and takes no others; another worker
may have taken its seat by then, under another name.
"""

from __future__ import annotations

import math
from collections import defaultdict, deque
from collections.abc import Iterable, Sequence
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

        look (while all of them play) -> num_more | wants_fewer -> the pool acts -> begin_again

    More when episodes wait for a slot, or the workers' event loops are full, while the trainer waits for a
    batch. Such time adds up and leaks away at a quarter of the speed otherwise, so that a trainer that waits
    for less than a fifth of its time asks for nothing. Nor does time count in which requests wait at every
    engine: replies are short then, not environments. A node whose CPU is in use takes no more workers.

    One fewer when for `idle_s` no episode waited and the remaining workers would have been filled to at most
    four fifths of their slots and half of their CPU. A moment in which they would not have sufficed starts
    this time anew if the trainer waited, and else takes four times its length back. A synchronous run's
    training does not count: nobody can play then.
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


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerPoolConfig:
    """Between which numbers the workers follow the load."""

    min_workers: int
    max_workers: int
    num_workers: int
    """The run begins with."""
    demand: WorkerDemandConfig

    @property
    def is_elastic(self) -> bool:
        """Whether the number can change."""
        return self.min_workers < self.max_workers


@dataclass(frozen=True, slots=True)
class Life:
    """One worker from its start to its retirement, through any number of restarts."""

    seat: str
    number: int
    """Workers that had the seat before, from 0."""

    @property
    def name(self) -> str:
        """`SEAT` or `SEAT.NUMBER`."""
        return f"{self.seat}.{self.number}" if self.number else self.seat


@dataclass(frozen=True, slots=True)
class StartWorker:
    """Start it; `checked_in` follows."""

    life: Life


@dataclass(frozen=True, slots=True)
class RetireWorker:
    """Give it no more episodes; `emptied` follows when it plays none."""

    name: str


@dataclass(frozen=True, slots=True)
class EndWorker:
    """Let it close its environments, and end it."""

    name: str


WorkerCommand = StartWorker | RetireWorker | EndWorker


class WorkerPool:
    """Owner: the scheduler. Events of a worker that is gone are ignored.

    pool = WorkerPool(["train-0", "train-1", "train-2"], config)      # the first num_workers
    commands = pool.begin()                                           # [StartWorker(...), ...]
    pool.checked_in("train-0")
    commands = pool.look(load, elapsed_s=2.0)                         # [StartWorker(Life("train-2", 0))]
    commands = pool.leave(["train-1"])           # [RetireWorker("train-1"), StartWorker(Life("train-1", 1))]
    commands = pool.emptied("train-1")                                # [EndWorker("train-1")]
    """

    def __init__(self, seats: Sequence[str], config: WorkerPoolConfig) -> None:
        """All seats there may ever be."""
        self._seats = tuple(seats)
        self._config = config
        self._demand = WorkerDemand(config.demand)
        self._lives: list[Life] = []
        """Lives of the seats in use, in their order."""
        self._next_number = dict.fromkeys(seats, 0)
        self._starting: set[str] = set()
        self._leaving: set[str] = set()
        self.num_added = self.num_retired = 0
        """Since the start of the run; those that the run began with are not counted."""

    @property
    def names(self) -> list[str]:
        """Workers that start or play."""
        return [life.name for life in self._lives]

    @property
    def is_elastic(self) -> bool:
        """Whether their number can change."""
        return self._config.is_elastic

    @property
    def counts(self) -> dict[str, int]:
        """For `RolloutBatch.workers`; empty while their number cannot change and none has left."""
        if not (self.is_elastic or self.num_retired):
            return {}
        playing = sum(name not in self._starting for name in self.names)
        return {"playing": playing, "added": self.num_added, "retired": self.num_retired}

    @property
    def is_complete(self) -> bool:
        """Every worker has checked in."""
        return bool(self._lives) and not self._starting

    def begin(self) -> list[WorkerCommand]:
        """Start the workers that the run begins with."""
        commands = self._fill(self._config.num_workers)
        self.num_added = 0
        return commands

    def is_leaving(self, name: str) -> bool:
        """Whether it was retired and is not gone."""
        return name in self._leaving

    def checked_in(self, name: str) -> None:
        self._starting.discard(name)

    def died(self, name: str) -> bool:
        """Its process ended. Returns whether it is started again."""
        if name in self.names:
            self._starting.add(name)
            return True
        self._leaving.discard(name)
        return False

    def look(self, load: WorkerLoad, elapsed_s: float) -> list[WorkerCommand]:
        """The workers' load now, while episodes are not suspended."""
        if self._starting:
            # The load of those that play says little while others are on their way.
            self._demand.begin_again()
            return []
        self._demand.look(load, elapsed_s)
        num_workers, config = len(self._lives), self._config
        if self._demand.num_more and num_workers < config.max_workers:
            return self._fill(min(num_workers + self._demand.num_more, config.max_workers))
        if self._demand.wants_fewer and num_workers > config.min_workers:
            return [self._retire(self._lives.pop())]
        return []

    def leave(self, names: Iterable[str]) -> list[WorkerCommand]:
        """These workers must leave, because their node does: others take their seats at once."""
        commands: list[WorkerCommand] = []
        for name in names:
            if name in self.names:
                position = self.names.index(name)
                commands.append(self._retire(self._lives[position]))
                self._lives[position] = life = self._new_life(self._lives[position].seat)
                commands.append(StartWorker(life))
        return commands

    def emptied(self, name: str) -> list[WorkerCommand]:
        """A worker that leaves plays nothing any more."""
        if name not in self._leaving:
            return []
        self._leaving.discard(name)
        return [EndWorker(name)]

    def _fill(self, num_workers: int) -> list[WorkerCommand]:
        """Start workers on the first empty seats until there are so many."""
        self._demand.begin_again()
        commands: list[WorkerCommand] = []
        for seat in self._seats[len(self._lives) : num_workers]:
            self._lives.append(self._new_life(seat))
            commands.append(StartWorker(self._lives[-1]))
        return commands

    def _new_life(self, seat: str) -> Life:
        life = Life(seat, self._next_number[seat])
        self._next_number[seat] += 1
        self._starting.add(life.name)
        self.num_added += 1
        return life

    def _retire(self, life: Life) -> WorkerCommand:
        self._demand.begin_again()
        self._starting.discard(life.name)
        self._leaving.add(life.name)
        self.num_retired += 1
        return RetireWorker(life.name)


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
    """Workers that must be gone by a deadline. Owner: the scheduler.

        leave -> (cannot_end -> hand over)* -> forget

    An episode whose end nobody can expect within the time left is handed over at once; it is played elsewhere
    sooner. What is expected follows from the latest episodes of its tag: of those that lasted longer than it
    has, the shortest must fit. The last part of the grace is kept for ending what is left.
    """

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
