"""Which workers of a run play, and which are on their way out. Pure: events in, commands out.

    seat:   empty --more is needed--> taken --less is needed, or its worker leaves--> empty | taken again
    worker: starting --checked in--> playing --retired--> leaving --its last episode ended--> gone
                ^------- died ---------|                     `------------- died -------------^

A seat says which tags its worker plays. The seats in use are always the first ones, which together have
slots of every tag. A worker that leaves plays its episodes to their end and takes no others; another worker
may have taken its seat by then, under another name.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from envsdk.managers.worker_demand import WorkerDemand, WorkerDemandConfig, WorkerLoad


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
