"""The scheduler under random events, with workers that are simulated and a clock that is set."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from envsdk.failures import Boundary, Failure
from envsdk.inference.sampling import SamplingParams
from envsdk.managers import finished_episodes, ledger_shell, worker_group
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
from envsdk.managers.ledger_types import LedgerConfig
from envsdk.managers.rollout_batch import RolloutBatch
from envsdk.managers.scheduler import RolloutScheduler, SchedulerSetup
from envsdk.managers.traj_env_manager import EpisodeOrder
from envsdk.managers.worker_demand import WorkerDemandConfig, WorkerLoad
from envsdk.managers.worker_group import Worker as WorkerRecord
from envsdk.managers.worker_pool import Life, WorkerPoolConfig
from envsdk.net.long_poll import Outbox
from envsdk.processes.call_watch import Note
from envsdk.trajectory import Outcome, TokenLog, Trajectory, VersionSpan

DEADLINE_S, GRACE_S, TICK_S = 100.0, 10.0, 5.0
SLOTS = {"w0": ("w0/a/0", "w0/a/1", "w0/a/2"), "w1": ("w1/a/0", "w1/a/1"), "w2": ("w2/a/0",)}
GRACES = st.sampled_from([0.0, 4 * TICK_S, 3 * DEADLINE_S])
BUSY = WorkerLoad(num_workers=2, num_waiting=4, num_playing=5, is_awaited=True)
IDLE = WorkerLoad(num_workers=3, num_waiting=0, num_playing=0, is_awaited=True)


def drop_some(group: Sequence[Trajectory]) -> str | None:
    """A group filter."""
    return "unlucky" if group[0].group_id % 3 == 2 else None


def trajectory(order: EpisodeOrder, version: int, *, failed: bool = False) -> Trajectory:
    log = TokenLog()
    log.append_prompt([1])
    log.append_sampled([2], [-0.5], [VersionSpan(version=version, start=0, end=1)])
    return Trajectory(
        trajectory_id=f"{order.task.split}-{order.lease_id}",
        group_id=order.group_id,
        task=order.task,
        seed=order.seed,
        outcome=Outcome.FAILED if failed else Outcome.TERMINATED,
        success=not failed,
        turns=(),
        tokens=log.arrays(),
        failure=Failure(boundary=Boundary.ENVIRONMENT, kind="raised", message="") if failed else None,
        started_at=0.0,
        ended_at=1.0,
    )


class WatchedOutbox(Outbox[ToWorker]):
    """Knows what its worker has not fetched."""

    def __init__(self) -> None:
        super().__init__()
        self.waiting: list[ToWorker] = []

    def put(self, item: ToWorker) -> None:
        self.waiting.append(item)
        super().put(item)

    async def collect(self, number: int) -> list[ToWorker]:
        fetched = await super().collect(number)
        del self.waiting[: len(fetched)]
        return fetched

    def close(self) -> None:
        self.waiting.clear()
        super().close()


class Worker:
    """One incarnation: what its slots play, and its end of the long poll."""

    def __init__(self, scheduler: RolloutScheduler, name: str, setup: WorkerSetup, incarnation: int) -> None:
        self.name, self.worker_id = name, WorkerId(name, incarnation)
        self.playing: dict[str, EpisodeOrder] = {}
        self.told_to_stop: set[str] = set()
        self.is_suspended = self.is_closed = False
        self._scheduler = scheduler
        self._calls = 0
        self._call: asyncio.Task[list[ToWorker]] | None = None
        self.outbox = WatchedOutbox()
        self.record = WorkerRecord(self.worker_id, setup, object(), outbox=self.outbox)
        scheduler.workforce.group.workers[name] = self.record

    @property
    def is_up(self) -> bool:
        """It has checked in."""
        return self._calls > 0

    def say(self, *messages: FromWorker) -> None:
        before, self._calls = self._call, self._calls + 1
        self._call = asyncio.ensure_future(
            self._scheduler.exchange(self.worker_id, self._calls, list(messages))
        )
        if before is not None:
            before.add_done_callback(lambda done: self._hear(done.result()))

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
        for message in messages:
            if isinstance(message, Play):
                assert message.slot_id not in self.playing, "a slot that plays was given another episode"
                self.playing[message.slot_id] = message.order
            elif isinstance(message, Stop):
                order = self.playing.get(message.slot_id)
                if order is not None and order.lease_id == message.lease_id:
                    self.told_to_stop.add(message.slot_id)
            elif message is Control.CLOSE:
                assert not self.playing, "a worker that plays was ended"
                self.is_closed = True
            elif isinstance(message, Control):
                self.is_suspended = message is Control.SUSPEND

    def end(self) -> None:
        if self._call is not None:
            self._call.cancel()


class SchedulerMachine(RuleBasedStateMachine):
    """Training rollouts, or with `is_evaluation` a task list that is played again and again."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 1000.0
        clock = SimpleNamespace(monotonic=lambda: self.now, time=lambda: self.now)
        self.killed: list[Any] = []
        self.patches = [
            *(
                mock.patch.object(module, "time", clock)
                for module in (finished_episodes, ledger_shell, scheduler_module)
            ),
            *(mock.patch.object(module, "TICK_S", TICK_S) for module in (ledger_shell, scheduler_module)),
            mock.patch.object(worker_group.ray, "kill", self.killed.append),
        ]
        for patch in self.patches:
            patch.start()
        self.loop = asyncio.new_event_loop()
        self.request: asyncio.Task[RolloutBatch] | None = None
        self.version = self.num_incarnations = self.num_suspensions = 0
        self.delivered: set[str] = set()
        self.is_evaluation = self.is_taken = self.is_over = False

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
        )
        self.scheduler = RolloutScheduler(setup)
        self.scheduler.workforce.group.supervise = self._supervise  # type: ignore[method-assign]
        self.workers: dict[str, Worker] = {}
        self.worker_setups: dict[str, WorkerSetup] = {}

        async def begin() -> None:
            workforce = self.scheduler.workforce
            workforce.carry_out(workforce.pool.begin())
            await asyncio.sleep(0)
            for worker in self.workers.values():
                worker.say()
            await (self.scheduler.begin_again(0) if is_evaluation else self.scheduler.publish(0))

        self._do(begin())

    async def _supervise(self, life: Life, scheduler: Any, died: Any) -> None:
        slots = self.scheduler.workforce.group.add_slots_of(life)
        self.worker_setups[life.name] = replace(self.setups[life.seat], slots=slots)
        self._start_worker(life.name)

    def _start_worker(self, name: str) -> None:
        self.num_incarnations += 1
        self.workers[name] = Worker(self.scheduler, name, self.worker_setups[name], self.num_incarnations)

    def _lose(self, worker: Worker, note: Note | None) -> None:
        """Its process ended."""
        worker.end()
        if self.scheduler.workforce.died(worker.record, "killed", note):
            self._start_worker(worker.name)
        else:
            self.scheduler.workforce.group.forget(worker.record)
        self.scheduler.workforce.restarts.reset()

    def _do(self, work: Any = None) -> None:
        """Do this on the event loop, and let everybody hear of it."""

        async def run() -> None:
            if work is not None:
                await work
            while True:
                for _ in range(6):
                    await asyncio.sleep(0)
                if not sum(worker.listen() for worker in self.workers.values()):
                    break
            for worker in [worker for worker in self.workers.values() if worker.is_closed]:
                self.workers.pop(worker.name).end()
                self.scheduler.workforce.group.forget(worker.record)
                self.killed.remove(worker.record.actor)
            for worker in [worker for worker in self.workers.values() if not worker.is_up]:
                if worker.record.actor in self.killed:
                    self._lose(self.workers.pop(worker.name), None)
                    self.killed.remove(worker.record.actor)

        self.loop.run_until_complete(run())
        self._look_at_batch()

    def _look_at_batch(self) -> None:
        if self.request is None or not self.request.done():
            return
        request, self.request = self.request, None
        if (error := request.exception()) is not None:
            assert isinstance(error, scheduler_module.RolloutStalled), error
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

    def _tries(self) -> int:
        groups = self.scheduler.shell.ledger.groups.open.values()
        return sum(member.attempt for group in groups for member in group.members)

    def _busy(self) -> list[tuple[Worker, str]]:
        return [(worker, slot) for worker in self.workers.values() for slot in worker.playing]

    @precondition(lambda self: not self.is_over and self._busy())
    @rule(data=st.data(), age=st.integers(0, 1), failed=st.booleans())
    def an_episode_ends(self, data: st.DataObject, age: int, failed: bool) -> None:
        """Also one that was told to stop and ended first."""
        self._end(*data.draw(st.sampled_from(self._busy())), age=age, failed=failed)

    def _end(self, worker: Worker, slot: str, *, age: int = 0, failed: bool = False) -> None:
        order = worker.playing.pop(slot)
        worker.told_to_stop.discard(slot)
        played = trajectory(order, max(0, self.version - age), failed=failed)
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
        worker.told_to_stop.remove(slot)
        self._say(worker, Released(slot, worker.playing.pop(slot).lease_id))

    @precondition(lambda self: not self.is_over)
    @rule(data=st.data(), has_note=st.booleans())
    def a_worker_dies(self, data: st.DataObject, has_note: bool) -> None:
        worker = self.workers.pop(data.draw(st.sampled_from(sorted(self.workers))))

        async def die() -> None:
            note = None
            if worker.playing and has_note:
                note = Note(data.draw(st.sampled_from(sorted(worker.playing))), "step", 1.0)
            self._lose(worker, note)
            self.killed.clear()
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
    @rule(what=st.sampled_from(["more", "fewer", "leave", "node"]), data=st.data())
    def the_number_of_workers_changes(self, what: str, data: st.DataObject) -> None:
        async def change() -> None:
            workforce = self.scheduler.workforce
            if what == "leave":
                names = data.draw(st.lists(st.sampled_from(sorted(self.workers)), max_size=2))
                workforce.carry_out(workforce.pool.leave(names))
            elif what == "node":
                names = data.draw(st.lists(st.sampled_from(sorted(self.workers)), max_size=2))
                for name in names:
                    self.workers[name].record.node = f"node-{self.num_incarnations}"
                self.num_tries = self._tries()
                await self.scheduler.node_leaves(f"node-{self.num_incarnations}", data.draw(GRACES))
                assert self._tries() == self.num_tries, "a hand-over used up an attempt"
            else:
                workforce.carry_out(workforce.pool.look(BUSY if what == "more" else IDLE, 60.0))

        self._do(change())

    @precondition(lambda self: not self.is_over)
    @rule(seconds=st.sampled_from([TICK_S, 3 * GRACE_S, DEADLINE_S + TICK_S]))
    def the_scheduler_is_stopped(self, seconds: float) -> None:
        """Its process is; the events that waited come before its timer."""
        self.now += seconds

    @precondition(lambda self: not self.is_over)
    @rule(seconds=st.sampled_from([TICK_S, 3 * GRACE_S, DEADLINE_S + TICK_S]))
    def time_passes(self, seconds: float) -> None:
        for _ in range(int(seconds / TICK_S)):
            self.now += TICK_S
            self._look_at_the_clock()

    def _look_at_the_clock(self) -> None:
        async def look() -> None:
            self.scheduler.end_what_is_late()
            hung = [n for n, w in self.workers.items() if w.record.actor in self.killed]
            for name in hung:
                self._lose(self.workers.pop(name), None)
            self.killed.clear()

        self._do(look())

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
        self._do(self.scheduler.begin_again(self.version))

    @precondition(lambda self: not self.is_over and not self.is_evaluation)
    @rule(suspends=st.booleans())
    def rollouts_are_suspended_or_resumed(self, suspends: bool) -> None:
        self._do(self.scheduler.suspend() if suspends else self.scheduler.resume())

    @precondition(lambda self: self.is_over)
    @rule()
    def nothing_happens_after_the_end(self) -> None:
        pass

    @invariant()
    def the_scheduler_knows_what_is_played(self) -> None:
        if not hasattr(self, "scheduler") or self.is_over:
            return
        shell, workforce = self.scheduler.shell, self.scheduler.workforce
        episodes = self.scheduler.episodes
        assert shell.slots.playing == {slot: w.playing[slot] for w, slot in self._busy()}
        assert shell.slots.stop_deadlines.keys() == {s for w in self.workers.values() for s in w.told_to_stop}
        assert shell.slots.stragglers <= shell.slots.playing.keys()
        assert episodes.trajectories.keys() <= shell.ledger.groups.finished.keys(), (
            "a result is kept for nobody"
        )
        assert not episodes.filter_reasons
        assert all(not task.done() for task in self.scheduler.background.tasks), "ended tasks are kept"
        for worker in self.workers.values():
            waiting = [item for item in worker.outbox.waiting if isinstance(item, Play | Stop)]
            assert len(waiting) <= 2 * len(worker.record.setup.slots), (
                "a worker that does not listen piles up leases"
            )
        pool = workforce.pool
        assert {*pool.names} <= self.workers.keys()
        assert all(pool.is_leaving(name) for name in self.workers.keys() - {*pool.names})
        assert {s for w in self.workers.values() for s in w.record.setup.slots} == {
            *workforce.group.name_of_slot
        }
        if not self.is_evaluation:
            for worker in self.workers.values():
                assert not worker.is_up or worker.is_suspended is shell.ledger.is_suspended

    def teardown(self) -> None:
        try:
            if hasattr(self, "scheduler") and not self.is_over:
                self._drain()
        finally:
            for worker in getattr(self, "workers", {}).values():
                worker.end()
            if self.request is not None:
                self.request.cancel()
            self.loop.run_until_complete(asyncio.sleep(0))
            self.loop.close()
            for patch in self.patches:
                patch.stop()

    def _drain(self) -> None:
        """When all episodes end well a batch comes, also from the workers that are left."""
        if not any(self.workers[name].is_up for name in self.scheduler.workforce.pool.names):
            self.new_workers_check_in()
        if not self.is_evaluation:
            self._do(self.scheduler.resume())
            if self.is_taken:
                self.weights_are_published()
        elif self.is_taken:
            self.an_evaluation_begins()
        if self.request is None:
            self.the_pipeline_asks_for_a_batch()
        for _ in range(60):
            if self.is_taken or self.is_over:
                return
            for worker, slot in self._busy():
                if slot in worker.playing:
                    self._end(worker, slot)
        raise AssertionError("no batch came")


SchedulerMachine.TestCase.settings = settings(
    max_examples=60,
    stateful_step_count=40,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow],
)
TestScheduler = SchedulerMachine.TestCase
