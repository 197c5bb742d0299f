"""Ledgers that break one promise each, by what they hear and what they say.

A faulty ledger has a sound one inside. It changes the configuration or the saved state that the sound one
begins with, an event on its way in, or a command or a count on its way out: it needs to know nothing of how
the ledger works.
"""

from __future__ import annotations

import math
import random
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from envsdk.contracts.trajectory import Task
from envsdk.managers.ledger import RolloutLedger
from envsdk.managers.ledger_types import (
    Batch,
    Cancel,
    CancelReason,
    Command,
    Discard,
    Grant,
    GroupReady,
    LedgerConfig,
    LedgerCounts,
    LedgerState,
    Stalled,
)

EVENTS = (
    "add_slots",
    "remove_slots",
    "retire_slots",
    "hand_over",
    "slots_idle",
    "finished",
    "reject_group",
    "publish",
    "set_depth",
    "tick",
    "suspend",
    "resume",
)
FAULTS: dict[str, tuple[int, type[FaultyLedger]]] = {}
"""By what is wrong: the promise that it breaks, and the ledger that does."""


class FaultyLedger:
    """A ledger without a fault; each fault overrides one method."""

    def __init__(self, config: LedgerConfig, state: LedgerState | None = None) -> None:
        self.inner = RolloutLedger(self.configured(config), None if state is None else self.restored(state))
        self.grants: dict[int, Grant] = {}
        """All so far, by lease."""

    def __getattr__(self, name: str) -> Any:
        if name not in EVENTS:
            return getattr(self.inner, name)
        return lambda *args, now, **named: self.say(self.hear(name, *args, now=now, **named), now)

    def configured(self, config: LedgerConfig) -> LedgerConfig:
        return config

    def restored(self, state: LedgerState) -> LedgerState:
        return state

    def hear(self, event: str, *args: Any, now: float, **named: Any) -> list[Command]:
        return list(getattr(self.inner, event)(*args, now=now, **named))

    def say(self, commands: list[Command], now: float) -> list[Command]:
        said = self.changed(commands, now)
        self.grants |= {each.lease.lease_id: each for each in said if isinstance(each, Grant)}
        return said

    def changed(self, commands: list[Command], now: float) -> list[Command]:
        return commands

    def take(self, num_trajectories: int, now: float) -> tuple[Batch | None, list[Command]]:
        batch, commands = self.inner.take(num_trajectories, now)
        return batch, self.say(commands, now)

    @property
    def counts(self) -> LedgerCounts:
        return self.inner.counts


def fault(promise: int, name: str) -> Callable[[type[FaultyLedger]], type[FaultyLedger]]:
    def named(cls: type[FaultyLedger]) -> type[FaultyLedger]:
        FAULTS[name] = (promise, cls)
        return cls

    return named


@fault(1, "a failed episode that is leased again is counted a second time")
class CountsAFailureTwice(FaultyLedger):
    num_again = 0

    def changed(self, commands: list[Command], now: float) -> list[Command]:
        self.num_again += sum(isinstance(each, Grant) and each.lease.attempt > 0 for each in commands)
        return commands

    @property
    def counts(self) -> LedgerCounts:
        found = self.inner.counts
        return replace(found, failed=found.failed + self.num_again)


@fault(1, "the leases of a lost worker vanish without an end")
class ForgetsLostLeases(FaultyLedger):
    num_lost = 0

    def hear(self, event: str, *args: Any, now: float, **named: Any) -> list[Command]:
        before = self.inner.counts.cancelled
        commands = super().hear(event, *args, now=now, **named)
        if event in ("add_slots", "remove_slots"):
            self.num_lost += self.inner.counts.cancelled - before
        return commands

    @property
    def counts(self) -> LedgerCounts:
        found = self.inner.counts
        return replace(found, cancelled=found.cancelled - self.num_lost)


@fault(1, "a slot is granted while its cancelled episode still runs")
class TakesCancelledForOver(FaultyLedger):
    def changed(self, commands: list[Command], now: float) -> list[Command]:
        cancelled = [each.slot_id for each in commands if isinstance(each, Cancel)]
        return [*commands, *self.inner.slots_idle(cancelled, now)]


@fault(2, "the batch in training takes no room")
class ForgetsTheBatchInTraining(FaultyLedger):
    def take(self, num_trajectories: int, now: float) -> tuple[Batch | None, list[Command]]:
        batch, commands = self.inner.take(num_trajectories, now)
        return batch, self.say([*commands, *self.inner.publish(self.inner.version, now)], now)


