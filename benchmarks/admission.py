"""How much explorers play in vain, and how long the trainer waits, beside the best there can be.

    python benchmarks/admission.py [--explorers 1,2,4] [--step_s 0.2,1,10] [--steps 100] [--json FILE]

The buffer and the explorers' ledgers are the real ones; episodes, training and the weights' way take virtual
time, so that figures do not depend on the machine. Two tags at 1 : 1, 4 groups of 4 per batch, alpha 1: an
episode of `quick` takes 0.2 s, one of `slow` 1 s (means of lognormal times), a version 0.1 s to an explorer,
which has 16 environments. `ideal` is a schedule that drops nothing and keeps the shares. Its steps take at
least the training; the weights' way, the slowest group and the training over the steps that may overlap
(here 2); and the work of the episodes over the environments.
"""

from __future__ import annotations

import argparse
import heapq
import json
import math
import os
import statistics
import tempfile
from collections import Counter
from collections.abc import Callable, Generator, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import sqlalchemy as sa

from envsdk.buffer import tables
from envsdk.buffer.connecting import open_engine
from envsdk.buffer.contract import FinishedGroup, Role, Signal, Terms
from envsdk.buffer.sql_buffer import SqlBuffer
from envsdk.managers.explorer_scheduler import AssignedLedger
from envsdk.managers.ledger_types import Cancel, Command, Discard, Grant, GroupDropped, LedgerConfig

TOKENS_PER_S = 1_000
LOOK_AGAIN_S = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """What is simulated."""

    num_explorers: int
    step_s: float
    num_steps: int = 100
    means_s: dict[str, float] = field(default_factory=lambda: {"quick": 0.2, "slow": 1.0})
    sigma: float = 0.4
    travel_s: float = 0.1
    alpha: float = 1.0
    max_staleness: int | None = None
    groups_per_batch: int = 4
    group_size: int = 4
    num_envs: int = 16
    """Of each explorer, divided equally between the tags."""
    seed: int = 1

    @property
    def terms(self) -> Terms:
        return Terms(
            seed=self.seed,
            group_size=self.group_size,
            groups_per_batch=self.groups_per_batch,
            alpha=self.alpha,
            max_staleness=self.max_staleness,
        )

    def episode_s(self, random: np.random.Generator, tag: str) -> float:
        return float(random.lognormal(math.log(self.means_s[tag]) - self.sigma**2 / 2, self.sigma))

    def ideal_step_s(self) -> float:
        random = np.random.default_rng(0)
        per_tag = self.groups_per_batch // len(self.means_s) * self.group_size
        slowest = statistics.fmean(
            max(self.episode_s(random, tag) for tag in self.means_s for _ in range(per_tag))
            for _ in range(2_000)
        )
        slots = self.num_explorers * self.num_envs / len(self.means_s)
        played = max(per_tag * mean_s / slots for mean_s in self.means_s.values())
        overlapping = 1 + min(math.floor(self.alpha), self.terms.staleness_bound)
        chain = (self.travel_s + slowest + self.step_s) / overlapping
        return max(self.step_s, chain, played)


@dataclass(frozen=True, slots=True)
class Until:
    """A process waits for one of these."""

    signal: Signal | None
    seen: int
    at: float
    also: Callable[[], bool] = lambda: False


Process = Generator["float | Until", None, None]


class World:
    """Virtual time, and the processes in it."""

    def __init__(self, case: Case, place: str) -> None:
        self.case = case
        self.now = 1_000.0
        engine = open_engine(place)
        if engine.dialect.name == "sqlite":
            sa.event.listen(engine, "connect", lambda file, _: file.execute("PRAGMA synchronous = OFF"))
        tables.metadata.drop_all(engine)
        self.buffer = SqlBuffer(engine, lease_s=1e9, clock=lambda _: self.now)
        self.buffer.create("admission", case.terms)
        self.is_over = False
        self._queue: list[tuple[float, int, Callable[[], None]]] = []
        self._number = 0
        self._waiting: dict[int, tuple[Process, Until]] = {}

    def at(self, time: float, what: Callable[[], None]) -> None:
        self._number += 1
        heapq.heappush(self._queue, (time, self._number, what))

    def start(self, process: Process) -> None:
        self.at(self.now, lambda: self._go_on(process))

    def run(self) -> None:
        while self._queue and not self.is_over:
            self.now, _, what = heapq.heappop(self._queue)
            what()
            self._wake()

    def _go_on(self, process: Process) -> None:
        wish = next(process, None)
        if isinstance(wish, float):
            self.at(self.now + wish, lambda: self._go_on(process))
        elif wish is not None:
            self._number += 1
            number = self._number
            self._waiting[number] = (process, wish)
            self.at(wish.at, lambda: self._end_waiting(number))

    def _end_waiting(self, number: int) -> None:
        process, _ = self._waiting.pop(number, (None, None))
        if process is not None:
            self._go_on(process)

    def _wake(self) -> None:
        numbers: dict[Signal, int] = {}
        for number, (_, wish) in list(self._waiting.items()):
            if wish.signal is not None and wish.signal not in numbers:
                numbers[wish.signal] = self.buffer.signal_number(wish.signal)
            if wish.also() or (wish.signal is not None and numbers[wish.signal] > wish.seen):
                self.at(self.now + 0.002, lambda number=number: self._end_waiting(number))  # type: ignore[misc]

    def signal_number(self, signal: Signal) -> int:
        return self.buffer.signal_number(signal)


