"""Shell: RolloutScheduler, the Ray actor around the ledger.

    start -> publish -> (get_batch -> publish)* -> close

    EnvWorker ==long poll== exchange -> RolloutLedger -> commands -> outboxes of the workers
                                              |
                                     get_batch: take -> write to disk -> return

It decides nothing itself: events go into the ledger, commands come out. A batch is on disk,
together with the ledger's state, before it is handed out: that file is what makes delivery
exactly-once across a `kill -9`.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import time
from collections import Counter
from collections.abc import Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import RayActorError, RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from envsdk.failures import (
    Boundary,
    ConfigurationError,
    EnvsdkError,
    Failure,
    RolloutStalled,
    as_envsdk_error,
)
from envsdk.managers.env_host import timed_out
from envsdk.managers.env_worker import (
    Control,
    EngineJoined,
    EngineLeft,
    EnvWorker,
    Finished,
    FromWorker,
    Play,
    Stop,
    ToWorker,
    WorkerSetup,
)
from envsdk.managers.group_judge import GroupFilters
from envsdk.managers.ledger import RolloutLedger
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
from envsdk.managers.traj_env_manager import EpisodeOrder
from envsdk.net.long_poll import Outbox
from envsdk.processes.call_watch import Note, read_note
from envsdk.store.trajectories import DISCARDED_PREFIX, write_trajectories
from envsdk.trajectory import Outcome, Task, TokenArrays, Trajectory

TICK_S = 0.5
NOTE_PATIENCE_S = 10.0
MAX_RESTARTS_WITHOUT_PROGRESS = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerSetup:
    """What one scheduler runs."""

    ledger: LedgerConfig
    workers: Mapping[str, WorkerSetup]
    """By worker id."""
    run_seed: int
    folder: Path | None = None
    """Where batches are written; None keeps them in memory (validation writes nothing it cannot redo)."""
    file_prefix: str = "step"
    group_filters: Sequence[str] = ()
    """Entry points in `envsdk.group_filters`, or `package.module:function`."""
    max_filtered_groups: int = 1_000
    """Groups they may drop between two batches."""
    discarded_per_file: int = 256
    """Trajectories that are thrown away wait for so many, or for the next batch, until they are written."""
    stop_grace_s: float = 10.0
    """A worker that has not stopped a cancelled episode by then hangs, and is replaced."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutBatch:
    """One batch: whole groups, failed members included as data."""

    version: int
    """The trainer's version at the take."""
    groups: Sequence[Sequence[Trajectory]]
    ledger_counts: Mapping[str, int] = field(default_factory=dict)
    """Ends of leases since the start of the run."""
    failures: Mapping[str, int] = field(default_factory=dict)
    """Failed episodes since the last batch, by `boundary/kind`."""
    failing_tags: Mapping[str, str] = field(default_factory=dict)
    """Tags of which every episode since the last batch failed, and how: none of them is in this batch."""
    filtered: Mapping[str, int] = field(default_factory=dict)
    """Groups dropped since the last batch, by group filter."""
    discarded_tokens: int = 0
    """Sampled tokens thrown away since the last batch."""

    @property
    def trajectories(self) -> list[Trajectory]:
        return [trajectory for group in self.groups for trajectory in group]


@dataclass(slots=True)
class _Worker:
    """One incarnation of a worker process."""

    name: str
    worker_id: str
    setup: WorkerSetup
    actor: Any
    outbox: Outbox[ToWorker] = field(default_factory=Outbox)
    checked_in: bool = False


