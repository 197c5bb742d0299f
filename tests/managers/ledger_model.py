"""An independent model of the rollout ledger: it follows the commands and checks each promise.

`CheckedLedger` stands where the shell stands. It knows only what it told the ledger and what the
ledger told it, and raises `PromiseBroken` at the first command or count that does not fit.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum, auto
from fractions import Fraction

from envsdk.managers.ledger import RolloutLedger
from envsdk.managers.ledger_types import (
    Batch,
    Cancel,
    CancelReason,
    Command,
    Discard,
    Grant,
    GroupReady,
    Lease,
    LeaseEnd,
    LedgerConfig,
    LedgerState,
    Stalled,
)

LedgerFactory = Callable[[LedgerConfig, LedgerState | None], RolloutLedger]


class PromiseBroken(AssertionError):
    def __init__(self, number: int, what: str) -> None:
        super().__init__(f"promise {number}: {what}")
        self.number = number


class Phase(Enum):
    RUNNING = auto()
    VALID = auto()
    FAILED = auto()
    """Ended as failed; its result may still fill a group."""
    OVER = auto()


@dataclass
class Record:
    lease: Lease
    slot_id: str
    granted_at: float
    """On the clock that stands still while suspended."""
    phase: Phase = Phase.RUNNING
    oldest_version: int | None = None


class CheckedLedger:
    """Feeds a ledger (and its twin, for determinism) and checks what comes back."""

    def __init__(self, config: LedgerConfig, make: LedgerFactory = RolloutLedger) -> None:
        self.config = config
        self.make = make
        self.ledger, self.twin = make(config, None), make(config, None)
        self.now = 0.0
        self.clock = 0.0
        self.version = 0
        self.is_suspended = False
        self.slots: dict[str, str] = {}
        self.occupied: dict[str, int] = {}
        self.records: dict[int, Record] = {}
        self.ends: Counter[LeaseEnd] = Counter()
        self.groups_in_training = 0
        self.leases_in_training = 0
        self.ready: dict[int, tuple[int, ...]] = {}
        self.delivered_tasks: set[tuple[str, int]] = set()
        self.group_of_task: dict[tuple[str, int], int] = {}
        self.handed_over: dict[tuple[int, int], int] = {}
        """By group and member, the attempt that was handed over and not yet played again."""
        self.alpha = config.alpha
        self.bound = math.ceil(config.alpha) if config.max_staleness is None else config.max_staleness
        self.known_groups: set[int] = set()
        self.ended_groups: set[int] = set()
        """Delivered, dropped according to a saved state, or dropped after the state of a restart."""
        self.num_delivered: Counter[str] = Counter()
        """Groups by tag."""
        self.num_wasted = 0
        self.stalls: list[str] = []
        self.is_broken = False

    def promise(self, number: int, holds: bool, what: str) -> None:
        if not holds:
            self.is_broken = True
            raise PromiseBroken(number, what)

    def pass_time(self, seconds: float) -> None:
        self.now += seconds
        if not self.is_suspended:
            self.clock += seconds

    def add_slots(self, slots: Mapping[str, str]) -> None:
        self._lose(slots)
        self.slots.update(slots)
        self._send("add_slots", slots)

    def remove_slots(self, slot_ids: list[str]) -> None:
        self._lose(slot_ids)
        for slot_id in slot_ids:
            self.slots.pop(slot_id, None)
        self._send("remove_slots", slot_ids)

    def retire_slots(self, slot_ids: list[str]) -> None:
        for slot_id in slot_ids:
            del self.slots[slot_id]
        self._send("retire_slots", slot_ids)

    def hand_over(self, slot_ids: list[str]) -> None:
        running = set(self.running())
        handed_over = {self.occupied[slot] for slot in slot_ids if self.occupied.get(slot) in running}
        self.retire_slots(slot_ids)
        self._send("hand_over", slot_ids)
        left = handed_over & set(self.running())
        self.promise(5, not left, "an episode that was handed over still runs")

    def finish(self, lease_id: int, *, oldest_version: int | None, failed: bool = False) -> None:
        record = self.records[lease_id]
        if self.occupied.get(record.slot_id) == lease_id:
            del self.occupied[record.slot_id]
        if record.phase is Phase.RUNNING:
            record.oldest_version = oldest_version
            if failed:
                self._end(record, LeaseEnd.FAILED, is_waste=True)
                record.phase = Phase.FAILED
            else:
                record.phase = Phase.VALID
        self._send("finished", lease_id, oldest_version=oldest_version, failed=failed)

    def slots_idle(self, slot_ids: list[str]) -> None:
        for slot_id in slot_ids:
            lease_id = self.occupied.get(slot_id)
            if lease_id is not None and self.records[lease_id].phase is not Phase.RUNNING:
                del self.occupied[slot_id]
        self._send("slots_idle", slot_ids)

    def reject(self, group_id: int) -> None:
        self._send("reject_group", group_id)
        left = [r for r in self._open() if r.lease.group_id == group_id]
        self.promise(1, not left, "leases of a rejected group are still open")

    def publish(self, version: int) -> None:
        self.version = version
        self.groups_in_training = self.leases_in_training = 0
        self._send("publish", version)
        horizon = version - self.bound
        too_old = [r for r in self._open(Phase.RUNNING) if r.lease.version < horizon]
        self.promise(3, not too_old, "an episode too old to be delivered still runs after a publication")

    def set_depth(self, alpha: float) -> None:
        self.alpha = alpha
        self._send("set_depth", alpha)

    def tick(self) -> None:
        self._send("tick")
        if not self.is_suspended:
            limit = self.clock - self.config.episode_deadline_s
            late = [r for r in self._open(Phase.RUNNING) if r.granted_at < limit - 1e-6]
            self.promise(5, not late, "a lease runs past its deadline")

    def suspend(self) -> None:
        self.is_suspended = True
        self._send("suspend")

    def resume(self) -> None:
        self.is_suspended = False
        self._send("resume")

    def take(self, num_trajectories: int) -> Batch | None:
        config = self.config
        horizon = self.version - self.bound
        complete = Counter(
            r.lease.group_id
            for r in self._open(Phase.VALID)
            if r.oldest_version is None or r.oldest_version >= horizon
        )
        whole = [group_id for group_id, count in complete.items() if count >= config.group_size]
        num_complete, due, tag_of = len(whole), self.due(num_trajectories), self.open_tags()
        lacking = due - Counter(tag_of[group_id] for group_id in whole)
        batch, commands = self.ledger.take(num_trajectories, self.now)
        self.promise(
            7, self.twin.take(num_trajectories, self.now) == (batch, commands), "twins differ at take"
        )
        if batch is None:
            self.promise(
                5,
                num_complete * config.group_size < num_trajectories
                or (config.keeps_shares and bool(lacking)),
                f"{num_complete} complete groups wait and a batch of {num_trajectories} is not delivered",
            )
        else:
            found = Counter(group.task.tag for group in batch.groups)
            if config.keeps_shares and due <= Counter(tag_of.values()):
                self.promise(9, found == due, f"a batch has {found} and not {due}")
            self.num_delivered += found
            self._check_batch(batch, num_trajectories, horizon)
            self._check_groups(batch)
        self._follow(commands)
        return batch

    def due(self, num_trajectories: int) -> Counter[str]:
        """Groups of each tag that come next, one by one from the tag that is furthest behind."""
        weights, delivered = self.config.tag_weights, Counter(self.num_delivered)
        for _ in range(num_trajectories // self.config.group_size):
            delivered[min(weights, key=lambda tag: Fraction(delivered[tag], weights[tag]))] += 1
        return delivered - self.num_delivered

    def open_tags(self) -> dict[int, str]:
        """The tags of the groups that are open."""
        return {group.group_id: group.tag for group in self.ledger.state().unfinished}

    def restart(self) -> None:
        """A checkpoint and a new process: everything open is gone, nothing delivered comes back."""
        state = self.ledger.state()
        saved = state.to_dict()
        self.ended_groups |= set(range(state.next_group_id)) - {group.group_id for group in state.unfinished}
        self.promise(7, self.twin.state().to_dict() == saved, "twins save different states")
        for record in self._open():
            self._end(record, LeaseEnd.CANCELLED)
        self.slots.clear()
        self.occupied.clear()
        self.ready.clear()
        self.groups_in_training = self.leases_in_training = 0
        self.handed_over.clear()
        self.num_wasted = 0
        self.is_suspended = False
        self.ledger = self.make(self.config, LedgerState.from_dict(saved))
        self.twin = self.make(self.config, LedgerState.from_dict(saved))
        self._check()

    def running(self) -> list[int]:
        return [r.lease.lease_id for r in self._open(Phase.RUNNING)]

    def cancelled_on_slots(self) -> list[int]:
        """Leases that ended while their slot is not yet reported free."""
        return [i for i in self.occupied.values() if self.records[i].phase is not Phase.RUNNING]

    def _open(self, *phases: Phase) -> list[Record]:
        wanted = phases or (Phase.RUNNING, Phase.VALID)
        return [r for r in self.records.values() if r.phase in wanted]

    def _send(self, event: str, *args: object, **kwargs: object) -> None:
        commands = getattr(self.ledger, event)(*args, now=self.now, **kwargs)
        twin_commands = getattr(self.twin, event)(*args, now=self.now, **kwargs)
        self.promise(7, commands == twin_commands, f"the same events gave other commands at {event}")
        self._follow(commands)

    def _follow(self, commands: list[Command]) -> None:
        for command in commands:
            match command:
                case Grant():
                    self._granted(command)
                case Cancel():
                    self._cancelled(command)
                case Discard():
                    self._discarded(command)
                case GroupReady(group_id=group_id, lease_ids=lease_ids):
                    phases = [self.records[lease_id].phase for lease_id in lease_ids]
                    self.promise(
                        4, set(phases) <= {Phase.VALID, Phase.FAILED}, "a ready group has unfinished members"
                    )
                    num_valid = phases.count(Phase.VALID)
                    self.promise(
                        4, num_valid >= self.config.min_valid, "a ready group has too few valid members"
                    )
                    self.ready[group_id] = lease_ids
                case Stalled(message=message):
                    limit = self.config.max_fruitless_batches * self.config.batch_size
                    is_starved = "has had tasks waiting" in message
                    self.promise(8, is_starved or self.num_wasted >= limit, f"stalled too early: {message}")
                    self.stalls.append(message)
        self._check()

    def _granted(self, grant: Grant) -> None:
        lease, slot_id = grant.lease, grant.slot_id
        self.promise(1, lease.lease_id not in self.records, "a lease id was used twice")
        self.promise(5, not self.is_suspended, "a lease was granted while suspended")
        self.promise(1, slot_id not in self.occupied, f"{slot_id} was granted while busy")
        self.promise(4, self.slots.get(slot_id) == lease.task.tag, f"{slot_id} cannot play {lease.task.tag}")
        self.promise(8, lease.attempt < self.config.max_group_attempts, "a member was leased again for ever")
        self.promise(3, lease.version == self.version, "a lease is stamped with another version")
        task = (lease.task.tag, lease.task.index)
        self.promise(6, task not in self.delivered_tasks, f"the delivered task {task} is played again")
        self.promise(
            6, self.group_of_task.setdefault(task, lease.group_id) == lease.group_id, "two groups of a task"
        )
        attempt = self.handed_over.pop((lease.group_id, lease.member), lease.attempt)
        self.promise(8, lease.attempt <= attempt, "an episode that was handed over used up an attempt")
        self.ready.pop(lease.group_id, None)
        self.occupied[slot_id] = lease.lease_id
        self.records[lease.lease_id] = Record(lease, slot_id, self.clock)

    def _cancelled(self, cancel: Cancel) -> None:
        record = self.records[cancel.lease_id]
        self.promise(1, record.phase is Phase.RUNNING, f"a lease that does not run was cancelled: {cancel}")
        self.promise(1, self.occupied.get(cancel.slot_id) == cancel.lease_id, f"not on this slot: {cancel}")
        if cancel.reason is CancelReason.DEADLINE:
            age_s = self.clock - record.granted_at
            self.promise(5, age_s >= self.config.episode_deadline_s - 1e-6, f"ended early, after {age_s} s")
            self._end(record, LeaseEnd.FAILED, is_waste=True)
            record.phase = Phase.FAILED
        elif cancel.reason is CancelReason.DRAINED:
            self.promise(1, cancel.slot_id not in self.slots, "a slot that stays was handed over")
            self._end(record, LeaseEnd.CANCELLED)
            self.handed_over[record.lease.group_id, record.lease.member] = record.lease.attempt
        elif cancel.reason is CancelReason.TOO_OLD:
            self._end(record, LeaseEnd.STALE, is_waste=True)
        else:
            self._end(record, LeaseEnd.CANCELLED, is_waste=cancel.reason.is_waste)

    def _discarded(self, discard: Discard) -> None:
        record = self.records[discard.lease_id]
        if discard.reason is CancelReason.LATE:
            self.promise(
                1, record.phase in (Phase.FAILED, Phase.OVER), f"a live lease was dropped: {discard}"
            )
        elif record.phase is Phase.FAILED:
            record.phase = Phase.OVER
        else:
            self.promise(1, record.phase is Phase.VALID, f"nothing to discard: {discard}")
            self._end(record, discard.end, is_waste=discard.reason.is_waste)

    def _end(self, record: Record, end: LeaseEnd, *, is_waste: bool = False) -> None:
        self.promise(1, record.phase in (Phase.RUNNING, Phase.VALID), f"lease {record.lease} ended twice")
        record.phase = Phase.OVER
        self.ends[end] += 1
        self.num_wasted += is_waste

    def _lose(self, slot_ids: Mapping[str, str] | list[str]) -> None:
        for slot_id in slot_ids:
            lease_id = self.occupied.pop(slot_id, None)
            if lease_id is not None and self.records[lease_id].phase is Phase.RUNNING:
                record = self.records[lease_id]
                is_last = record.lease.attempt + 1 == self.config.max_group_attempts
                self._end(record, LeaseEnd.FAILED if is_last else LeaseEnd.CANCELLED, is_waste=True)
                record.phase = Phase.FAILED if is_last else Phase.OVER

    def _check_groups(self, batch: Batch) -> None:
        """Every group that was started is open, in a batch, or dropped for a reason that is written down."""
        state = self.ledger.state()
        open_groups = {group.group_id for group in state.unfinished}
        ended = [group.group_id for group in (*batch.groups, *state.dropped)]
        self.promise(1, len(set(ended)) == len(ended), "a group ended twice")
        self.promise(1, not set(ended) & (self.ended_groups | open_groups), "a group ended and goes on")
        self.promise(1, all(group.reason for group in state.dropped), "a group was dropped without a reason")
        self.ended_groups |= set(ended)
        started = set(range(state.next_group_id))
        self.promise(1, started == self.ended_groups | open_groups, "a group is neither open nor ended")

    def _check_batch(self, batch: Batch, num_trajectories: int, horizon: int) -> None:
        config = self.config
        self.promise(4, len(batch.lease_ids) == num_trajectories, "a batch of another size than asked for")
        self.promise(6, len(set(batch.lease_ids)) == len(batch.lease_ids), "a trajectory is in a batch twice")
        for group in batch.groups:
            records = [self.records[lease_id] for lease_id in group.lease_ids]
            self.promise(
                6, all(r.phase is not Phase.OVER for r in records), "an ended trajectory was delivered"
            )
            self.promise(4, len(records) == config.group_size, "a group of another size than group_size")
            self.promise(4, {r.lease.task for r in records} == {group.task}, "a group of several tasks")
            self.promise(
                4, len({r.lease.member for r in records}) == config.group_size, "a member is there twice"
            )
            self.promise(5, all(r.phase is not Phase.RUNNING for r in records), "an unfinished trajectory")
            failed = {r.lease.lease_id for r in records if r.phase is Phase.FAILED}
            self.promise(4, group.failures.keys() == failed, "failed members are not named")
            self.promise(4, len(records) - len(failed) >= config.min_valid, "too few valid members")
            for record in records:
                oldest = record.oldest_version
                self.promise(3, oldest is None or oldest >= horizon, f"version {oldest} at {batch.version}")
                if record.phase is Phase.VALID:
                    self._end(record, LeaseEnd.DELIVERED)
                record.phase = Phase.OVER
            task = (group.task.tag, group.task.index)
            self.promise(6, task not in self.delivered_tasks, f"the task {task} was delivered twice")
            self.delivered_tasks.add(task)
            self.ready.pop(group.group_id, None)
        self.promise(3, batch.version == self.version, "the batch is stamped with another version")
        self.groups_in_training += len(batch.groups)
        self.leases_in_training += len(batch.lease_ids)
        self.num_wasted = 0

    def _check(self) -> None:
        config, open_records = self.config, self._open()
        counts = self.ledger.counts
        self.promise(1, counts.started == len(self.records), "started is miscounted")
        self.promise(1, counts.open == len(open_records), "open is miscounted")
        for end in LeaseEnd:
            self.promise(1, getattr(counts, end.value) == self.ends[end], f"{end} is miscounted")

        open_groups = {r.lease.group_id for r in open_records}
        state = self.ledger.state()
        allowed = math.floor((1 + Fraction(str(self.alpha))) * config.batch_size) // config.group_size
        allowed += config.num_groups_redundancy
        if config.alpha == 0 and self.groups_in_training * config.group_size >= config.batch_size:
            self.promise(2, not open_records, "the synchronous pipeline plays during training")
        unfinished = {group.group_id for group in state.unfinished}
        self.promise(2, open_groups <= unfinished, "a group is open that a restart would not know")
        # A smaller depth ends no group; until enough are delivered, none may be started.
        self.promise(
            2,
            unfinished <= self.known_groups or len(unfinished) + self.groups_in_training <= allowed,
            f"started beyond {allowed} groups: {len(unfinished)} open, {self.groups_in_training} in training",
        )
        self.known_groups |= unfinished
        members = config.group_size + config.group_size_redundancy
        largest = max(Counter(r.lease.group_id for r in open_records).values(), default=0)
        self.promise(2, largest <= members, "a group has more open leases than members")

        shares = dict.fromkeys(config.tag_weights, 0) if config.keeps_shares else state.cursors
        for tag, weight in config.tag_weights.items():
            for other, other_weight in config.tag_weights.items():
                is_fair = (shares[tag] - 1) * other_weight <= shares[other] * weight
                self.promise(5, is_fair, f"{tag} started {shares[tag]} groups, {other} {shares[other]}")

        due = self.ledger.next_deadline()
        running = self._open(Phase.RUNNING)
        if self.is_suspended:
            self.promise(5, due is None, "a deadline runs while suspended")
        elif running:
            first = min(r.granted_at for r in running) + config.episode_deadline_s - self.clock + self.now
            self.promise(5, due is not None and due <= first + 1e-6, "no tick is due at the next deadline")