@fault(2, "the synchronous pipeline starts its spare groups during training")
class IsNeverSynchronous(FaultyLedger):
    def configured(self, config: LedgerConfig) -> LedgerConfig:
        return config if config.alpha else replace(config, alpha=1e-9, max_staleness=1)


@fault(2, "the share of a batch that alpha adds is rounded up")
class RoundsTheDepthUp(FaultyLedger):
    def configured(self, config: LedgerConfig) -> LedgerConfig:
        return replace(config, alpha=math.ceil(config.alpha))

    def hear(self, event: str, *args: Any, now: float, **named: Any) -> list[Command]:
        if event == "set_depth":
            args = (math.ceil(args[0]),)
        return super().hear(event, *args, now=now, **named)


@fault(2, "groups are started at the depth of the start after the depth was reduced")
class KeepsTheDepth(FaultyLedger):
    def hear(self, event: str, *args: Any, now: float, **named: Any) -> list[Command]:
        if event == "set_depth":
            args = (max(args[0], self.inner.config.alpha),)
        return super().hear(event, *args, now=now, **named)


class MisreadsVersions(FaultyLedger):
    def read(self, lease_id: int, oldest_version: int | None) -> int | None:
        raise NotImplementedError

    def hear(self, event: str, *args: Any, now: float, **named: Any) -> list[Command]:
        if event == "finished":
            named["oldest_version"] = self.read(args[0], named["oldest_version"])
        return super().hear(event, *args, now=now, **named)


@fault(3, "a finished episode never gets too old")
class NeverGetsTooOld(MisreadsVersions):
    def read(self, lease_id: int, oldest_version: int | None) -> int | None:
        return None


@fault(3, "the version at the grant stands for the tokens' versions")
class StampsTheGrant(MisreadsVersions):
    def read(self, lease_id: int, oldest_version: int | None) -> int | None:
        return self.grants[lease_id].lease.version


@fault(3, "the bound is off by one")
class IsOffByOne(FaultyLedger):
    def configured(self, config: LedgerConfig) -> LedgerConfig:
        return replace(config, max_staleness=config.staleness_bound + 1)


@fault(4, "spare members that finished are delivered too")
class DeliversSpares(FaultyLedger):
    def __init__(self, config: LedgerConfig, state: LedgerState | None = None) -> None:
        super().__init__(config, state)
        self.spares: defaultdict[int, list[int]] = defaultdict(list)

    def changed(self, commands: list[Command], now: float) -> list[Command]:
        for each in commands:
            if isinstance(each, Discard) and each.reason is CancelReason.SPARE:
                self.spares[self.grants[each.lease_id].lease.group_id].append(each.lease_id)
        return commands

    def take(self, num_trajectories: int, now: float) -> tuple[Batch | None, list[Command]]:
        batch, commands = super().take(num_trajectories, now)
        if batch is not None:
            groups = (
                replace(each, lease_ids=(*each.lease_ids, *self.spares[each.group_id]))
                for each in batch.groups
            )
            batch = replace(batch, groups=tuple(groups))
        return batch, commands


@fault(4, "a group with too few valid members is delivered")
class TakesAnyGroup(FaultyLedger):
    def configured(self, config: LedgerConfig) -> LedgerConfig:
        return replace(config, min_group_size=0)


@fault(4, "a retired slot is granted again")
class RetiresNoSlot(FaultyLedger):
    def hear(self, event: str, *args: Any, now: float, **named: Any) -> list[Command]:
        return [] if event == "retire_slots" else super().hear(event, *args, now=now, **named)


@fault(9, "a batch takes the groups that are complete first")
class ForgetsTheShares(FaultyLedger):
    def configured(self, config: LedgerConfig) -> LedgerConfig:
        return replace(config, keeps_shares=False)


