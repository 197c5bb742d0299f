"""The rollout ledger: decides who plays what and which groups are ready. Pure: events in, commands out.

    group:  started -> open -> ready -> taken            rejected, given up or surplus: dropped
    member: pending -> running -> valid -> delivered     stale, failed or worker lost: pending again
                               -> failed                 (counts towards the group, masked)
    slot:   idle -> granted -> idle                      cancelled: busy until reported free
                                                         retired: removed instead of idle

Owner: the scheduler. It feeds in one event at a time and carries out the returned commands in order.

    ledger = RolloutLedger(LedgerConfig(batch_size=8, group_size=4, alpha=1, tag_weights={"maze": 1}))
    for command in ledger.add_slots({"worker0/0": "maze"}, now=0.0):
        ...                                    # Grant(lease=Lease(lease_id=0, ...), slot_id="worker0/0")
    commands = ledger.finished(0, now=3.5, oldest_version=0)
    batch, commands = ledger.take(8, now=3.5)  # None until two groups of four are ready

`Ledger` takes the events of slots, leases and deadlines. A strategy starts its groups: `OwnTasks` from the
run's own list; in `explorer_scheduler.py` a buffer assigns them. `ledger_groups.py` has groups and members.
docs/ledger.md lists the promises that the ledger keeps.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping

from envsdk.algorithms.task_samplers.contract import load_sampler, saved_state
from envsdk.contracts.trajectory import Task
from envsdk.managers.ledger_groups import OpenGroups
from envsdk.managers.ledger_parts import Group, TagOrder
from envsdk.managers.ledger_types import (
    Batch,
    CancelReason,
    Command,
    Discard,
    DroppedGroup,
    LeaseEnd,
    LedgerConfig,
    LedgerCounts,
    LedgerState,
    Stalled,
)


class Ledger:
    """See the module. `now` is a time in seconds on any clock that never runs backwards."""

    def __init__(self, config: LedgerConfig, start_groups: Callable[[OpenGroups], None]) -> None:
        """`start_groups` adds those that may start now: called after every event, unless suspended."""
        self.config = config
        self.groups = OpenGroups(config)
        self._start_groups = start_groups
        self._suspended_at: float | None = None
        self._suspended_s = 0.0

    @property
    def version(self) -> int:
        """The newest that was published."""
        return self.groups.version

    @property
    def counts(self) -> LedgerCounts:
        """Number of leases so far, by state."""
        return self.groups.counts

    @property
    def num_ready_groups(self) -> int:
        """Groups that may be delivered next."""
        return len(self.groups.ready)

    def is_open(self, group_id: int) -> bool:
        """Whether this group was started, and neither delivered nor dropped."""
        return group_id in self.groups.open

    @property
    def num_waiting(self) -> int:
        """Members that wait for a slot."""
        return self.groups.pool.num_waiting

    @property
    def has_idle_slot(self) -> bool:
        """Whether a slot has nothing to play: more groups could be open."""
        return self.groups.pool.has_idle_slot

    @property
    def is_suspended(self) -> bool:
        """Whether `suspend` was called last, not `resume`."""
        return self._suspended_at is not None

    def active_s(self, now: float) -> float:
        """The clock that stands still while the ledger is suspended."""
        return (now if self._suspended_at is None else self._suspended_at) - self._suspended_s

    def next_deadline(self) -> float | None:
        """When `tick` is next needed, on the caller's clock; None when only another event can change that."""
        if self._suspended_at is not None:
            return None
        groups, times = self.groups, []
        starved_since = groups.pool.starved_since()
        if starved_since is not None and not groups.guard.has_stalled:
            times.append(starved_since + self.config.episode_deadline_s)
        if groups.running:
            times.append(next(iter(groups.running.values())).deadline)
        return min(times) + self._suspended_s if times else None

    def add_slots(self, slots: Mapping[str, str], now: float) -> list[Command]:
        """Add slots, as slot id -> tag. An id that is already known is a slot that was lost and came back."""
        pool = self.groups.pool
        for slot_id, tag in slots.items():
            pool.check_tag(slot_id, tag)
        self.groups.lose_slots([slot_id for slot_id in slots if slot_id in pool])
        for slot_id, tag in slots.items():
            pool.add(slot_id, tag)
        return self.advance(now)

    def slots_idle(self, slot_ids: Iterable[str], now: float) -> list[Command]:
        """These slots are free after a Cancel. `finished` of the cancelled lease has the same effect.

        A slot whose lease is still running is ignored: the report is about an earlier lease.
        """
        pool = self.groups.pool
        for slot_id in slot_ids:
            lease_id = pool.lease_on(slot_id)
            if lease_id is not None and lease_id not in self.groups.running:
                pool.free(lease_id)
        return self.advance(now)

    def remove_slots(self, slot_ids: Iterable[str], now: float) -> list[Command]:
        """A worker was lost: the episodes on its slots are cancelled and played elsewhere."""
        self.groups.lose_slots(slot_ids)
        return self.advance(now)

    def retire_slots(self, slot_ids: Iterable[str], now: float) -> list[Command]:
        """Grant no lease on these slots again; episodes that run there end as usual. Idempotent."""
        for slot_id in slot_ids:
            self.groups.pool.retire(slot_id)
        return self.advance(now)

    def hand_over(self, slot_ids: Iterable[str], now: float) -> list[Command]:
        """Cancel the episodes on these slots and play them elsewhere. This uses up no attempt.

        Retire the slots first, or the episodes may come back to them.
        """
        self.groups.hand_over(slot_ids)
        return self.advance(now)

    def finished(
        self,
        lease_id: int,
        now: float,
        *,
        oldest_version: int | None,
        failed: bool = False,
        success: bool | None = None,
        reward: float = 0.0,
    ) -> list[Command]:
        """An episode ended and its slot is free. `oldest_version` is None when no token was sampled.

        `success` and `reward` are for the task sampler; None where they say nothing of the task as it is.

        The report of a lease that has already ended frees the slot and is discarded. A repeated report
        changes nothing.
        """
        groups = self.groups
        is_first_report = groups.pool.free(lease_id)
        member = groups.running.get(lease_id)
        if member is not None:
            member.outcome = None if success is None else (success, reward)
            groups.record(member, CancelReason.EPISODE_FAILED if failed else None, oldest_version)
        elif is_first_report or lease_id not in groups.finished:
            end = LeaseEnd.FAILED if lease_id in groups.finished else LeaseEnd.CANCELLED
            groups.commands.append(Discard(lease_id=lease_id, end=end, reason=CancelReason.LATE))
        return self.advance(now)

    def reject_group(self, group_id: int, now: float) -> list[Command]:
        """The group filter rejected this group: start another task. An unknown group is ignored."""
        group = self.groups.open.get(group_id)
        if group is not None:
            self.groups.drop(group, LeaseEnd.FILTERED, CancelReason.REJECTED)
        return self.advance(now)

    def publish(self, version: int, now: float) -> list[Command]:
        """The engines sample under `version` and the trainer has consumed the last batch.

        Publishing the same version again means that a batch was consumed without a change of the weights.
        """
        if version < self.version:
            raise ValueError(f"version {version} was published after version {self.version}")
        self.groups.version = version
        self.groups.sweep(self.groups.open.values(), self.config.min_version(version))
        return self.advance(now)

    def tick(self, now: float) -> list[Command]:
        """End the leases that are past their deadline."""
        if self._suspended_at is None:
            self.groups.end_late(now - self._suspended_s)
        return self.advance(now)

    def suspend(self, now: float) -> list[Command]:
        """Grant no lease and stop the deadlines until `resume`. Idempotent."""
        if self._suspended_at is None:
            self._suspended_at = now
        return []

    def resume(self, now: float) -> list[Command]:
        """Continue after `suspend`. Idempotent."""
        if self._suspended_at is not None:
            self._suspended_s += now - self._suspended_at
            self._suspended_at = None
        return self.advance(now)

    def advance(self, now: float) -> list[Command]:
        """After an event: start groups, grant leases, report a stall. Returns the commands of the event."""
        groups, starved_tag = self.groups, None
        if self._suspended_at is None:
            self._start_groups(groups)
            groups.grant(now, suspended_s=self._suspended_s)
            starved_tag = groups.pool.starved_tag(now - self._suspended_s, self.config.episode_deadline_s)
        num_slots = groups.pool.num_slots(starved_tag) if starved_tag else 0
        message = groups.guard.verdict(starved_tag, num_slots)
        if message is not None:
            groups.commands.append(Stalled(message=message))
        commands, groups.commands = groups.commands, []
        return commands