class Trainer:
    def __init__(self, world: World) -> None:
        self.world = world
        self.waited_s = 0.0
        self.began_at = self.ended_at = 0.0
        self.trained: list[int] = []
        """Groups."""

    def run(self) -> Process:
        world, case, buffer = self.world, self.world.case, self.world.buffer
        me = buffer.join(Role.TRAINER, "trainer")
        buffer.trainer.begin(me, 0)
        for step in range(case.num_steps):
            buffer.trainer.publish(me, step, step, {})
            asked_at = world.now
            while True:
                seen = world.signal_number(Signal.BATCH)
                taken = buffer.trainer.take(me, step, version=step)
                if taken is not None:
                    break
                yield Until(Signal.BATCH, seen, world.now + LOOK_AGAIN_S)
            if step == 0:
                self.began_at = world.now
            else:
                self.waited_s += world.now - asked_at
            self.trained += [group.group_id for group in taken.groups]
            yield case.step_s
            buffer.trainer.trained(me, step + 1, keep_from=step + 1)
        self.ended_at = world.now
        world.is_over = True


class Explorer:
    """As `job.explorer.Explorer` does, with the real ledger."""

    def __init__(self, world: World, name: str, counts: Counter[str]) -> None:
        self.world, case = world, world.case
        self.name = name
        self.member = world.buffer.join(Role.EXPLORER, name)
        self.random = np.random.default_rng((case.seed, *name.encode()))
        self.ledger = AssignedLedger(
            LedgerConfig(
                batch_size=case.groups_per_batch * case.group_size,
                group_size=case.group_size,
                alpha=case.alpha,
                max_staleness=case.max_staleness,
                tag_weights=dict.fromkeys(case.means_s, 1),
            )
        )
        self.sampled = counts
        """Tokens of episodes that ended, by tag."""
        self.version = -1
        self.grants: dict[int, tuple[Grant, float, float]] = {}
        self.members: dict[int, tuple[str, int, int]] = {}
        """By lease: tag, version and tokens of a finished episode."""
        self.num_calls = 0

    def follow_versions(self) -> Process:
        world = self.world
        while True:
            seen = world.signal_number(Signal.VERSION)
            newest = world.buffer.newest_version()
            if newest is not None and newest.version > self.version:
                yield world.case.travel_s
                commands = self.ledger.publish(newest.version, world.now)
                if self.version < 0:
                    slots = self.world.case.num_envs // len(world.case.means_s)
                    tags = {f"{t}/{i}": t for t in world.case.means_s for i in range(slots)}
                    commands += self.ledger.add_slots(tags, world.now)
                self.version = newest.version
                self.execute(commands)
            else:
                yield Until(Signal.VERSION, seen, world.now + LOOK_AGAIN_S)

    def claim(self) -> Process:
        world = self.world
        while True:
            wanted = self.ledger.wanted() if self.version >= 0 else []
            seen, version = world.signal_number(Signal.PLACES), self.version
            if wanted:
                self.num_calls += 1
                token = f"{self.name} {self.num_calls}"
                claimed = world.buffer.explorer.claim(self.member, wanted, version=version, token=token)
                yield 0.002
                if claimed:
                    self.execute(self.ledger.assign(claimed, world.now))
                    continue
            number = len(wanted)
            yield Until(
                Signal.PLACES,
                seen,
                world.now + LOOK_AGAIN_S,
                lambda number=number, version=version: (  # type: ignore[misc]
                    self.version != version or len(self.ledger.wanted()) > number
                ),
            )

    def execute(self, commands: Iterable[Command]) -> None:
        now, case = self.world.now, self.world.case
        dropped: dict[int, str] = {}
        idle: list[str] = []
        for command in commands:
            if isinstance(command, Grant):
                seconds = case.episode_s(self.random, command.lease.task.tag)
                self.grants[command.lease.lease_id] = (command, now, seconds)
                self.world.at(now + seconds, lambda lease=command.lease.lease_id: self.finish(lease))  # type: ignore[misc]
            elif isinstance(command, Cancel):
                grant, began, seconds = self.grants.pop(command.lease_id)
                self.sampled[grant.lease.task.tag] += round((now - began) * TOKENS_PER_S)
                idle.append(command.slot_id)
            elif isinstance(command, Discard):
                self.members.pop(command.lease_id, None)
            elif isinstance(command, GroupDropped):
                dropped[command.group_id] = str(command.reason)
        if dropped:
            self.world.buffer.explorer.drop(self.member, dropped)
        if idle:
            self.execute(self.ledger.slots_idle(idle, now))
        self.deliver()

    def finish(self, lease_id: int) -> None:
        found = self.grants.pop(lease_id, None)
        if found is None:
            return
        grant, _, seconds = found
        tokens, tag = round(seconds * TOKENS_PER_S), grant.lease.task.tag
        self.sampled[tag] += tokens
        self.members[lease_id] = (tag, grant.lease.version, tokens)
        self.execute(self.ledger.finished(lease_id, self.world.now, oldest_version=grant.lease.version))

    def deliver(self) -> None:
        delivered, commands = self.ledger.deliver(self.world.now)
        groups = []
        for group in delivered:
            members = [self.members.pop(lease) for lease in group.lease_ids]
            groups.append(
                FinishedGroup(
                    group_id=group.group_id,
                    payload=b"x",
                    num_trajectories=len(members),
                    num_tokens=sum(tokens for *_, tokens in members),
                    oldest_version=min(version for _, version, _ in members),
                )
            )
        if groups:
            self.world.buffer.explorer.put(self.member, groups)
        if commands:
            self.execute(commands)


