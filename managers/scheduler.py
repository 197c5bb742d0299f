"""Shell: the Ray actors around a ledger. They judge groups and take the workers' messages.

    start -> publish -> (get_batch -> publish)* -> close

    EnvWorker ==long poll== exchange -> ledger -> commands -> outboxes of the workers
                                              |
                                     get_batch: take -> write to disk -> return

`ledger_shell.py` carries out what the ledger decides, `workforce.py` has the workers, `batch_files.py` the
results, which it writes before a batch is delivered.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Generic

import ray

from envsdk.algorithms.group_filters import GroupFilterEntry
from envsdk.algorithms.task_samplers.prefixes import EndedEpisode, PrefixArgs, PrefixSampling
from envsdk.base.processes.garbage import collect_rarely, collect_when_grown
from envsdk.config.ray_models import RolePlacement
from envsdk.contracts.failures import Boundary, ConfigurationError, RolloutStalled
from envsdk.contracts.trajectory import RolloutBatch, Task, Trajectory
from envsdk.managers.batch_files import BatchFiles, FinishedEpisodes
from envsdk.managers.env_worker import Control, Finished, FromWorker, ToWorker, WorkerId, WorkerSetup
from envsdk.managers.group_judge import GroupFilters
from envsdk.managers.ledger import RolloutLedger
from envsdk.managers.ledger_log import LedgerLog, recorded
from envsdk.managers.ledger_parts import depth_control
from envsdk.managers.ledger_shell import TICK_S, AnyLedger, LedgerShell
from envsdk.managers.ledger_types import (
    BatchGroup,
    CancelReason,
    Command,
    Discard,
    GroupReady,
    LedgerConfig,
    LedgerState,
    Stalled,
)
from envsdk.managers.worker_group import Worker, WorkerGroup
from envsdk.managers.worker_pool import WorkerDemandConfig, WorkerPool, WorkerPoolConfig
from envsdk.managers.workforce import Background, Workforce


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerSetup:
    """Everything one scheduler needs."""

    ledger: LedgerConfig
    workers: Mapping[str, WorkerSetup]
    """All workers that there may be at the same time, by name."""
    run_seed: int
    pool: WorkerPoolConfig | None = None
    """How many of them there are. None: all of them, always."""
    folder: Path | None = None
    """Where batches are written. None keeps them in memory."""
    log_folder: Path | None = None
    """Run folder in which the ledger's events are kept; None: they are not."""
    file_prefix: str = "step"
    """Begins the names of batch files."""
    group_filters: Sequence[str | GroupFilterEntry] = ()
    """In the order in which they are asked."""
    max_filtered_groups: int = 1_000
    """How many groups the filters may drop between two batches."""
    discarded_per_file: int = 256
    """Discarded trajectories are written when there are this many, or with the next batch."""
    stop_grace_s: float = 10.0
    """A worker that has not stopped a cancelled episode after this time hangs, and is replaced."""
    placement: RolePlacement = field(default_factory=RolePlacement)
    """Nodes of the cluster that workers run on."""
    prefix_sampling: PrefixArgs | None = None
    """Where groups begin; None: at the beginning."""

    @property
    def all_workers(self) -> WorkerPoolConfig:
        """`pool`, or what stands for it when it is absent."""
        number = len(self.workers)
        return self.pool or WorkerPoolConfig(
            min_workers=number,
            max_workers=number,
            num_workers=number,
            demand=WorkerDemandConfig(slots_per_worker=1),
        )


