"""Shell: plays the tasks of shards and writes each shard when it is full, here or in worker processes.

    play_shards(job, plans, on_event)                    # in this process
    play_in_processes(job, plans, num_workers, on_event)

A process holds the episodes of the shards it has begun, and no others.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

from envsdk.base.processes.supervised import Share, play_supervised
from envsdk.base.store.atomic import remove_leftovers
from envsdk.base.store.shard_plan import ShardPlan
from envsdk.base.store.shards import (
    Selection,
    ShardRecord,
    share_worker_lock,
    write_shard,
)
from envsdk.base.store.tally import Tally
from envsdk.contracts.trajectory import Trajectory
from envsdk.rollouts.datasets.selection import EpisodeFilters
from envsdk.rollouts.play.open_shards import OpenShards

if TYPE_CHECKING:
    from envsdk.rollouts.play.player import Player

_PROGRESS_EVERY_S = 0.1


Event = Tally | ShardRecord
"""The episodes that ended since the last tally, which are on disk once their shard is; or that shard."""
OnEvent = Callable[[Event], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardJob:
    """What a process needs to play shards; picklable."""

    player: Player
    out: Path
    """The collection's folder."""
    to: Path
    """Where shards are written: `out`, or a folder in it where they wait."""
    fingerprint: str
    filters: EpisodeFilters


class _ShardWriter:
    """Puts episodes that end in any order into their shards; writes a shard when it is full."""

    def __init__(self, job: ShardJob, plans: Sequence[ShardPlan], on_event: OnEvent) -> None:
        self._job = job
        self._open = OpenShards(plans)
        self._on_event = on_event
        self._since = Tally()
        self._told_at = time.monotonic()

    def add(self, position: int, trajectory: Trajectory) -> None:
        self._since.add(trajectory)
        if played := self._open.add(position, trajectory):
            job, plan = self._job, self._open.plan_of(position)
            kept, selection = select(job.filters, played)
            record = write_shard(job.to, plan, kept, job.fingerprint, selection)
            self._tell()
            self._on_event(record)
        elif time.monotonic() - self._told_at >= _PROGRESS_EVERY_S:
            self._tell()

    def _tell(self) -> None:
        since, self._since, self._told_at = self._since, Tally(), time.monotonic()
        self._on_event(since)


def select(
    filters: EpisodeFilters, played: Sequence[Trajectory]
) -> tuple[Sequence[Trajectory], Selection | None]:
    """The episodes that are kept; with filters, also what is noted of all."""
    if not filters:
        return played, None
    reasons = [filters.reason_to_drop(trajectory) for trajectory in played]
    kept = [trajectory for trajectory, reason in zip(played, reasons, strict=True) if reason is None]
    dropped = Counter(reason for reason in reasons if reason is not None)
    return kept, Selection(played=Tally.of(played), dropped=dropped)


def play_shards(job: ShardJob, plans: Sequence[ShardPlan], on_event: OnEvent) -> None:
    """Play and write `plans` in this process."""
    if plans:
        writer = _ShardWriter(job, plans, on_event)
        job.player.play(
            chain.from_iterable(plan.tasks() for plan in plans),
            writer.add,
            group_size=plans[0].samples_per_task,
        )


def play_in_processes(job: ShardJob, plans: Sequence[ShardPlan], num_workers: int, on_event: OnEvent) -> None:
    """Play and write `plans` in worker processes, each its share of the shards."""
    shares = [_Shards(job, plans[number::num_workers]) for number in range(min(num_workers, len(plans)))]
    try:
        play_supervised(shares, on_event)
    finally:
        remove_leftovers(job.to)


class _Shards(Share[Event]):
    """The shards of one worker process."""

    def __init__(self, job: ShardJob, plans: Sequence[ShardPlan]) -> None:
        self._job = job
        self._plans = plans

    @property
    def num_environments(self) -> int:
        return self._job.player.num_slots

    def play(self, send: OnEvent) -> None:
        share_worker_lock(self._job.out)
        play_shards(self._job, self._plans, send)

    def heard(self, event: Event) -> None:
        if isinstance(event, ShardRecord):
            self._plans = [plan for plan in self._plans if plan.number != event.number]

    def isolated(self) -> _Shards:
        return _Shards(replace(self._job, player=self._job.player.isolated()), self._plans)
