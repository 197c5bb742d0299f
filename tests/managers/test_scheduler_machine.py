"""The scheduler under random events, with simulated workers in virtual time."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from ray.exceptions import ActorDiedError

from envsdk.algorithms.task_samplers.prefixes import Prefix, PrefixArgs
from envsdk.base.processes.call_watch import KillReport, read_kill_report
from envsdk.base.processes.cpu_meter import CpuUse
from envsdk.contracts.failures import Boundary, Failure, RolloutStalled
from envsdk.contracts.trajectory import Outcome, RolloutBatch, TokenLog, Trajectory, VersionSpan
from envsdk.engines.sampling import SamplingParams
from envsdk.managers import ledger_shell, slot_activity, worker_group
from envsdk.managers import scheduler as scheduler_module
from envsdk.managers.env_worker import (
    Control,
    Finished,
    FromWorker,
    Play,
    Released,
    Stop,
    ToWorker,
    WorkerId,
    WorkerSetup,
)
from envsdk.managers.episode import EpisodeOrder
from envsdk.managers.ledger_types import LedgerConfig
from envsdk.managers.scheduler import RolloutScheduler, SchedulerSetup
from envsdk.managers.worker_pool import WorkerDemandConfig, WorkerPoolConfig
from tests.envsdk.engines.simulated_engines import VirtualTimeLoop
from tests.trajectories import trajectory_with

DEADLINE_S, GRACE_S, TICK_S = 100.0, 10.0, 5.0
SLOTS = {"w0": ("w0/a/0", "w0/a/1", "w0/a/2"), "w1": ("w1/a/0", "w1/a/1"), "w2": ("w2/a/0",)}
GRACES = st.sampled_from([0.0, 4 * TICK_S, 3 * DEADLINE_S])
SLACK_S = 4 * TICK_S
"""For the next tick, and for one that a stop of the scheduler puts off."""
BUSY, IDLE = CpuUse(own_cores=1.0, node_share=0.5), CpuUse(own_cores=0.0, node_share=0.1)


def drop_some(group: Sequence[Trajectory]) -> str | None:
    """A group filter."""
    return "unlucky" if group[0].group_id % 3 == 2 else None


def trajectory(order: EpisodeOrder, version: int, *, failed: bool = False) -> Trajectory:
    log = TokenLog()
    log.append_prompt([1])
    log.append_sampled([2], [-0.5], [VersionSpan(version=version, start=0, end=1)])
    return trajectory_with(
        trajectory_id=f"{order.task.split}-{order.lease_id}",
        group_id=order.group_id,
        task=order.task,
        seed=order.seed,
        outcome=Outcome.FAILED if failed else Outcome.TERMINATED,
        success=not failed,
        tokens=log.arrays(),
        failure=Failure(boundary=Boundary.ENVIRONMENT, kind="raised", message="") if failed else None,
    )


class Remote:
    """A method of an actor."""

    def __init__(self, method: Callable[..., Any]) -> None:
        self.remote = method


@dataclass(frozen=True)
class Told:
    """When a slot was told to stop."""

    awake_s: float
    """On the clock that the scheduler's stops do not count on."""
    at: float = field(default_factory=lambda: asyncio.get_running_loop().time())