class OwnTasks:
    """Starts the tasks of the run's own list, which `config.task_sampler` chooses, up to the capacity."""

    def __init__(self, config: LedgerConfig) -> None:
        self._config = config
        self.order = TagOrder(config.tag_weights, config.split)
        self.sampler = load_sampler(config.task_sampler, self.order)
        self.next_group_id = 0
        self.num_in_training = 0
        """Groups of the batch that the trainer consumes."""
        self.set_depth(config.alpha)

    def set_depth(self, alpha: float) -> None:
        """Generation may run ahead by `alpha` batches."""
        self.alpha = alpha
        self.capacity = self._config.capacity_groups(alpha)
        """In groups, without spares."""

    def start(self, groups: OpenGroups) -> None:
        """Open as many as may be open."""
        for _ in range(self.max_open() - len(groups.open)):
            groups.add(self.next_group_id, self.sampler.next_task())
            self.next_group_id += 1

    def restore(self, state: LedgerState) -> None:
        """Continue from a saved state."""
        self.next_group_id = state.next_group_id
        if self._config.max_wait_share is not None and state.alpha is not None:
            self.set_depth(min(state.alpha, self._config.staleness_bound))
        self.order.restore(state.cursors, state.shares, state.tag_weights)
        self.sampler = load_sampler(self._config.task_sampler, self.order, state.task_sampler)

    def max_open(self) -> int:
        """How many groups may be open now."""
        config = self._config
        if config.alpha == 0 and self.num_in_training >= config.groups_per_batch:
            return 0
        return self.capacity + config.num_groups_redundancy - self.num_in_training