class Scheduler(Generic[AnyLedger]):
    """What the actors have in common: everything but the way in which groups leave."""

    def __init__(self, setup: SchedulerSetup, ledger: AnyLedger) -> None:
        self.setup = setup
        self.background = Background("the scheduler failed")
        workers = WorkerGroup(setup.workers, setup.placement)
        self.shell = LedgerShell(
            ledger,
            workers,
            self.decided,
            self.executed,
            run_seed=setup.run_seed,
            stop_grace_s=setup.stop_grace_s,
        )
        files = None
        if setup.folder is not None:
            files = BatchFiles(
                setup.folder,
                prefix=setup.file_prefix,
                group_size=setup.ledger.group_size,
                discarded_per_file=setup.discarded_per_file,
            )
        filters = GroupFilters(setup.group_filters, limit=setup.max_filtered_groups)
        self.episodes = FinishedEpisodes(setup.ledger, filters, files, run_seed=setup.run_seed)
        pool = WorkerPool(list(setup.workers), setup.all_workers)
        self.workforce = Workforce(workers, pool, self.shell, self.episodes, self.background, self._receive)
        self._has_published = False

    async def start(self) -> None:
        """Start the workers and wait until each has checked in."""
        collect_rarely()
        self.background.start(collect_when_grown())
        self.workforce.begin(ray.get_runtime_context().current_actor)
        self.background.start(self.tick())
        while not self.workforce.pool.is_complete:
            await self.background.next_change()

    async def publish(self, version: int) -> None:
        """All engines sample under `version` from now on, and the trainer is at it.

        No lease is granted before the first call.
        """
        self.shell.execute(self.shell.ledger.publish(version, self.shell.now()))
        if not self._has_published:
            self._has_published = True
            await self.resume()

    async def suspend(self) -> None:
        """Grant no lease and send no request to engines until `resume`. Deadlines stop meanwhile."""
        self.shell.execute(self.shell.ledger.suspend(self.shell.now()))
        self.workforce.group.broadcast(Control.SUSPEND)

    async def resume(self) -> None:
        """Continue after `suspend`. Does nothing before the first `publish`."""
        if not self._has_published:
            return
        self.workforce.group.broadcast(Control.RESUME)
        self.shell.execute(self.shell.ledger.resume(self.shell.now()))

    async def engine_joined(self, name: str, actor: Any) -> None:
        """This engine was started, or started again, and has the newest weights."""
        self.workforce.group.engine_joined(name, actor)

    async def engine_left(self, name: str) -> None:
        """This engine takes no more requests until it joins again. Its open requests may end there."""
        self.workforce.group.engine_left(name)

    async def engines_are_full(self, are_full: bool) -> None:
        """Whether requests wait for a place at an engine, until told otherwise."""
        self.workforce.engines_are_full = are_full

    async def node_leaves(self, node: str, grace_s: float) -> None:
        """See `Workforce.node_leaves`."""
        self.workforce.node_leaves(node, grace_s)

    async def total_calls(self) -> int:
        """Ray calls made for rollouts since start, by all workers."""
        return await self.workforce.group.num_calls()

    async def close(self) -> None:
        """End the workers."""
        self.background.close()
        self.workforce.group.close()

    async def exchange(
        self, worker_id: WorkerId, number: int, messages: Sequence[FromWorker]
    ) -> list[ToWorker]:
        """Take a worker's messages and wait for messages to it. `number` is that of the long poll's call."""
        worker = self.workforce.group.workers.get(worker_id.name)
        if worker is None or worker.worker_id != worker_id:
            return []  # a late call of a process that has been replaced
        now = self.shell.now()
        if not worker.checked_in:
            self.workforce.check_in(worker, now)
        for message in messages:
            self._receive(worker, message)
        if messages:
            self.workforce.end_if_empty(worker)
        return await worker.outbox.collect(number)

    def _receive(self, worker: Worker, message: FromWorker) -> None:
        slot_id, now, shell = message.slot_id, self.shell.now(), self.shell
        if isinstance(message, Finished) and message.trajectory.failure is None:
            self.workforce.succeeded(worker, slot_id, message.trajectory.task.tag, now)
        reason = shell.slots.stop_reasons.get(slot_id)
        if shell.slots.reported(slot_id):
            if not self.workforce.pool.is_leaving(worker.worker_id.name):
                shell.execute(shell.ledger.add_slots({slot_id: worker.setup.slots[slot_id]}, now))
        elif isinstance(message, Finished):
            self.episodes.add(message.lease_id, message.trajectory, reason)
            self._finished(message.lease_id, message.trajectory, now)
        else:
            if reason is not None:
                self.episodes.tally.add_discarded(worker.setup.slots[slot_id], message.num_tokens, reason)
            shell.execute(shell.ledger.slots_idle([slot_id], now))

    def _finished(self, lease_id: int, trajectory: Trajectory, now: float) -> None:
        ledger, failure = self.shell.ledger, trajectory.failure
        # Once batches are delivered, a prompt that is too long concerns its own task, not the run.
        if failure is not None and failure.boundary is Boundary.CONFIGURATION and not ledger.counts.delivered:
            self.background.fail(ConfigurationError(failure.message))
        is_failed, oldest = failure is not None, trajectory.oldest_version
        outcome: dict[str, Any] = {}
        if ledger.config.task_sampler is not None:
            success = None if trajectory.num_replayed else trajectory.success
            outcome = {"success": success, "reward": trajectory.total_reward}
        self.shell.execute(ledger.finished(lease_id, now, oldest_version=oldest, failed=is_failed, **outcome))

    def decided(self, command: Command) -> None:
        """Carry out a command that concerns results."""
        if isinstance(command, Discard):
            if write := self.episodes.discard(command):
                self.background.start(write)
        elif isinstance(command, GroupReady):
            self._judge(command)
        elif isinstance(command, Stalled):
            note = self.episodes.tally.failure_note()
            self.background.start(self._stall(RolloutStalled(f"{command.message}{note}")))

    async def _stall(self, error: RolloutStalled) -> None:
        """No batch will ever be ready: end the run once what was thrown away is on disk."""
        try:
            if self.episodes.files:
                await self.episodes.files.write_discarded()
        finally:
            self.background.fail(error)

    def executed(self) -> None:
        """An event of the ledger was carried out."""

    def _judge(self, ready: GroupReady) -> None:
        """Ask the group filters; a group that they drop is replaced by another task."""
        ledger = self.shell.ledger
        is_awaited = ledger.num_ready_groups <= self.setup.ledger.groups_per_batch
        try:
            reason = self.episodes.drop_reason(ready, is_awaited=is_awaited)
        except RolloutStalled as error:
            self.background.start(self._stall(error))
            return
        if reason is None:
            self.background.changed.set()
        else:
            self.rejected(ready)
            self.shell.execute(ledger.reject_group(ready.group_id, self.shell.now()))

    def rejected(self, ready: GroupReady) -> None:
        """A filter drops this group."""

    async def tick(self) -> None:
        """Look at the clock again and again."""
        was_stopped = False
        while True:
            before = time.monotonic()
            await asyncio.sleep(TICK_S)
            # After a stop the reports that waited come first, which takes at most one more turn.
            was_stopped = not was_stopped and time.monotonic() - before > 2 * TICK_S
            if not was_stopped:
                self.end_what_is_late()

    def end_what_is_late(self) -> None:
        """End episodes past their deadline, and workers that did not stop one in time."""
        now = self.shell.now()
        self.shell.execute(self.shell.ledger.tick(now))
        self.workforce.end_what_is_late(now)


