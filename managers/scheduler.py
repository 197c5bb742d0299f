"""Shell: RolloutScheduler, the Ray actor around the ledger.

    start -> publish -> (get_batch -> publish)* -> close

    EnvWorker ==long poll== exchange -> RolloutLedger -> commands -> outboxes of the workers
                                              |
                                     get_batch: take -> write to disk -> return

It feeds events into the ledger and carries out the commands. `worker_group.py` has the processes,
`worker_pool.py` decides which there are, `slot_activity.py` when one hangs, and `batch_files.py` writes each
batch before it is delivered.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import ray

from envsdk.algorithms.group_filters import GroupFilterEntry
from envsdk.config.ray_models import RolePlacement
from envsdk.failures import (
    Boundary,
    ConfigurationError,
    EnvsdkError,
    Failure,
    RolloutStalled,
    as_envsdk_error,
)
from envsdk.managers.awake_clock import AwakeClock
from envsdk.managers.batch_files import BatchFiles
from envsdk.managers.departure import Departures, EpisodeTimes, PlayedEpisode
from envsdk.managers.depth import depth_control
from envsdk.managers.env_host import timed_out
from envsdk.managers.env_worker import (
    Control,
    Finished,
    FromWorker,
    Play,
    Stop,
    ToWorker,
    WorkerId,
    WorkerSetup,
)
from envsdk.managers.group_judge import GroupFilters
from envsdk.managers.ledger import RolloutLedger
from envsdk.managers.ledger_log import LedgerLog, recorded
from envsdk.managers.ledger_types import (
    Batch,
    BatchGroup,
    Cancel,
    CancelReason,
    Command,
    Discard,
    Grant,
    GroupReady,
    Lease,
    LedgerConfig,
    LedgerState,
    Stalled,
)
from envsdk.managers.rollout_batch import RolloutBatch, RolloutTally, num_sampled_tokens
from envsdk.managers.slot_activity import RestartCounter, SlotActivity
from envsdk.managers.traj_env_manager import EpisodeOrder
from envsdk.managers.worker_demand import WorkerDemandConfig, WorkerLoad
from envsdk.managers.worker_group import Worker, WorkerGroup
from envsdk.managers.worker_pool import (
    RetireWorker,
    StartWorker,
    WorkerCommand,
    WorkerPool,
    WorkerPoolConfig,
)
from envsdk.processes.call_watch import Note
from envsdk.processes.garbage import collect_rarely, collect_when_grown
from envsdk.trajectory import Outcome, Task, Trajectory

TICK_S = 0.5
LOAD_LOOK_S = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerSetup:
    """Everything one scheduler needs."""

    ledger: LedgerConfig
    workers: Mapping[str, WorkerSetup]
    """By the worker's name: all there may be at the same time."""
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