class RolloutLedger(Ledger):
    """The ledger of a run that plays its own list of tasks and delivers batches."""

    def __init__(
        self, config: LedgerConfig, state: LedgerState | None = None, tasks: OwnTasks | None = None
    ) -> None:
        self._tasks = tasks or OwnTasks(config)
        super().__init__(config, self._tasks.start)
        if config.keeps_shares:
            self.groups.on_drop = self._tasks.order.give_back
        self._dropped_with_batch: tuple[DroppedGroup, ...] = ()
        """Before the last batch and after the one before it."""
        if state is not None:
            self._restore(state)

    @property
    def alpha(self) -> float:
        """How many batches generation may run ahead now."""
        return self._tasks.alpha

    @property
    def sampler_metrics(self) -> Mapping[str, float]:
        """What the task sampler shows after the batch that was taken."""
        return self._tasks.sampler.metrics()

    def state(self) -> LedgerState:
        """For a checkpoint: a ledger made from it continues without playing a delivered task again."""
        ends = {str(end): count for end, count in self.groups.ends.items()}
        ends[LeaseEnd.CANCELLED.value] += self.counts.open
        tasks = self._tasks
        return LedgerState(
            version=self.version,
            next_group_id=tasks.next_group_id,
            next_lease_id=self.groups.next_lease_id,
            cursors=dict(tasks.order.cursors),
            shares=dict(tasks.order.shares),
            tag_weights=dict(self.config.tag_weights),
            ends=ends,
            unfinished=self.groups.unfinished,
            alpha=self.alpha,
            dropped=self._dropped_with_batch,
            task_sampler=None if self.config.task_sampler is None else saved_state(tasks.sampler),
        )

    def publish(self, version: int, now: float) -> list[Command]:
        if version >= self.version:
            self._tasks.num_in_training = 0
        return super().publish(version, now)

    def set_depth(self, alpha: float, now: float) -> list[Command]:
        """Generation may run ahead by `alpha` batches from now on. Groups that are open beyond that stay."""
        if self.config.alpha == 0 or not 0 < alpha <= self.config.staleness_bound:
            raise ValueError(
                f"alpha cannot become {alpha}: it must be above 0 and at most {self.config.staleness_bound}, "
                "and the ledger asynchronous from the start"
            )
        self._tasks.set_depth(alpha)
        return self.advance(now)

    def take(self, num_trajectories: int, now: float) -> tuple[Batch | None, list[Command]]:
        """Deliver the oldest ready groups, or None while there are too few.

        A delivered batch counts towards the capacity until the next `publish`.
        """
        groups, config = self.groups, self.config
        num_groups, rest = divmod(num_trajectories, config.group_size)
        if rest or not 0 < num_groups <= self._tasks.capacity:
            raise ValueError(
                f"cannot take {num_trajectories} trajectories: it must be a positive multiple of group_size "
                f"{config.group_size} and at most {self._tasks.capacity} groups"
            )
        if self._chosen(num_groups) is None:
            return None, []
        groups.sweep(groups.ready.values(), config.min_version(self.version))
        chosen = self._chosen(num_groups)
        if chosen is None:
            return None, self.advance(now)
        # In the order of their tasks, so that a synchronous run does not depend on which episode was faster.
        chosen.sort(key=lambda group: group.group_id)
        batch = Batch(version=self.version, groups=tuple(groups.deliver(group) for group in chosen))
        self._tasks.num_in_training += num_groups
        groups.guard.delivered()
        if self._tasks.num_in_training >= config.groups_per_batch:
            self._drop_what_cannot_be_delivered()
        self._dropped_with_batch = groups.take_dropped()
        # Not as each group ends: what is drawn for a synchronous batch does not depend on who was faster.
        for group in groups.take_over().values():
            self._tasks.sampler.observe(group)
        return batch, self.advance(now)

    def _chosen(self, num_groups: int) -> list[Group] | None:
        """The oldest ready groups, of each tag its share where that is kept; None while there are too few."""
        groups = self.groups
        # The sort is stable: among groups of the same age, those that completed first are chosen.
        ready = sorted(groups.ready.values(), key=self._oldest_version)
        if len(ready) < num_groups:
            return None
        if self.config.keeps_shares:
            num_open = Counter(group.task.tag for group in groups.open.values())
            due = self._tasks.order.due(num_groups, num_open)
            of_tag = {tag: [group for group in ready if group.task.tag == tag] for tag in due}
            first = [group for tag, number in due.items() for group in of_tag[tag][:number]]
            may_start = len(groups.open) < self._tasks.max_open()
            if len(first) < num_groups and (may_start or due <= num_open):
                return None
            # A smaller depth may have left no place for a tag: others make up for it.
            ready = first + [group for group in ready if group not in first]
        return ready[:num_groups]

    def _oldest_version(self, group: Group) -> int:
        oldest = group.oldest_version
        return self.version if oldest is None else oldest

    def _drop_what_cannot_be_delivered(self) -> None:
        """The next batch is taken one version later: end now the members that will be too old by then."""
        if self.config.alpha == 0:
            for group in list(self.groups.open.values()):
                self.groups.drop(group, LeaseEnd.CANCELLED, CancelReason.SURPLUS)
        else:
            self.groups.sweep(self.groups.open.values(), self.config.min_version(self.version + 1))

    def _restore(self, state: LedgerState) -> None:
        groups = self.groups
        groups.version = state.version
        groups.next_lease_id = state.next_lease_id
        groups.ends = {end: state.ends[end.value] for end in LeaseEnd}
        self._tasks.restore(state)
        for group in state.unfinished:
            if group.tag in self.config.tag_weights:
                task = Task(tag=group.tag, split=self.config.split, index=group.index)
                groups.add(group.group_id, task, group.attempt)