class RolloutScheduler:
    """Body of the actor."""

    def __init__(self, setup: SchedulerSetup, state: LedgerState | None = None) -> None:
        self._setup = setup
        self._ledger = RolloutLedger(setup.ledger, state)
        self._ledger.suspend(time.monotonic())
        self._filters = GroupFilters(setup.group_filters, limit=setup.max_filtered_groups)
        self._filtered: dict[int, str] = {}
        """Why a filter dropped a lease's group, until the lease is discarded."""
        self._begun = False
        self._engines: dict[str, Any] = {}
        """Those that workers may send requests to, by name."""
        for worker in setup.workers.values():
            self._engines |= worker.engines
        self._workers: dict[str, _Worker] = {}
        self._worker_of_slot = {slot: name for name, worker in setup.workers.items() for slot in worker.slots}
        self._held: dict[int, Trajectory] = {}
        self._playing: dict[str, EpisodeOrder] = {}
        """By slot, until the worker reports it finished or released."""
        self._stragglers: set[str] = set()
        """Those of `_playing` that still play for a ledger that has been replaced."""
        self._discarded: list[tuple[Trajectory, str]] = []
        """Not written yet, each with how and why its lease ended."""
        self._discarded_tokens = 0
        """Sampled and thrown away since the last batch."""
        self._discarded_files = 0
        """Written since the last batch."""
        self._next_number = 0
        """Names the files of the next batch."""
        self._failures: Counter[str] = Counter()
        self._failed_by_tag: dict[str, list[Failure]] = {}
        """Since the last batch."""
        self._stopping: dict[str, float] = {}
        """When a slot told to stop must have done so."""
        self._fatal: EnvsdkError | None = None
        self._changed = asyncio.Event()
        self._all_checked_in = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._closing = False
        self._restarts_without_progress: Counter[str] = Counter()
        """By worker: deaths nobody knows the reason of, since the last batch or since an episode of it ended
        well."""

    async def start(self) -> None:
        """Start the workers and wait until each has checked in."""
        me = ray.get_runtime_context().current_actor
        for name in self._setup.workers:
            self._in_background(self._supervise(name, me))
        self._in_background(self._tick())
        changed = asyncio.create_task(self._until_fatal())
        checked_in = asyncio.create_task(self._all_checked_in.wait())
        await asyncio.wait({changed, checked_in}, return_when=asyncio.FIRST_COMPLETED)
        changed.cancel()
        checked_in.cancel()
        self._raise_if_fatal()

    async def publish(self, version: int) -> None:
        """All engines sample under `version` from now on, and the trainer is at it.

        Nothing is granted before the first call.
        """
        self._execute(self._ledger.publish(version, time.monotonic()))
        if not self._begun:
            self._begun = True
            await self.resume()

    async def suspend(self) -> None:
        """Grant nothing and dispatch no request until `resume`; deadlines do not run meanwhile."""
        self._execute(self._ledger.suspend(time.monotonic()))
        self._broadcast(Control.SUSPEND)

    async def resume(self) -> None:
        """Go on after `suspend`. Does nothing before the first `publish`."""
        if not self._begun:
            return
        self._broadcast(Control.RESUME)
        self._execute(self._ledger.resume(time.monotonic()))

    async def get_batch(self, batch_size: int, number: int = 0) -> RolloutBatch:
        """The next `batch_size` trajectories in complete groups, on disk when this returns.

        `number` names the file. Raises RolloutStalled when none will ever be ready, and, until the first
        batch of the run, ConfigurationError when an episode cannot begin (a prompt longer than
        `sequence_length`); later such an episode is a failed one.
        """
        self._next_number = number
        while True:
            self._raise_if_fatal()
            self._changed.clear()
            taken, commands = self._ledger.take(batch_size, time.monotonic())
            if taken is not None:
                break
            self._execute(commands)
            await self._changed.wait()
        state = self._ledger.state()
        batch = self._assemble(taken)
        self._execute(commands)
        self._restarts_without_progress.clear()
        await self._write(batch, number, state)
        return batch

    async def begin_again(self, version: int) -> None:
        """Begin the task list from its first task under `version`: the next batch is the same frozen list.

        What still runs is stopped, and its slot plays on once it has.
        """
        now = time.monotonic()
        # Lease ids go on, so that nothing is taken for an episode of another round.
        self._ledger = RolloutLedger(self._setup.ledger, _from_the_first_task(self._ledger.state(), version))
        self._begun = True
        self._held.clear()
        for slot_id, order in self._playing.items():
            if slot_id not in self._stopping:
                self._stop(slot_id, order.lease_id)
        self._stragglers = set(self._playing)
        self._broadcast(Control.RESUME)
        self._execute(self._ledger.publish(version, now))
        for worker in self._workers.values():
            if worker.checked_in:
                idle = {s: tag for s, tag in worker.setup.slots.items() if s not in self._stragglers}
                self._execute(self._ledger.add_slots(idle, now))

    async def engine_joined(self, name: str, actor: Any) -> None:
        """The engine of this name was started, or started again, and has the newest weights."""
        self._engines[name] = actor
        self._broadcast(EngineJoined(name, actor))

    async def engine_left(self, name: str) -> None:
        """This engine takes no more requests until it joins again; what runs there may end there."""
        self._engines.pop(name, None)
        self._broadcast(EngineLeft(name))

    async def num_ready(self) -> int:
        """Trajectories in groups that are ready for the next batch."""
        return self._ledger.num_ready_groups * self._setup.ledger.group_size

    async def total_calls(self) -> int:
        """Ray calls made for rollouts since start, over all workers."""
        return sum(await asyncio.gather(*(w.actor.num_calls.remote() for w in self._workers.values())))

    async def close(self) -> None:
        """End the workers."""
        self._closing = True
        self._broadcast(Control.CLOSE)
        for task in self._tasks:
            task.cancel()
        for worker in self._workers.values():
            ray.kill(worker.actor)

    async def exchange(self, worker_id: str, number: int, messages: Sequence[FromWorker]) -> list[ToWorker]:
        """Take in what a worker has finished and wait for something for it to do."""
        worker = self._workers[worker_id.partition("#")[0]]
        if worker.worker_id != worker_id:
            return []  # a last word of an incarnation that has been replaced
        now = time.monotonic()
        if not worker.checked_in:
            self._check_in(worker, now)
        for message in messages:
            self._heard(worker, message, now)
        return await worker.outbox.collect(number)

    def _check_in(self, worker: _Worker, now: float) -> None:
        worker.checked_in = True
        if self._ledger.is_suspended:
            worker.outbox.put(Control.SUSPEND)
        for engine in worker.setup.engines.keys() - self._engines.keys():
            worker.outbox.put(EngineLeft(engine))
        for engine, actor in self._engines.items():
            if worker.setup.engines.get(engine) is not actor:
                worker.outbox.put(EngineJoined(engine, actor))
        self._execute(self._ledger.add_slots(worker.setup.slots, now))
        if len(self._workers) == len(self._setup.workers) and all(
            worker.checked_in for worker in self._workers.values()
        ):
            self._all_checked_in.set()

    def _heard(self, worker: _Worker, message: FromWorker, now: float) -> None:
        slot_id = message.slot_id
        self._playing.pop(slot_id, None)
        self._stopping.pop(slot_id, None)
        if slot_id in self._stragglers:
            self._stragglers.remove(slot_id)
            self._execute(self._ledger.add_slots({slot_id: worker.setup.slots[slot_id]}, now))
        elif isinstance(message, Finished):
            if message.trajectory.failure is None:
                self._restarts_without_progress.pop(worker.name, None)
            self._finished(message.lease_id, message.trajectory, now)
        else:
            self._execute(self._ledger.slots_idle([slot_id], now))

    def _finished(self, lease_id: int, trajectory: Trajectory, now: float) -> None:
        failure = trajectory.failure
        if failure is not None:
            self._failed_by_tag.setdefault(trajectory.task.tag, []).append(failure)
            self._failures[f"{failure.boundary}/{failure.kind}"] += 1
            # Once batches come, a task that does not fit is one of its own kind: not worth the run.
            if failure.boundary is Boundary.CONFIGURATION and not self._ledger.counts.delivered:
                self._fail(ConfigurationError(failure.message))
        self._held[lease_id] = trajectory
        self._execute(
            self._ledger.finished(
                lease_id, now, oldest_version=trajectory.oldest_version, failed=failure is not None
            )
        )

    def _execute(self, commands: Iterable[Command]) -> None:
        for command in commands:
            if isinstance(command, Grant):
                order = self._playing[command.slot_id] = self._order(command.lease)
                self._put(command.slot_id, Play(command.slot_id, order))
            elif isinstance(command, Cancel):
                self._stop(command.slot_id, command.lease_id)
            elif isinstance(command, Discard):
                self._discard(command)
            elif isinstance(command, GroupReady):
                self._group_ready(command)
            elif isinstance(command, Stalled):
                self._fail(RolloutStalled(f"{command.message}{self._failure_note()}"))

    def _stop(self, slot_id: str, lease_id: int) -> None:
        self._stopping[slot_id] = time.monotonic() + self._setup.stop_grace_s
        self._put(slot_id, Stop(slot_id, lease_id))

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
        trajectory = self._held.pop(discard.lease_id, None)
        if trajectory is None:
            return
        reason = self._filtered.pop(discard.lease_id, discard.reason)
        self._discarded_tokens += _num_sampled(trajectory.tokens)
        if self._setup.folder is None:
            return
        self._discarded.append((trajectory, f"{discard.end}: {reason}"))
        if len(self._discarded) >= self._setup.discarded_per_file:
            self._in_background(_write_discarded(*self._take_discarded(self._setup.folder)))

    def _group_ready(self, ready: GroupReady) -> None:
        reported = {lease: self._held[lease] for lease in ready.lease_ids if lease in self._held}
        is_awaited = self._ledger.num_ready_groups <= self._setup.ledger.groups_per_batch
        try:
            reason = self._filters.judge(list(reported.values()), is_awaited=is_awaited)
        except RolloutStalled as error:
            self._fail(error)
            return
        if reason is None:
            self._changed.set()
            return
        self._filtered |= dict.fromkeys(reported, reason)
        self._execute(self._ledger.reject_group(ready.group_id, time.monotonic()))

    def _put(self, slot_id: str, message: ToWorker) -> None:
        self._workers[self._worker_of_slot[slot_id]].outbox.put(message)

    def _broadcast(self, message: ToWorker) -> None:
        for worker in self._workers.values():
            if worker.checked_in:
                worker.outbox.put(message)

    def _assemble(self, taken: Batch) -> RolloutBatch:
        groups = [
            [self._take_held(group, lease_id) for lease_id in group.lease_ids] for group in taken.groups
        ]
        counts = self._ledger.counts
        failures, self._failures = self._failures, Counter()
        failed_by_tag, self._failed_by_tag = self._failed_by_tag, {}
        succeeded = {
            trajectory.task.tag for group in groups for trajectory in group if not trajectory.failure
        }
        discarded_tokens, self._discarded_tokens = self._discarded_tokens, 0
        return RolloutBatch(
            version=taken.version,
            groups=groups,
            ledger_counts={
                name: getattr(counts, name)
                for name in ("started", "delivered", "filtered", "stale", "failed", "cancelled")
            },
            failures=dict(failures),
            failing_tags={
                tag: f"{len(failed)} failed, the last one: {failed[-1]}"
                for tag, failed in failed_by_tag.items()
                if tag not in succeeded
            },
            filtered=self._filters.delivered(),
            discarded_tokens=discarded_tokens,
        )

    def _take_held(self, group: BatchGroup, lease_id: int) -> Trajectory:
        held = self._held.pop(lease_id, None)
        return held if held is not None else self._without_report(group, lease_id)

    def _without_report(self, group: BatchGroup, lease_id: int) -> Trajectory:
        """An episode that never reported is data all the same."""
        limit_s = self._setup.ledger.episode_deadline_s
        if group.failures[lease_id] is CancelReason.WORKER_LOST:
            message = f"its worker was lost, {self._setup.ledger.max_group_attempts} times in a row"
            kind = "worker_lost"
        else:
            kind, message = "episode_deadline", f"no end within episode_deadline_s={limit_s:g}"
        self._failures[f"{Boundary.SCHEDULER}/{kind}"] += 1
        failure = Failure(boundary=Boundary.SCHEDULER, kind=kind, message=message)
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

    def _take_discarded(self, folder: Path) -> tuple[Path, list[tuple[Trajectory, str]]]:
        """What is to be written now, and where: files of one batch after the first end in 1, 2 ..."""
        name = f"{DISCARDED_PREFIX}{self._setup.file_prefix}_{self._next_number:06d}"
        discarded, self._discarded = self._discarded, []
        part = f"_{self._discarded_files}" if self._discarded_files else ""
        if not part:
            for left_by_a_killed_run in folder.glob(f"{name}_*.parquet"):
                left_by_a_killed_run.unlink()
        self._discarded_files += bool(discarded)
        return folder / f"{name}{part}.parquet", discarded

    async def _write(self, batch: RolloutBatch, number: int, state: LedgerState) -> None:
        folder = self._setup.folder
        if folder is None:
            return
        last_discarded = self._take_discarded(folder)
        self._next_number, self._discarded_files = number + 1, 0
        await _write_discarded(*last_discarded)
        metadata = {
            "ledger_state": json.dumps(state.to_dict()),
            "version": str(batch.version),
            "group_size": str(self._setup.ledger.group_size),
        }
        path = folder / f"{self._setup.file_prefix}_{number:06d}.parquet"
        await asyncio.to_thread(write_trajectories, path, batch.trajectories, metadata=metadata)

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(TICK_S)
            self._end_what_is_late(time.monotonic())

    def _end_what_is_late(self, now: float) -> None:
        """Episodes past their deadline, and workers that do not stop one."""
        self._execute(self._ledger.tick(now))
        hung = {self._worker_of_slot[slot] for slot, limit in self._stopping.items() if limit < now}
        for name in hung:
            self._forget_slots(name)
            ray.kill(self._workers[name].actor)

    async def _supervise(self, name: str, me: Any) -> None:
        """Keep one worker running: a dead one is replaced and its leases run elsewhere."""
        first_setup = self._setup.workers[name]
        remote_worker: Any = ray.remote(num_cpus=0, max_restarts=0)(EnvWorker)
        for incarnation in itertools.count():
            worker_id = f"{name}#{incarnation}"
            setup = replace(first_setup, engines=dict(self._engines))
            actor = remote_worker.remote(worker_id, setup)
            self._workers[name] = _Worker(name, worker_id, setup, actor)
            where = None
            try:
                where = await actor.note.remote()
                await actor.run.remote(me)
                return
            except RayActorError as died:
                if self._closing:
                    return
                self._worker_died(name, died, None if where is None else await _take_note(*where))
            except Exception as error:  # noqa: BLE001 - boundary: scheduler; the worker's own code failed
                self._fail(as_envsdk_error(error, f"worker {name} failed"))
                return

    def _worker_died(self, name: str, died: RayActorError, note: Note | None) -> None:
        worker = self._workers[name]
        self._failures[f"{Boundary.SCHEDULER}/worker_died"] += 1
        if note is None:
            self._restarts_without_progress[name] += 1
        elif (order := self._playing.get(note.name)) is not None:
            failure = timed_out(note.during, note.limit_s).failure
            failed = self._failed(order.task, order.group_id, order.lease_id, failure, note.limit_s)
            self._heard(worker, Finished(note.name, order.lease_id, failed), time.monotonic())
        if self._restarts_without_progress[name] > MAX_RESTARTS_WITHOUT_PROGRESS:
            message = f"worker {name} died {self._restarts_without_progress[name]} times in a row: {died}"
            self._fail(RolloutStalled(message))
        # It may only have been out of reach; two of one name must not run.
        ray.kill(worker.actor)
        worker.outbox.close()
        self._forget_slots(name)
        if worker.checked_in:
            slots = self._setup.workers[name].slots
            self._execute(self._ledger.remove_slots(slots, time.monotonic()))

    def _forget_slots(self, name: str) -> None:
        for slot_id in self._setup.workers[name].slots:
            self._playing.pop(slot_id, None)
            self._stragglers.discard(slot_id)
            self._stopping.pop(slot_id, None)

    def _in_background(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        task.add_done_callback(self._background_ended)
        self._tasks.append(task)

    def _background_ended(self, task: asyncio.Task[None]) -> None:
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

    def _failure_note(self) -> str:
        if not self._failures:
            return ""
        counted = ", ".join(f"{count} x {kind}" for kind, count in self._failures.most_common(5))
        return f" Failures since the last batch: {counted}."


async def _take_note(node_id: str, path: Path) -> Note | None:
    """What the watcher of a worker on that machine said, if it killed it."""
    where = NodeAffinitySchedulingStrategy(node_id, soft=False)
    reading = ray.remote(num_cpus=0, max_retries=0)(read_note).options(scheduling_strategy=where).remote(path)
    try:
        async with asyncio.timeout(NOTE_PATIENCE_S):
            note: Note | None = await reading
            return note
    except (TimeoutError, RayError):
        return None  # the machine is gone as well


def _from_the_first_task(state: LedgerState, version: int) -> LedgerState:
    """What a ledger needs to begin the task list again and count on."""
    none_yet = dict.fromkeys(state.cursors, 0)
    return replace(state, version=version, cursors=none_yet, shares=none_yet, unfinished=())


async def _write_discarded(path: Path, discarded: Sequence[tuple[Trajectory, str]]) -> None:
    if discarded:
        trajectories = [trajectory for trajectory, _ in discarded]
        ends = json.dumps([end for _, end in discarded])
        await asyncio.to_thread(write_trajectories, path, trajectories, metadata={"ends": ends})


def _num_sampled(tokens: TokenArrays | None) -> int:
    return 0 if tokens is None else int(tokens.response_mask.sum())