class RolloutScheduler:
    """Body of the actor."""

    def __init__(self, setup: SchedulerSetup, state: LedgerState | None = None) -> None:
        self._setup = setup
        self._clock = AwakeClock(time.monotonic(), longest_s=2 * TICK_S)
        self._log: LedgerLog | None = None
        """Of the ledger's events, where this scheduler's batches are trained on."""
        self._ledger = self._new_ledger(state)
        self._ledger.suspend(self._now())
        self._workers = WorkerGroup(setup.workers, setup.placement)
        self._pool = WorkerPool(list(setup.workers), setup.all_workers)
        self._slots = SlotActivity()
        self._episode_times = EpisodeTimes()
        self._departures = Departures()
        self._leaving_nodes: dict[str, float] = {}
        """By Ray's id of a node that goes away: when."""
        self._restarts = RestartCounter()
        self._filters = GroupFilters(setup.group_filters, limit=setup.max_filtered_groups)
        self._filter_reasons: dict[int, str] = {}
        """By lease, why a filter dropped its group, until the lease is discarded."""
        self._stop_reasons: dict[int, CancelReason] = {}
        """By lease that was cancelled and finished all the same."""
        self._finished_trajectories: dict[int, Trajectory] = {}
        """By lease, until the ledger delivers or discards it."""
        self._tally = RolloutTally()
        self._files: BatchFiles | None = None
        if setup.folder is not None:
            self._files = BatchFiles(
                setup.folder,
                prefix=setup.file_prefix,
                group_size=setup.ledger.group_size,
                discarded_per_file=setup.discarded_per_file,
            )
        self._me: Any = None
        """This actor's handle, once started."""
        self._depth = depth_control(setup.ledger, self._ledger.alpha)
        self._last_batch_at: float | None = None
        """On the ledger's clock, which stops while suspended."""
        self._has_published = False
        self._fatal: EnvsdkError | None = None
        self._changed = asyncio.Event()
        """Set when a batch may be ready, or the run has failed."""
        self._all_checked_in = asyncio.Event()
        self._engines_are_full = False
        self._is_awaited = False
        """Somebody waits for a batch."""
        self._tasks: set[asyncio.Task[None]] = set()

    def _new_ledger(self, state: LedgerState | None) -> RolloutLedger:
        ledger = RolloutLedger(self._setup.ledger, state)
        if self._setup.log_folder is not None:
            self._log = LedgerLog(self._setup.log_folder, self._setup.ledger, state)
            recorded(ledger, self._log)
        return ledger

    async def start(self) -> None:
        """Start the workers and wait until each has checked in."""
        collect_rarely()
        self._in_background(collect_when_grown())
        self._me = ray.get_runtime_context().current_actor
        self._carry_out(self._pool.begin())
        self._in_background(self._tick())
        if self._setup.all_workers.is_elastic:
            self._in_background(self._follow_load())
        failed = asyncio.create_task(self._until_fatal())
        checked_in = asyncio.create_task(self._all_checked_in.wait())
        await asyncio.wait({failed, checked_in}, return_when=asyncio.FIRST_COMPLETED)
        failed.cancel()
        checked_in.cancel()
        self._raise_if_fatal()

    async def publish(self, version: int) -> None:
        """All engines sample under `version` from now on, and the trainer is at it.

        No lease is granted before the first call.
        """
        self._execute(self._ledger.publish(version, self._now()))
        if not self._has_published:
            self._has_published = True
            await self.resume()

    async def suspend(self) -> None:
        """Grant no lease and send no request to engines until `resume`. Deadlines stop meanwhile."""
        self._execute(self._ledger.suspend(self._now()))
        self._workers.broadcast(Control.SUSPEND)

    async def resume(self) -> None:
        """Continue after `suspend`. Does nothing before the first `publish`."""
        if not self._has_published:
            return
        self._workers.broadcast(Control.RESUME)
        self._execute(self._ledger.resume(self._now()))

    async def get_batch(self, batch_size: int, step: int = 0) -> RolloutBatch:
        """The next `batch_size` trajectories in complete groups. They are on disk when this returns.

        `step` names the file. Raises RolloutStalled when no batch will ever be ready. Before the first batch
        of the run, an episode that cannot begin (its prompt exceeds `sequence_length`) raises
        ConfigurationError; later it is a failed episode.
        """
        if self._files:
            self._files.begin(step)
        asked_at = self._ledger.active_s(self._now())
        if self._log:
            self._log.mark("asked", self._now(), step)
        while True:
            self._raise_if_fatal()
            self._changed.clear()
            had_idle_slot = self._ledger.has_idle_slot
            taken, commands = self._ledger.take(batch_size, self._now())
            if taken is not None:
                break
            self._execute(commands)
            self._is_awaited = True
            await self._changed.wait()
        self._is_awaited = False
        state = self._ledger.state()
        batch = self._assemble(taken)
        self._execute(commands)
        self._set_depth(asked_at, self._now(), had_idle_slot=had_idle_slot)
        self._restarts.reset()
        if self._log:
            # Before the batch is: the log never lags behind one that was handed out.
            self._log.mark("wrote", self._now(), step)
            self._log.flush()
        if self._files:
            await self._files.write_batch(batch, step, state)
        return batch

    def _set_depth(self, asked_at: float, now: float, *, had_idle_slot: bool) -> None:
        """After a batch: let generation run ahead further, or less far, if that is for the run to find."""
        before, self._last_batch_at = self._last_batch_at, self._ledger.active_s(now)
        if self._depth is None or before is None:
            return
        alpha = self._depth.observe(
            waited_s=self._last_batch_at - asked_at,
            lasted_s=self._last_batch_at - before,
            had_idle_slot=had_idle_slot,
        )
        if alpha is not None:
            self._execute(self._ledger.set_depth(alpha, now))

    async def begin_again(self, version: int) -> None:
        """Start the task list from its first task, under `version`: the next batch has the same tasks again.

        Episodes that still run are stopped; their slots then join in.
        """
        now = self._now()
        # Lease ids continue, so that a late report is not mistaken for one of this round.
        self._ledger = self._new_ledger(_from_the_first_task(self._ledger.state(), version))
        self._has_published = True
        self._finished_trajectories.clear()
        for slot_id, lease_id in self._slots.begin_again():
            self._stop(slot_id, lease_id, CancelReason.SURPLUS)
        self._workers.broadcast(Control.RESUME)
        self._execute(self._ledger.publish(version, now))
        for name in self._pool.names:
            worker = self._workers.workers.get(name)
            if worker is not None and worker.checked_in:
                idle = {s: tag for s, tag in worker.setup.slots.items() if s not in self._slots.stragglers}
                self._execute(self._ledger.add_slots(idle, now))

    async def engine_joined(self, name: str, actor: Any) -> None:
        """This engine was started, or started again, and has the newest weights."""
        self._workers.engine_joined(name, actor)

    async def engine_left(self, name: str) -> None:
        """This engine takes no more requests until it joins again. Its open requests may end there."""
        self._workers.engine_left(name)

    async def engines_are_full(self, are_full: bool) -> None:
        """Whether requests wait for a place at an engine, until told otherwise."""
        self._engines_are_full = are_full

    async def node_leaves(self, node: str, grace_s: float) -> None:
        """This node goes away: its workers play what can end in that time, and others take their places."""
        now = self._now()
        self._leaving_nodes[node] = now + grace_s
        self._depart([name for name, worker in self._workers.workers.items() if worker.node == node], now)

    async def num_ready(self) -> int:
        """Trajectories in groups that are ready for the next batch."""
        return self._ledger.num_ready_groups * self._setup.ledger.group_size

    async def total_calls(self) -> int:
        """Ray calls made for rollouts since start, by all workers."""
        return await self._workers.num_calls()

    async def close(self) -> None:
        """End the workers."""
        for task in self._tasks:
            task.cancel()
        self._workers.close()
        if self._log:
            self._log.flush()  # a run that ended without another batch is explained too

    async def exchange(
        self, worker_id: WorkerId, number: int, messages: Sequence[FromWorker]
    ) -> list[ToWorker]:
        """Take a worker's messages and wait for messages to it. `number` is that of the long poll's call."""
        worker = self._workers.workers.get(worker_id.name)
        if worker is None or worker.worker_id != worker_id:
            return []  # a late call of a process that has been replaced
        now = self._now()
        if not worker.checked_in:
            self._workers.check_in(worker, is_suspended=self._ledger.is_suspended)
            self._pool.checked_in(worker_id.name)
            if worker_id.name in self._pool.names:
                self._execute(self._ledger.add_slots(worker.setup.slots, now))
            if worker.node in self._leaving_nodes:
                self._depart([worker_id.name], now)
            if self._pool.is_complete:
                self._all_checked_in.set()
        for message in messages:
            self._receive(worker, message, now)
        if messages and self._pool.is_leaving(worker_id.name):
            self._end_if_empty(worker)
        return await worker.outbox.collect(number)

    def _receive(self, worker: Worker, message: FromWorker, now: float) -> None:
        slot_id = message.slot_id
        if isinstance(message, Finished) and message.trajectory.failure is None:
            self._restarts.progressed(worker.worker_id.name)
            if (began := self._slots.began.get(slot_id)) is not None:
                self._episode_times.add(message.trajectory.task.tag, now - began)
        reason = self._slots.stop_reasons.get(slot_id)
        if self._slots.reported(slot_id):
            if not self._pool.is_leaving(worker.worker_id.name):
                self._execute(self._ledger.add_slots({slot_id: worker.setup.slots[slot_id]}, now))
        elif isinstance(message, Finished):
            if reason is not None:
                self._stop_reasons[message.lease_id] = reason
            self._finished(message.lease_id, message.trajectory, now)
        else:
            if reason is not None:
                self._tally.add_discarded(worker.setup.slots[slot_id], message.num_tokens, reason)
            self._execute(self._ledger.slots_idle([slot_id], now))

    def _finished(self, lease_id: int, trajectory: Trajectory, now: float) -> None:
        failure = trajectory.failure
        if failure is not None:
            self._tally.add_failure(failure, tag=trajectory.task.tag)
            # Once batches are delivered, a prompt that is too long concerns its own task, not the run.
            if failure.boundary is Boundary.CONFIGURATION and not self._ledger.counts.delivered:
                self._fail(ConfigurationError(failure.message))
        self._finished_trajectories[lease_id] = trajectory
        self._execute(
            self._ledger.finished(
                lease_id, now, oldest_version=trajectory.oldest_version, failed=failure is not None
            )
        )

    def _execute(self, commands: Iterable[Command]) -> None:
        for command in commands:
            if isinstance(command, Grant):
                order = self._order(command.lease)
                self._slots.play(command.slot_id, order, self._now())
                self._workers.send(command.slot_id, Play(command.slot_id, order))
            elif isinstance(command, Cancel):
                self._stop(command.slot_id, command.lease_id, command.reason)
            elif isinstance(command, Discard):
                self._discard(command)
            elif isinstance(command, GroupReady):
                self._judge(command)
            elif isinstance(command, Stalled):
                self._fail(RolloutStalled(f"{command.message}{self._tally.failure_note()}"))

    def _carry_out(self, commands: Iterable[WorkerCommand]) -> None:
        """Start, retire and end workers."""
        for command in commands:
            if isinstance(command, StartWorker):
                running = self._workers.supervise(command.life, self._me, self._worker_died)
                self._in_background(running)
            elif isinstance(command, RetireWorker):
                worker = self._workers.workers[command.name]
                self._execute(self._ledger.retire_slots(worker.setup.slots, self._now()))
                self._end_if_empty(worker)
            else:
                self._departures.forget(command.name)
                self._workers.end(command.name)

    def _depart(self, names: Sequence[str], now: float) -> None:
        """The node of these workers goes away."""
        self._carry_out(self._pool.leave(names))
        for name in names:
            if self._pool.is_leaving(name):
                left_s = self._leaving_nodes[self._workers.workers[name].node] - now
                self._departures.leave(name, now, max(0.0, left_s))
        self._hand_over_what_cannot_end(now)

    def _hand_over_what_cannot_end(self, now: float) -> None:
        """Play the episodes elsewhere that would not end before their node goes."""
        playing, began = self._slots.playing, self._slots.began
        for name in self._departures.names:
            episodes = [
                PlayedEpisode(slot_id, playing[slot_id].task.tag, began[slot_id])
                for slot_id in self._workers.workers[name].setup.slots
                if slot_id in playing and slot_id not in self._slots.stop_deadlines
            ]
            slots = self._departures.cannot_end(name, episodes, self._episode_times, now)
            if slots:
                self._execute(self._ledger.hand_over(slots, now))

    def _end_if_empty(self, worker: Worker) -> None:
        if not any(slot_id in self._slots.playing for slot_id in worker.setup.slots):
            self._carry_out(self._pool.emptied(worker.worker_id.name))

    async def _follow_load(self) -> None:
        """Look at the workers' load again and again, and add or retire some."""
        last = self._now()
        while True:
            await asyncio.sleep(LOAD_LOOK_S)
            uses = await self._workers.cpu(self._pool.names)
            now = self._now()
            if not self._ledger.is_suspended and uses:
                load = WorkerLoad(
                    num_workers=len(self._pool.names),
                    num_waiting=self._ledger.num_waiting,
                    num_playing=self._num_playing(),
                    is_awaited=self._is_awaited,
                    may_run_ahead=self._ledger.alpha > 0,
                    engines_are_full=self._engines_are_full,
                    worker_cpu=sum(use.own_cores for use in uses),
                    node_cpu=min(use.node_share for use in uses),
                )
                self._carry_out(self._pool.look(load, now - last))
            last = now

    def _num_playing(self) -> int:
        """Slots that play, without those of workers that leave."""
        name_of = self._workers.name_of_slot
        return sum(not self._pool.is_leaving(name_of[slot_id]) for slot_id in self._slots.playing)

    def _stop(self, slot_id: str, lease_id: int, reason: CancelReason) -> None:
        self._slots.stop(slot_id, self._now() + self._setup.stop_grace_s, reason)
        self._workers.send(slot_id, Stop(slot_id, lease_id))

    def _order(self, lease: Lease) -> EpisodeOrder:
        task, seed = lease.task, self._setup.run_seed
        return EpisodeOrder(
            lease_id=lease.lease_id,
            group_id=lease.group_id,
            member=lease.member,
            task=task,
            seed=task.seed(seed),
            policy_seed=task.policy_seed(seed, member=lease.member, attempt=lease.attempt),
        )

    def _discard(self, discard: Discard) -> None:
        trajectory = self._finished_trajectories.pop(discard.lease_id, None)
        if trajectory is None:
            return
        reason = self._filter_reasons.pop(discard.lease_id, discard.reason)
        why = self._stop_reasons.pop(discard.lease_id, discard.reason)
        self._tally.add_discarded(trajectory.task.tag, num_sampled_tokens(trajectory), why)
        if self._files and (write := self._files.add_discarded(trajectory, f"{discard.end}: {reason}")):
            self._in_background(write)

    def _judge(self, ready: GroupReady) -> None:
        """Ask the group filters; a group that they drop is replaced by another task."""
        finished = self._finished_trajectories
        group = {lease_id: finished[lease_id] for lease_id in ready.lease_ids if lease_id in finished}
        is_awaited = self._ledger.num_ready_groups <= self._setup.ledger.groups_per_batch
        try:
            reason = self._filters.judge(list(group.values()), is_awaited=is_awaited)
        except RolloutStalled as error:
            self._fail(error)
            return
        if reason is None:
            self._changed.set()
            return
        self._filter_reasons |= dict.fromkeys(group, reason)
        self._execute(self._ledger.reject_group(ready.group_id, self._now()))

    def _assemble(self, taken: Batch) -> RolloutBatch:
        groups = [[self._delivered(group, lease) for lease in group.lease_ids] for group in taken.groups]
        tally, self._tally = self._tally, RolloutTally()
        depth = None if self._depth is None else self._depth.alpha
        counts, filtered = self._ledger.counts, self._filters.delivered()
        return replace(tally.batch(taken.version, groups, counts, filtered, depth), workers=self._pool.counts)

    def _delivered(self, group: BatchGroup, lease_id: int) -> Trajectory:
        """The trajectory of a lease; one without turns when its worker never reported it."""
        trajectory = self._finished_trajectories.pop(lease_id, None)
        if trajectory is not None:
            return trajectory
        limit_s = self._setup.ledger.episode_deadline_s
        if group.failures[lease_id] is CancelReason.WORKER_LOST:
            kind = "worker_lost"
            message = f"its worker was lost, {self._setup.ledger.max_group_attempts} times in a row"
        else:
            kind, message = "episode_deadline", f"no end within episode_deadline_s={limit_s:g}"
        failure = Failure(boundary=Boundary.SCHEDULER, kind=kind, message=message)
        self._tally.add_failure(failure)
        return self._failed(group.task, group.group_id, lease_id, failure, limit_s)

    def _failed(
        self, task: Task, group_id: int, lease_id: int, failure: Failure, lasted_s: float
    ) -> Trajectory:
        now = time.time()
        return Trajectory(
            trajectory_id=f"{task.split}-{lease_id}",
            group_id=group_id,
            task=task,
            seed=task.seed(self._setup.run_seed),
            outcome=Outcome.FAILED,
            success=False,
            turns=(),
            tokens=None,
            failure=failure,
            started_at=now - lasted_s,
            ended_at=now,
        )

    def _now(self) -> float:
        return self._clock.at(time.monotonic())

    async def _tick(self) -> None:
        was_stopped = False
        while True:
            before = time.monotonic()
            await asyncio.sleep(TICK_S)
            # After a stop the reports that waited come first, which takes at most one more turn.
            was_stopped = not was_stopped and time.monotonic() - before > 2 * TICK_S
            if not was_stopped:
                self._end_what_is_late(self._now())

    def _end_what_is_late(self, now: float) -> None:
        """End episodes past their deadline, and workers that did not stop one in time."""
        self._execute(self._ledger.tick(now))
        self._hand_over_what_cannot_end(now)
        for name in {self._workers.name_of_slot[slot_id] for slot_id in self._slots.hung(now)}:
            self._slots.forget(self._workers.workers[name].setup.slots)
            self._workers.kill(name)

    def _worker_died(self, worker: Worker, why: str, note: Note | None) -> bool:
        """Record the failure, and play the worker's episodes elsewhere. Returns whether it is needed again.

        A note names the environment that held up the worker: its episode has failed, the others have not.
        """
        name = worker.worker_id.name
        if name not in self._pool.names and not self._pool.is_leaving(name):
            return False  # it had been told to end
        self._tally.add_failure(Failure(boundary=Boundary.SCHEDULER, kind="worker_died", message=why))
        self._departures.forget(name)
        if note is None and not self._pool.is_leaving(name):
            self._restarts.died(name)
        elif note is None:
            pass
        elif (order := self._slots.playing.get(note.name)) is not None:
            failure = timed_out(note.during, note.limit_s).failure
            failed = self._failed(order.task, order.group_id, order.lease_id, failure, note.limit_s)
            self._receive(worker, Finished(note.name, order.lease_id, failed), self._now())
        if (verdict := self._restarts.verdict(name)) is not None:
            self._fail(RolloutStalled(f"{verdict}: {why}"))
        worker.outbox.close()
        self._slots.forget(worker.setup.slots)
        if worker.checked_in:
            self._execute(self._ledger.remove_slots(worker.setup.slots, self._now()))
        return self._pool.died(name)

    def _in_background(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        task.add_done_callback(self._background_ended)
        self._tasks.add(task)

    def _background_ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._fail(as_envsdk_error(error, "the scheduler failed"))

    def _fail(self, error: EnvsdkError) -> None:
        self._fatal = self._fatal or error
        self._changed.set()

    async def _until_fatal(self) -> None:
        while self._fatal is None:
            await self._changed.wait()
            self._changed.clear()

    def _raise_if_fatal(self) -> None:
        if self._fatal is not None:
            raise self._fatal


def _from_the_first_task(state: LedgerState, version: int) -> LedgerState:
    """A ledger made from this starts at the first task and keeps the counts."""
    none_yet = dict.fromkeys(state.cursors, 0)
    return replace(state, version=version, cursors=none_yet, shares=none_yet, unfinished=())