class Worker:
    """An actor, one incarnation: what its slots play, and its end of the long poll."""

    def __init__(self, ray: SimulatedRay, worker_id: WorkerId, setup: WorkerSetup) -> None:
        self.name, self.worker_id, self.slots = worker_id.name, worker_id, setup.slots
        self.playing: dict[str, EpisodeOrder] = {}
        self.since: dict[str, float] = {}
        """By slot that plays: when its episode began, without times of suspension."""
        self.told_to_stop: dict[str, Told] = {}
        self.last_said: Sequence[FromWorker] = ()
        """What the long poll holds on to."""
        self.is_suspended = self.is_closed = self.is_killed = False
        self.node = f"{ray.num_workers // 2:056x}"
        self.report_path = Path(f"{self.name}-{ray.num_workers}")
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.kill_report = Remote(lambda: done((self.node, self.report_path)))
        self.run = Remote(lambda scheduler: self.ended)
        self.cpu = Remote(lambda: done(ray.use) if self.is_up else asyncio.Future())
        self._ray = ray
        self._calls = 0
        self._call: asyncio.Task[list[ToWorker]] | None = None

    @property
    def is_up(self) -> bool:
        """It has checked in."""
        return self._calls > 0

    def say(self, *messages: FromWorker) -> None:
        before, self._calls, self.last_said = self._call, self._calls + 1, messages
        scheduler = self._ray.scheduler
        self._call = asyncio.ensure_future(scheduler.exchange(self.worker_id, self._calls, list(messages)))
        if before is not None:
            before.add_done_callback(lambda call: self._hear(call.result()))

    def listen(self) -> bool:
        """Take in an answer; whether there was one."""
        if self._call is None or not self._call.done():
            return False
        answer = self._call.result()
        self._call = None
        self.say()
        self._hear(answer)
        return True

    def _hear(self, messages: list[ToWorker]) -> None:
        num_leases = sum(isinstance(message, Play | Stop) for message in messages)
        assert num_leases <= 2 * len(self.slots), "leases pile up"
        for message in messages:
            if isinstance(message, Play):
                assert message.slot_id in self.slots, "a slot of another worker"
                assert message.slot_id not in self.playing, "a slot that plays was given another episode"
                self.playing[message.slot_id] = order = message.order
                prefix = self._ray.prefixes.setdefault(order.group_id, order.prefix)
                assert prefix == order.prefix, "members of a group begin at different places"
                self.since[message.slot_id] = self._ray.active_s
            elif isinstance(message, Stop):
                order = self.playing.get(message.slot_id)
                assert order is not None, "a slot that plays nothing is told to stop"
                assert order.lease_id == message.lease_id, "a slot is told to stop what it does not play"
                self.told_to_stop[message.slot_id] = Told(self._ray.awake_s)
            elif message is Control.CLOSE:
                assert not self.playing, "a worker that plays was ended"
                self.is_closed = True
            elif isinstance(message, Control):
                self.is_suspended = message is Control.SUSPEND

    def over(self, slot: str) -> EpisodeOrder:
        """The slot plays no more."""
        self.told_to_stop.pop(slot, None)
        del self.since[slot]
        return self.playing.pop(slot)

    def die(self) -> None:
        self.hang_up()
        if not self.ended.done():
            self.ended.set_exception(ActorDiedError())

    def hang_up(self) -> None:
        if self._call is not None:
            self._call.cancel()


def done(value: Any) -> asyncio.Future[Any]:
    future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    future.set_result(value)
    return future


class SimulatedRay:
    """What the scheduler uses of Ray, and where its processes would run."""

    scheduler: RolloutScheduler
    use = IDLE
    awake_s = active_s = 0.0
    """Time in which the scheduler was not stopped, and in which rollouts were not suspended either."""

    def __init__(self) -> None:
        self.workers: dict[str, Worker] = {}
        """The present incarnations that are alive, by name."""
        self.num_workers = 0
        self.prefixes: dict[int, Prefix | None] = {}
        """What the first member of each group replays."""
        self.reports: dict[Path, KillReport] = {}

    def remote(self, **options: Any) -> Callable[[Any], Any]:
        return lambda body: (
            SimpleNamespace(options=lambda **_: Remote(lambda path: done(self.reports.get(path))))
            if body is read_kill_report
            else Remote(self._start)
        )

    def _start(self, worker_id: WorkerId, setup: WorkerSetup) -> Worker:
        others = {slot for worker in self.workers.values() for slot in worker.slots}
        assert worker_id.name not in self.workers, "two workers of one name"
        assert others.isdisjoint(setup.slots), "two workers have a slot"
        self.num_workers += 1
        worker = self.workers[worker_id.name] = Worker(self, worker_id, setup)
        return worker

    def kill(self, worker: Worker) -> None:
        now = asyncio.get_running_loop().time()
        is_hung = any(now - told.at >= GRACE_S for told in worker.told_to_stop.values())
        is_up = worker.is_up and not worker.is_closed and self.workers.get(worker.name) is worker
        assert is_hung or not is_up, "a worker that works was killed"
        worker.is_killed = True

    def get_runtime_context(self) -> Any:
        return SimpleNamespace(current_actor=None)


class AnyNode:
    """Places workers where they say that they are."""

    def __init__(self, rule: Any) -> None:
        pass

    def options(self, name: str) -> dict[str, Any]:
        return {}

    def landed(self, name: str, node: str) -> None:
        pass

    def left(self, name: str) -> None:
        pass


async def nothing() -> None:
    """Stands for a task that collects garbage."""