class RolloutScheduler(Scheduler[RolloutLedger]):
    """Body of the actor of a run that plays its own tasks and takes batches."""

    def __init__(self, setup: SchedulerSetup, state: LedgerState | None = None) -> None:
        self._log: LedgerLog | None = None
        """The log of the ledger's events, where this scheduler's batches are trained on."""
        super().__init__(setup, self._new_ledger(setup, state))
        self._depth = depth_control(setup.ledger, self.shell.ledger.alpha)
        self._last_batch_at: float | None = None
        """On the ledger's clock, which stops while suspended."""
        self._prefixes: PrefixSampling | None = None
        self._over: dict[int, tuple[Task, list[EndedEpisode]]] = {}
        """Groups that a filter rejected since the last batch, where prefixes are steered."""
        if (args := setup.prefix_sampling) is not None:
            self._prefixes = prefixes = PrefixSampling(args, None if state is None else state.prefixes)
            self.shell.prefix_of = lambda lease: prefixes.prefix_of(lease.group_id, lease.task)

    def _new_ledger(self, setup: SchedulerSetup, state: LedgerState | None) -> RolloutLedger:
        ledger = RolloutLedger(setup.ledger, state)
        if setup.log_folder is not None:
            self._log = LedgerLog(setup.log_folder, setup.ledger, state)
            recorded(ledger, self._log)
        return ledger

    async def get_batch(self, batch_size: int, step: int = 0) -> RolloutBatch:
        """The next `batch_size` trajectories in complete groups. They are on disk when this returns.

        `step` names the file. Raises RolloutStalled when no batch will ever be ready. Before the first batch
        of the run, an episode that cannot begin (its prompt exceeds `sequence_length`) raises
        ConfigurationError; later it is a failed episode.
        """
        shell, files = self.shell, self.episodes.files
        if files:
            files.begin(step)
        asked_at = shell.ledger.active_s(shell.now())
        if self._log:
            self._log.mark("asked", shell.now(), step)
        self.background.raise_if_failed()
        while True:
            had_idle_slot = shell.ledger.has_idle_slot
            taken, commands = shell.ledger.take(batch_size, shell.now())
            if taken is not None:
                break
            shell.execute(commands)
            self.workforce.is_awaited = True
            await self.background.next_change()
        self.workforce.is_awaited = False
        state = self._with_prefixes(shell.ledger.state(), taken.groups)
        depth = None if self._depth is None else self._depth.alpha
        batch = self.episodes.batch(taken.version, taken.groups, shell.ledger.counts)
        batch = replace(
            batch, depth=depth, workers=self.workforce.pool.counts, sampling=self._sampling_metrics()
        )
        shell.execute(commands)
        self._set_depth(asked_at, shell.now(), had_idle_slot=had_idle_slot)
        self.workforce.restarts.reset()
        if self._log:
            # Before the batch is: the log never lags behind one that was handed out.
            self._log.mark("wrote", shell.now(), step)
            self._log.flush()
        if files:
            await files.write_batch(batch, step, state)
        return batch

    def _with_prefixes(self, state: LedgerState, groups: Sequence[BatchGroup]) -> LedgerState:
        """After a batch: steer the prefixes of groups to come. Returns the state with theirs."""
        if (prefixes := self._prefixes) is None:
            return state
        for group in groups:
            self._over[group.group_id] = group.task, self._ended(group.lease_ids)
        for group_id, (task, episodes) in sorted(self._over.items()):
            prefixes.observe(group_id, task, episodes)
        self._over.clear()
        prefixes.drop([group.group_id for group in state.unfinished])
        return replace(state, prefixes=prefixes.state())

    def _sampling_metrics(self) -> dict[str, float]:
        metrics = {f"task_sampler/{name}": v for name, v in self.shell.ledger.sampler_metrics.items()}
        levels = {} if self._prefixes is None else self._prefixes.levels
        return metrics | {f"prefix/level/{tag}": level for tag, level in levels.items()}

    def rejected(self, ready: GroupReady) -> None:
        if self._prefixes is not None:
            task = self.shell.ledger.groups.open[ready.group_id].task
            self._over[ready.group_id] = task, self._ended(ready.lease_ids)

    def _ended(self, lease_ids: Sequence[int]) -> list[EndedEpisode]:
        kept = self.episodes.trajectories
        found = (kept[each] for each in lease_ids if each in kept)
        return [
            EndedEpisode(success=each.success, replies=[turn.reply for turn in each.turns])
            for each in found
            if each.failure is None
        ]

    def _set_depth(self, asked_at: float, now: float, *, had_idle_slot: bool) -> None:
        """After a batch: let generation run ahead further, or less far, if that is for the run to find."""
        ledger = self.shell.ledger
        before, self._last_batch_at = self._last_batch_at, ledger.active_s(now)
        if self._depth is None or before is None:
            return
        alpha = self._depth.observe(
            waited_s=self._last_batch_at - asked_at,
            lasted_s=self._last_batch_at - before,
            had_idle_slot=had_idle_slot,
        )
        if alpha is not None:
            self.shell.execute(ledger.set_depth(alpha, now))

    async def begin_again(self, version: int) -> None:
        """Start the task list from its first task, under `version`: the next batch has the same tasks again.

        Episodes that still run are stopped; their slots then join in.
        """
        shell, now = self.shell, self.shell.now()
        # Lease ids continue, so that a late report is not mistaken for one of this round.
        state = shell.ledger.state()
        none_yet = dict.fromkeys(state.cursors, 0)
        state = replace(state, version=version, cursors=none_yet, shares=none_yet, unfinished=())
        shell.ledger = self._new_ledger(self.setup, state)
        self._has_published = True
        self.episodes.trajectories.clear()
        for slot_id, lease_id in shell.slots.begin_again():
            shell.stop(slot_id, lease_id, CancelReason.SURPLUS)
        self.workforce.group.broadcast(Control.RESUME)
        shell.execute(shell.ledger.publish(version, now))
        self.workforce.add_idle_slots(now)

    async def num_ready(self) -> int:
        """Trajectories in groups that are ready for the next batch."""
        return self.shell.ledger.num_ready_groups * self.setup.ledger.group_size

    async def close(self) -> None:
        await super().close()
        if self._log:
            self._log.flush()  # a run that ended without another batch is explained too