def simulate(case: Case, place: str) -> dict[str, Any]:
    """One job, in virtual time."""
    world = World(case, place)
    sampled: Counter[str] = Counter()
    trainer = Trainer(world)
    world.start(trainer.run())
    explorers = [Explorer(world, f"e{number}", sampled) for number in range(case.num_explorers)]
    for explorer in explorers:
        world.start(explorer.follow_versions())
        world.start(explorer.claim())
    world.run()
    with world.buffer.engine.connect() as connection:
        rows = connection.execute(sa.select(tables.groups)).mappings().all()
    world.buffer.engine.dispose()
    trained, waiting, groups = Counter[str](), Counter[str](), Counter[str]()
    for row in rows:
        if row["id"] in trainer.trained:
            trained[row["tag"]] += row["num_tokens"]
            groups[row["tag"]] += 1
        elif row["state"] == "ready":
            waiting[row["tag"]] += row["num_tokens"]
    for explorer in explorers:
        for tag, _, tokens in explorer.members.values():
            waiting[tag] += tokens
    dropped = {tag: sampled[tag] - trained[tag] - waiting[tag] for tag in case.means_s}
    lasted_s = trainer.ended_at - trainer.began_at
    return {
        "dropped": sum(dropped.values()) / (sum(dropped.values()) + sum(trained.values())),
        "dropped_by_tag": {tag: number / (number + trained[tag]) for tag, number in dropped.items()},
        "shares": {tag: groups[tag] / len(trainer.trained) for tag in case.means_s},
        "waited": trainer.waited_s / lasted_s,
        "step_s": lasted_s / case.num_steps,
        "ideal_step_s": case.ideal_step_s(),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description="What is played in vain, and how long the trainer waits.")
    parser.add_argument("--explorers", default="1,2,4")
    parser.add_argument("--step_s", default="0.2,1,10")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    found = []
    print("explorers  step  dropped (quick, slow)   trained quick : slow   waited (ideal)   s/step (ideal)")
    for number in map(int, args.explorers.split(",")):
        for step_s in map(float, args.step_s.split(",")):
            case = Case(num_explorers=number, step_s=step_s, num_steps=args.steps)
            with tempfile.TemporaryDirectory(dir="/dev/shm" if os.path.isdir("/dev/shm") else None) as folder:
                each = simulate(case, f"{folder}/buffer.db")
            found.append({"explorers": number, "train_s": step_s, **each})
            by_tag, shares, ideal_s = each["dropped_by_tag"], each["shares"], each["ideal_step_s"]
            print(
                f"{number:9}  {step_s:4g}"
                f"  {each['dropped']:7.1%} ({by_tag['quick']:.1%}, {by_tag['slow']:.1%})"
                f"    {shares['quick']:.1%} : {shares['slow']:.1%}"
                f"    {each['waited']:.1%} ({1 - step_s / ideal_s:.1%})"
                f"    {each['step_s']:.2f} ({ideal_s:.2f})",
                flush=True,
            )
    if args.json:
        args.json.write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()
