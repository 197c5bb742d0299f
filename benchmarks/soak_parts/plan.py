"""The faults of a soak, drawn from a seed. Pure: the same seed gives the same faults, one by one."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum


class Kind(StrEnum):
    """What happens."""

    KILL = "kill"
    """SIGKILL."""
    STOP = "stop"
    """SIGSTOP, and SIGCONT after a while."""
    DISK_FULL = "disk full"
    DISK_SLOW = "disk slow"
    DESCRIPTORS = "no descriptors"
    """The process may open no further file."""
    CLOCK = "clock jumps"
    """The time of day changes; clocks that only measure go on."""
    MESSAGE_LOST = "message lost"
    """A worker's call fails before it reaches the scheduler."""
    ANSWER_LOST = "answer lost"
    """It fails after the scheduler has handled it."""
    MESSAGE_DOUBLED = "message doubled"
    MESSAGE_LATE = "message late"
    ENV_HANGS = "environment hangs"
    """This and what follows also happen to reward functions."""
    ENV_CRASHES = "environment crashes"
    """Its process ends."""
    ENV_RAISES = "environment raises"
    ENV_FLOODS = "environment floods"
    """A megabyte of observation, and as much on the standard output."""
    ENV_NAN = "environment returns NaN"


WORKER, ENGINE, SCHEDULER, TRAINER, DRIVER = "worker", "engine", "scheduler", "trainer", "driver"
ENVIRONMENT, RAYLET, GCS = "environment", "raylet", "gcs"
SANDBOX, EXPLORER = "sandbox", "explorer"

WEIGHTS: Sequence[tuple[Kind, str, int]] = (
    (Kind.KILL, WORKER, 12),
    (Kind.KILL, ENGINE, 10),
    (Kind.KILL, ENVIRONMENT, 8),
    (Kind.KILL, SCHEDULER, 2),
    (Kind.KILL, TRAINER, 2),
    (Kind.KILL, DRIVER, 3),
    (Kind.KILL, SANDBOX, 8),
    (Kind.KILL, EXPLORER, 8),
    (Kind.KILL, RAYLET, 1),
    (Kind.KILL, GCS, 1),
    (Kind.STOP, WORKER, 4),
    (Kind.STOP, ENGINE, 4),
    (Kind.STOP, ENVIRONMENT, 3),
    (Kind.STOP, SCHEDULER, 3),
    (Kind.STOP, TRAINER, 3),
    (Kind.STOP, DRIVER, 3),
    (Kind.STOP, SANDBOX, 3),
    (Kind.STOP, EXPLORER, 4),
    (Kind.STOP, RAYLET, 2),
    (Kind.STOP, GCS, 1),
    (Kind.DISK_FULL, "", 2),
    (Kind.DISK_SLOW, "", 3),
    (Kind.DESCRIPTORS, WORKER, 2),
    (Kind.DESCRIPTORS, SCHEDULER, 1),
    (Kind.DESCRIPTORS, DRIVER, 1),
    (Kind.CLOCK, "", 5),
    (Kind.MESSAGE_LOST, "", 3),
    (Kind.ANSWER_LOST, "", 3),
    (Kind.MESSAGE_DOUBLED, "", 4),
    (Kind.MESSAGE_LATE, "", 4),
    (Kind.ENV_HANGS, "", 5),
    (Kind.ENV_CRASHES, "", 5),
    (Kind.ENV_RAISES, "", 4),
    (Kind.ENV_FLOODS, "", 4),
    (Kind.ENV_NAN, "", 4),
)
"""Kind, the process it happens to, and how often. What ends the program is rarer: it costs a new start.
A job passes over what cannot happen to it."""

LASTING = frozenset({Kind.STOP, Kind.DISK_FULL, Kind.DISK_SLOW, Kind.DESCRIPTORS, Kind.CLOCK})
"""The others happen once."""
LONG = 0.05
"""Share of stops whose length is drawn evenly up to the longest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One fault."""

    number: int
    kind: Kind
    target: str
    """Role of the process it happens to; empty for those that concern no process."""
    after_s: float
    """Seconds after the run was seen to go on."""
    lasts_s: float
    """Of those that go on for a while."""
    choice: float
    """In [0, 1): which of several processes."""
    amount: float
    """In [-1, 1]: how far the clock jumps, of a day."""

    def __str__(self) -> str:
        return f"fault {self.number}: {self.kind}{f' {self.target}' if self.target else ''}"


def faults(seed: int, *, longest_stop_s: float) -> Iterator[Fault]:
    """Endlessly many. `longest_stop_s` bounds how long a process is stopped; most are much shorter."""
    rng = random.Random(seed)
    weights = [weight for _, _, weight in WEIGHTS]
    number = 0
    while True:
        ((kind, target, _),) = rng.choices(WEIGHTS, weights)
        lasts_s = 1.0 + rng.expovariate(1 / 3.0)
        if rng.random() < LONG:
            lasts_s = rng.uniform(1.0, longest_stop_s)
        yield Fault(
            number=number,
            kind=kind,
            target=target,
            after_s=rng.uniform(0.0, 0.5),
            lasts_s=min(lasts_s, longest_stop_s if kind is Kind.STOP else 4.0) if kind in LASTING else 0.0,
            choice=rng.random(),
            amount=rng.uniform(-1.0, 1.0),
        )
        number += 1