class SchedulerMachine(RuleBasedStateMachine):
    """Training rollouts, or with `is_evaluation` a task list that is played again and again."""

    def __init__(self) -> None:
        super().__init__()
        self.loop = VirtualTimeLoop()
        self.ray = SimulatedRay()
        clock = SimpleNamespace(monotonic=self.loop.time, time=self.loop.time)
        self.patches = [
            *(mock.patch.object(module, "time", clock) for module in (scheduler_module, ledger_shell)),
            *(mock.patch.object(module, "TICK_S", TICK_S) for module in (scheduler_module, ledger_shell)),
            mock.patch.object(scheduler_module, "ray", self.ray),
            mock.patch.object(scheduler_module, "collect_rarely"),
            mock.patch.object(scheduler_module, "collect_when_grown", nothing),
            mock.patch.object(slot_activity, "MAX_RESTARTS_WITHOUT_PROGRESS", 10**6),
            mock.patch.object(worker_group, "ray", self.ray),
            mock.patch.object(worker_group, "Placer", AnyNode),
        ]
        for patch in self.patches:
            patch.start()
        self.request: asyncio.Task[RolloutBatch] | None = None
        self.starting: asyncio.Task[None] | None = None
        self.version = 0
        self.delivered: set[str] = set()
        self.reported: list[tuple[int, weakref.ref[Any]]] = []
        """Group and tokens of all trajectories that workers sent."""
        self.ended_groups: set[int] = set()
        """Delivered, or of a round of evaluation that is over."""
        self.left_nodes: set[str] = set()
        self.is_suspended = False
        self.is_evaluation = self.is_taken = self.is_over = False

    @property
    def workers(self) -> dict[str, Worker]:
        return self.ray.workers

    @initialize(
        group_size=st.integers(1, 2),
        num_groups=st.integers(1, 3),
        alpha=st.sampled_from([0, 0.5, 1, 2]),
        redundancy=st.integers(0, 1),
        spare_groups=st.integers(0, 1),
        min_group_size=st.sampled_from([None, 0]),
        has_filter=st.booleans(),
        is_evaluation=st.booleans(),
    )
    def start(
        self,
        group_size: int,
        num_groups: int,
        alpha: float,
        redundancy: int,
        spare_groups: int,
        min_group_size: int | None,
        has_filter: bool,
        is_evaluation: bool,
    ) -> None:
        self.is_evaluation = is_evaluation
        self.config = LedgerConfig(
            batch_size=group_size * num_groups,
            group_size=group_size,
            alpha=0 if is_evaluation else alpha,
            max_staleness=None if is_evaluation or not alpha else 2,
            max_wait_share=None if is_evaluation or not alpha else 0.1,
            tag_weights={"a": 1},
            group_size_redundancy=0 if is_evaluation else redundancy,
            num_groups_redundancy=0 if is_evaluation else spare_groups,
            min_group_size=0 if is_evaluation else min_group_size,
            episode_deadline_s=DEADLINE_S,
            max_fruitless_batches=1000,
        )
        self.setups = {
            name: WorkerSetup(
                slots=dict.fromkeys(slots, "a"),
                setups={},
                model=Path(),
                generating=SamplingParams(max_new_tokens=1),
                sequence_length=9,
                turn_timeout_s=1.0,
                engines={},
            )
            for name, slots in SLOTS.items()
        }
        filters = [f"{__name__}:drop_some"] if has_filter and not is_evaluation else []
        setup = SchedulerSetup(
            ledger=self.config,
            workers=self.setups,
            pool=WorkerPoolConfig(
                min_workers=1,
                max_workers=3,
                num_workers=2,
                demand=WorkerDemandConfig(slots_per_worker=2, grow_s=10, idle_s=60),
            ),
            run_seed=0,
            group_filters=filters,
            stop_grace_s=GRACE_S,
            prefix_sampling=PrefixArgs(source="oracle", low=1.0, window=2) if has_filter else None,
        )

        async def begin() -> None:
            self.scheduler = self.ray.scheduler = RolloutScheduler(setup)
            self.starting = asyncio.create_task(self.scheduler.start())
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            for worker in self.workers.values():
                worker.say()
            await self.starting
            await (self.scheduler.begin_again(0) if is_evaluation else self.scheduler.publish(0))

        self._do(begin())

    def _do(self, work: Any = None) -> None:
        """Do this on the event loop, and let everybody hear of it."""

        async def run() -> None:
            if work is not None:
                await work
            while True:
                for _ in range(6):
                    await asyncio.sleep(0)
                ended = [worker for worker in self.workers.values() if worker.is_closed or worker.is_killed]
                for worker in ended:
                    self._end(worker)
                if not ended and not sum(worker.listen() for worker in self.workers.values()):
                    break

        self.loop.run_until_complete(run())
        self._look_at_batch()

    def _end(self, worker: Worker) -> None:
        """Its process ends, as it was told or by force."""
        del self.workers[worker.name]
        if worker.is_closed:
            worker.hang_up()
            worker.ended.set_result(None)
        else:
            worker.die()

    def _look_at_batch(self) -> None:
        if self.request is None or not self.request.done():
            return
        request, self.request = self.request, None
        if (error := request.exception()) is not None:
            assert isinstance(error, RolloutStalled), error
            self.is_over = True
            return
        batch = request.result()
        self.is_taken = True
        assert batch.version == self.version
        assert len(batch.groups) * self.config.group_size == self.config.batch_size
        for group in batch.groups:
            assert len(group) == self.config.group_size
            assert len({(t.task, t.seed, t.group_id) for t in group}) == 1
            assert sum(t.failure is None for t in group) >= self.config.min_valid
            for member in group:
                if member.failure is None:
                    assert member.oldest_version is not None
                    assert self.version - member.oldest_version <= self.config.staleness_bound
        if self.is_evaluation:
            tasks = sorted(group[0].task.index for group in batch.groups)
            assert tasks == list(range(self.config.groups_per_batch))
        ids = {t.trajectory_id for t in batch.trajectories}
        assert len(ids) == self.config.batch_size
        assert ids.isdisjoint(self.delivered), "delivered twice"
        self.delivered |= ids
        self.ended_groups |= {group[0].group_id for group in batch.groups}

    def _busy(self) -> list[tuple[Worker, str]]:
        return [(worker, slot) for worker in self.workers.values() for slot in worker.playing]

    @precondition(lambda self: not self.is_over and self._busy())
    @rule(data=st.data(), age=st.integers(0, 1), failed=st.booleans())
    def an_episode_ends(self, data: st.DataObject, age: int, failed: bool) -> None:
        """Also one that was told to stop and ended first."""
        self._finish(*data.draw(st.sampled_from(self._busy())), age=age, failed=failed)

    def _finish(self, worker: Worker, slot: str, *, age: int = 0, failed: bool = False) -> None:
        order = worker.over(slot)
        played = trajectory(order, max(0, self.version - age), failed=failed)
        self.reported.append((order.group_id, weakref.ref(played.tokens.ids)))
        self._say(worker, Finished(slot, order.lease_id, played))

    def _say(self, worker: Worker, message: FromWorker) -> None:
        async def say() -> None:
            worker.say(message)

        self._do(say())

    @precondition(lambda self: not self.is_over and any(w.told_to_stop for w in self.workers.values()))
    @rule(data=st.data())
    def an_episode_stops(self, data: st.DataObject) -> None:
        stopping = [(w, slot) for w in self.workers.values() for slot in sorted(w.told_to_stop)]
        worker, slot = data.draw(st.sampled_from(stopping))
        self._say(worker, Released(slot, worker.over(slot).lease_id))

    @precondition(lambda self: not self.is_over)
    @rule(data=st.data(), has_report=st.booleans())
    def a_worker_dies(self, data: st.DataObject, has_report: bool) -> None:
        worker = self.workers.pop(data.draw(st.sampled_from(sorted(self.workers))))

        async def die() -> None:
            if worker.playing and has_report:
                slot = data.draw(st.sampled_from(sorted(worker.playing)))
                self.ray.reports[worker.report_path] = KillReport(slot, "step", 1.0)
            worker.die()
            for _ in range(6):
                await asyncio.sleep(0)
            # What it said last arrives behind the news of its death.
            late = [Released(slot, order.lease_id) for slot, order in worker.playing.items()]
            said = self.scheduler.exchange(worker.worker_id, 10_000, late)
            assert await asyncio.wait_for(said, timeout=5) == []

        self._do(die())

    @precondition(lambda self: not self.is_over and not all(w.is_up for w in self.workers.values()))
    @rule()
    def new_workers_check_in(self) -> None:
        async def check_in() -> None:
            for worker in self.workers.values():
                if not worker.is_up:
                    worker.say()

        self._do(check_in())

    @precondition(lambda self: not self.is_over)
    @rule(use=st.sampled_from([BUSY, IDLE]), seconds=st.sampled_from([2 * TICK_S, DEADLINE_S]))
    def the_load_changes(self, use: CpuUse, seconds: float) -> None:
        """More workers are started, or some retired."""
        self.ray.use = use
        self._pass(seconds)

    @precondition(lambda self: not self.is_over and self.workers)
    @rule(data=st.data())
    def a_node_leaves(self, data: st.DataObject) -> None:
        node = data.draw(st.sampled_from(sorted({worker.node for worker in self.workers.values()})))
        self.left_nodes.add(node)
        self._do(self.scheduler.node_leaves(node, data.draw(GRACES)))

    @precondition(lambda self: not self.is_over)
    @rule(seconds=st.sampled_from([TICK_S, 3 * GRACE_S, DEADLINE_S + TICK_S]))
    def the_scheduler_is_stopped(self, seconds: float) -> None:
        """Its process is; the events that waited come before its timer."""
        self.loop.skip(seconds)

    @precondition(lambda self: not self.is_over)
    @rule(seconds=st.sampled_from([TICK_S, 3 * GRACE_S, DEADLINE_S + TICK_S]))
    def time_passes(self, seconds: float) -> None:
        self._pass(seconds)

    def _pass(self, seconds: float) -> None:
        for _ in range(int(seconds / TICK_S)):
            self.ray.awake_s += TICK_S
            self.ray.active_s += 0.0 if self.is_suspended else TICK_S
            self._do(asyncio.sleep(TICK_S))

    @precondition(lambda self: not self.is_over and self.request is None and not self.is_taken)
    @rule()
    def the_pipeline_asks_for_a_batch(self) -> None:
        async def ask() -> None:
            self.request = asyncio.ensure_future(self.scheduler.get_batch(self.config.batch_size))

        self._do(ask())

    @precondition(lambda self: not self.is_over and self.is_taken and not self.is_evaluation)
    @rule()
    def weights_are_published(self) -> None:
        self.version += 1
        self.is_taken = False
        self._do(self.scheduler.publish(self.version))

    @precondition(lambda self: not self.is_over and self.is_evaluation and self.request is None)
    @rule()
    def an_evaluation_begins(self) -> None:
        """Also while the one before still runs."""
        self.version += 1
        self.is_taken = False
        self.ended_groups |= {group for group, _ in self.reported}
        self._do(self.scheduler.begin_again(self.version))

    @precondition(lambda self: not self.is_over and not self.is_evaluation)
    @rule(suspends=st.booleans())
    def rollouts_are_suspended_or_resumed(self, suspends: bool) -> None:
        self._suspend(suspends)

    def _suspend(self, suspends: bool) -> None:
        self.is_suspended = suspends
        self._do(self.scheduler.suspend() if suspends else self.scheduler.resume())

    @precondition(lambda self: self.is_over)
    @rule()
    def nothing_happens_after_the_end(self) -> None:
        pass

    @invariant()
    def what_is_played_is_watched(self) -> None:
        """No episode outlasts its deadline, none its end, and no worker is left as it was."""
        for worker in self.workers.values():
            for slot in worker.playing:
                if (told := worker.told_to_stop.get(slot)) is not None:
                    assert self.ray.awake_s - told.awake_s <= GRACE_S + SLACK_S, (
                        "a hung worker is not replaced"
                    )
                else:
                    played_s = self.ray.active_s - worker.since[slot]
                    assert self.is_over or played_s <= DEADLINE_S + SLACK_S, (
                        "an episode outlasts its deadline"
                    )
            if worker.is_up and not self.is_evaluation and not self.is_over:
                assert worker.is_suspended is self.is_suspended

    @invariant()
    def results_are_not_kept_for_nobody(self) -> None:
        said = [message for worker in self.workers.values() for message in worker.last_said]
        held = {id(each.trajectory.tokens.ids) for each in said if isinstance(each, Finished)}

        def kept() -> list[int]:
            return [
                group
                for group, tokens in self.reported
                if group in self.ended_groups and tokens() is not None and id(tokens()) not in held
            ]

        if kept():
            gc.collect()
            assert not kept()

    def teardown(self) -> None:
        try:
            if hasattr(self, "scheduler") and not self.is_over:
                self._drain()
                self.results_are_not_kept_for_nobody()
        finally:
            self.loop.run_until_complete(self._close())
            self.loop.close()
            for patch in self.patches:
                patch.stop()

    async def _close(self) -> None:
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            task.cancel()
        await asyncio.sleep(0)
        await asyncio.sleep(0)

    def _drain(self) -> None:
        """When all episodes end well a batch comes, also from the workers that are left."""
        if not self.is_evaluation:
            self._suspend(False)
            if self.is_taken:
                self.weights_are_published()
        elif self.is_taken:
            self.an_evaluation_begins()
        if self.request is None:
            self.the_pipeline_asks_for_a_batch()
        for _ in range(60):
            if self.is_taken or self.is_over:
                return
            if not any(w.is_up and w.node not in self.left_nodes for w in self.workers.values()):
                self.new_workers_check_in()
            for worker, slot in self._busy():
                if slot in worker.playing:
                    self._finish(worker, slot)
        raise AssertionError("no batch came")


SchedulerMachine.TestCase.settings = settings(
    max_examples=60,
    stateful_step_count=40,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow],
)
TestScheduler = SchedulerMachine.TestCase