@fault(5, "groups are delivered in the order they were started")
class DeliversInOrder(FaultyLedger):
    def __init__(self, config: LedgerConfig, state: LedgerState | None = None) -> None:
        super().__init__(config, state)
        self.ready: set[int] = set()

    def changed(self, commands: list[Command], now: float) -> list[Command]:
        self.ready |= {each.group_id for each in commands if isinstance(each, GroupReady)}
        return commands

    def take(self, num_trajectories: int, now: float) -> tuple[Batch | None, list[Command]]:
        started = sorted(group.group_id for group in self.inner.state().unfinished)
        if not self.ready.issuperset(started[: num_trajectories // self.inner.config.group_size]):
            return None, []
        return super().take(num_trajectories, now)


@fault(5, "deadlines are not checked")
class HasNoDeadlines(FaultyLedger):
    def configured(self, config: LedgerConfig) -> LedgerConfig:
        return replace(config, episode_deadline_s=1e9)


@fault(5, "deadlines run during a suspension")
class CountsSuspensions(FaultyLedger):
    suspended_at = 0.0

    def hear(self, event: str, *args: Any, now: float, **named: Any) -> list[Command]:
        if event == "suspend" and not self.inner.is_suspended:
            self.suspended_at = now
        if event == "resume" and self.inner.is_suspended:
            return [*super().hear(event, now=self.suspended_at), *self.inner.tick(now)]
        return super().hear(event, *args, now=now, **named)


@fault(5, "a failed episode is counted, and its member never played again")
class LosesFailedMembers(FaultyLedger):
    num_lost = 0

    def hear(self, event: str, *args: Any, now: float, **named: Any) -> list[Command]:
        if event == "finished" and named["failed"]:
            self.num_lost += 1
            return []
        return super().hear(event, *args, now=now, **named)

    @property
    def counts(self) -> LedgerCounts:
        found = self.inner.counts
        return replace(found, failed=found.failed + self.num_lost, open=found.open - self.num_lost)


@fault(6, "a delivered task is started again")
class StartsADeliveredTaskAgain(FaultyLedger):
    delivered: Task | None = None

    def changed(self, commands: list[Command], now: float) -> list[Command]:
        if (task := self.delivered) is None:
            return commands
        return [
            replace(each, lease=replace(each.lease, task=task))
            if isinstance(each, Grant) and each.lease.task.tag == task.tag
            else each
            for each in commands
        ]

    def take(self, num_trajectories: int, now: float) -> tuple[Batch | None, list[Command]]:
        batch, commands = super().take(num_trajectories, now)
        if batch is not None:
            self.delivered = batch.groups[0].task
        return batch, commands


@fault(6, "a resumed run starts at the first task")
class ResumesAtTheFirstTask(FaultyLedger):
    def restored(self, state: LedgerState) -> LedgerState:
        nothing: Mapping[str, int] = dict.fromkeys(state.cursors, 0)
        return replace(state, cursors=nothing, shares=nothing)


@fault(7, "slots are taken in an order of the global random generator")
class ShufflesSlots(FaultyLedger):
    def hear(self, event: str, *args: Any, now: float, **named: Any) -> list[Command]:
        if event == "add_slots":
            slots = list(args[0].items())
            args = (dict(random.sample(slots, len(slots))),)
        return super().hear(event, *args, now=now, **named)


@fault(8, "a member is leased again without end")
class LeasesForEver(FaultyLedger):
    def configured(self, config: LedgerConfig) -> LedgerConfig:
        return replace(config, max_group_attempts=10**6)


@fault(8, "an episode that is handed over uses up an attempt")
class CountsHandOvers(FaultyLedger):
    def __init__(self, config: LedgerConfig, state: LedgerState | None = None) -> None:
        super().__init__(config, state)
        self.num_handed_over: Counter[tuple[int, int]] = Counter()

    def changed(self, commands: list[Command], now: float) -> list[Command]:
        for each in commands:
            if isinstance(each, Cancel) and each.reason is CancelReason.DRAINED:
                lease = self.grants[each.lease_id].lease
                self.num_handed_over[lease.group_id, lease.member] += 1
        return [self.counted(each) if isinstance(each, Grant) else each for each in commands]

    def counted(self, grant: Grant) -> Grant:
        lease = grant.lease
        more = self.num_handed_over[lease.group_id, lease.member]
        return replace(grant, lease=replace(lease, attempt=lease.attempt + more))


def is_starved(command: Command) -> bool:
    return isinstance(command, Stalled) and "has had tasks waiting" in command.message


@fault(8, "no stall is reported when everything is thrown away")
class HidesWaste(FaultyLedger):
    def changed(self, commands: list[Command], now: float) -> list[Command]:
        return [each for each in commands if not isinstance(each, Stalled) or is_starved(each)]


@fault(8, "no stall is reported when a tag has no environments")
class HidesStarvedTags(FaultyLedger):
    def changed(self, commands: list[Command], now: float) -> list[Command]:
        return [each for each in commands if not is_starved(each)]
