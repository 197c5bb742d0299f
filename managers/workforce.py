"""Shell: Workforce, the workers of a scheduler: their number, departures, restarts and deadlines.

    begin -> (check in | look at the load | a node leaves | a worker dies)* -> close

`worker_group.py` has the processes, `worker_pool.py` decides which there are and which episodes can end
before their node goes, `slot_activity.py` when one hangs. What happens to slots is an event of the
ledger.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from envsdk.base.processes.call_watch import KillReport
from envsdk.contracts.failures import Boundary, EnvsdkError, Failure, RolloutStalled, as_envsdk_error
from envsdk.managers.batch_files import FinishedEpisodes
from envsdk.managers.env_host import timed_out
from envsdk.managers.env_worker import Finished
from envsdk.managers.ledger_shell import LedgerShell
from envsdk.managers.slot_activity import RestartCounter
from envsdk.managers.worker_group import Worker, WorkerGroup
from envsdk.managers.worker_pool import (
    Departures,
    EpisodeTimes,
    PlayedEpisode,
    RetireWorker,
    StartWorker,
    WorkerCommand,
    WorkerLoad,
    WorkerPool,
)


class Background:
    """Owner: the actor.

    start(work)* -> close
    an error, of a task or by `fail` -> `error`, which every waiting call raises
    """

    def __init__(self, failed: str) -> None:
        """`failed` begins the message of an error that is not an EnvsdkError."""
        self._failed = failed
        self._error: EnvsdkError | None = None
        self.changed = asyncio.Event()
        """Set after an error, and by the owner when a call that waits should look again."""
        self.tasks: set[asyncio.Task[None]] = set()

    def start(self, work: Coroutine[Any, Any, None]) -> None:
        """Run this beside everything else."""
        task = asyncio.create_task(work)
        task.add_done_callback(self._ended)
        self.tasks.add(task)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self.tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self.fail(as_envsdk_error(error, self._failed))

    def fail(self, error: EnvsdkError) -> None:
        """The run cannot continue; the first error counts."""
        self._error = self._error or error
        self.changed.set()

    def raise_if_failed(self) -> None:
        """Raises the first error."""
        if self._error is not None:
            raise self._error

    async def next_change(self) -> None:
        """Wait until `changed` is set, and clear it. Raises the first error."""
        self.raise_if_failed()
        await self.changed.wait()
        self.changed.clear()
        self.raise_if_failed()

    def close(self) -> None:
        """Cancel what still runs."""
        for task in self.tasks:
            task.cancel()


LOAD_LOOK_S = 2.0


class Workforce:
    """Owner: the scheduler."""

    def __init__(
        self,
        group: WorkerGroup,
        pool: WorkerPool,
        shell: LedgerShell[Any],
        episodes: FinishedEpisodes,
        background: Background,
        report: Callable[[Worker, Finished], None],
    ) -> None:
        """`report` is called for the episode that held up a worker until it died."""
        self.group = group
        self.pool = pool
        self.restarts = RestartCounter()
        self.engines_are_full = False
        self.is_awaited = False
        """Somebody waits for a batch."""
        self._shell = shell
        self._episodes = episodes
        self._background = background
        self._report = report
        self._episode_times = EpisodeTimes()
        self._departures = Departures()
        self._leaving_nodes: dict[str, float] = {}
        """Times by Ray's id of a node that goes away."""
        self._me: Any = None

    def begin(self, me: Any) -> None:
        """Start the workers; `me` is the actor that they report to."""
        self._me = me
        self.carry_out(self.pool.begin())
        if self.pool.is_elastic:
            self._background.start(self._follow_load())

    def check_in(self, worker: Worker, now: float) -> None:
        """The first call of this worker."""
        shell, name = self._shell, worker.worker_id.name
        self.group.check_in(worker, is_suspended=shell.ledger.is_suspended)
        self.pool.checked_in(name)
        if name in self.pool.names:
            shell.execute(shell.ledger.add_slots(worker.setup.slots, now))
        if worker.node in self._leaving_nodes:
            self._depart([name], now)
        if self.pool.is_complete:
            self._background.changed.set()

    def add_idle_slots(self, now: float) -> None:
        """Give the slots that do not play to a ledger that has none yet."""
        shell = self._shell
        for name in self.pool.names:
            worker = self.group.workers.get(name)
            if worker is not None and worker.checked_in:
                idle = {s: tag for s, tag in worker.setup.slots.items() if s not in shell.slots.stragglers}
                shell.execute(shell.ledger.add_slots(idle, now))

    def succeeded(self, worker: Worker, slot_id: str, tag: str, now: float) -> None:
        """An episode on this slot ended with an outcome."""
        self.restarts.progressed(worker.worker_id.name)
        if (began := self._shell.slots.began.get(slot_id)) is not None:
            self._episode_times.add(tag, now - began)

    def carry_out(self, commands: Sequence[WorkerCommand]) -> None:
        """Start, retire and end workers."""
        for command in commands:
            if isinstance(command, StartWorker):
                self._background.start(self.group.supervise(command.life, self._me, self.died))
            elif isinstance(command, RetireWorker):
                worker = self.group.workers[command.name]
                ledger = self._shell.ledger
                self._shell.execute(ledger.retire_slots(worker.setup.slots, self._shell.now()))
                self.end_if_empty(worker)
            else:
                self._departures.forget(command.name)
                self.group.end(command.name)

    def end_if_empty(self, worker: Worker) -> None:
        """End this worker if it is to leave and plays nothing."""
        name = worker.worker_id.name
        if self.pool.is_leaving(name) and not self._shell.slots.playing.keys() & worker.setup.slots.keys():
            self.carry_out(self.pool.emptied(name))

    def node_leaves(self, node: str, grace_s: float) -> None:
        """This node goes away: its workers play what can end in that time, and others take their places."""
        now = self._shell.now()
        self._leaving_nodes[node] = now + grace_s
        self._depart([name for name, worker in self.group.workers.items() if worker.node == node], now)

    def _depart(self, names: Sequence[str], now: float) -> None:
        self.carry_out(self.pool.leave(names))
        for name in names:
            if self.pool.is_leaving(name):
                left_s = self._leaving_nodes[self.group.workers[name].node] - now
                self._departures.leave(name, now, max(0.0, left_s))
        self._hand_over_what_cannot_end(now)

    def _hand_over_what_cannot_end(self, now: float) -> None:
        """Play the episodes elsewhere that would not end before their node goes."""
        shell = self._shell
        playing, began = shell.slots.playing, shell.slots.began
        for name in self._departures.names:
            episodes = [
                PlayedEpisode(slot_id, playing[slot_id].task.tag, began[slot_id])
                for slot_id in self.group.workers[name].setup.slots
                if slot_id in playing and slot_id not in shell.slots.stop_deadlines
            ]
            slots = self._departures.cannot_end(name, episodes, self._episode_times, now)
            if slots:
                shell.execute(shell.ledger.hand_over(slots, now))

    def end_what_is_late(self, now: float) -> None:
        """Hand over what cannot end before its node goes; kill workers that did not stop in time."""
        self._hand_over_what_cannot_end(now)
        slots = self._shell.slots
        for name in {self.group.name_of_slot[slot_id] for slot_id in slots.hung(now)}:
            slots.forget(self.group.workers[name].setup.slots)
            self.group.kill(name)

    async def _follow_load(self) -> None:
        """Look at the workers' load again and again, and add or retire some."""
        shell = self._shell
        last = shell.now()
        while True:
            await asyncio.sleep(LOAD_LOOK_S)
            uses = await self.group.cpu(self.pool.names)
            now = shell.now()
            if not shell.ledger.is_suspended and uses:
                load = WorkerLoad(
                    num_workers=len(self.pool.names),
                    num_waiting=shell.ledger.num_waiting,
                    num_playing=self._num_playing(),
                    is_awaited=self.is_awaited,
                    may_run_ahead=shell.ledger.config.alpha > 0,
                    engines_are_full=self.engines_are_full,
                    worker_cpu=sum(use.own_cores for use in uses),
                    node_cpu=min(use.node_share for use in uses),
                )
                self.carry_out(self.pool.look(load, now - last))
            last = now

    def _num_playing(self) -> int:
        """Slots that play, without those of workers that leave."""
        name_of = self.group.name_of_slot
        return sum(not self.pool.is_leaving(name_of[slot_id]) for slot_id in self._shell.slots.playing)

    def died(self, worker: Worker, why: str, report: KillReport | None) -> bool:
        """Record the failure, and play the worker's episodes elsewhere. Returns whether it is needed again.

        A report names the environment that held up the worker: its episode has failed, the others have not.
        """
        name, shell = worker.worker_id.name, self._shell
        if name not in self.pool.names and not self.pool.is_leaving(name):
            return False  # it had been told to end
        failure = Failure(boundary=Boundary.SCHEDULER, kind="worker_died", message=why)
        self._episodes.tally.add_failure(failure)
        self._departures.forget(name)
        if report is None and not self.pool.is_leaving(name):
            self.restarts.died(name)
        elif report is not None and (order := shell.slots.playing.get(report.name)) is not None:
            limit_s = report.limit_s
            failure = timed_out(report.during, limit_s).failure
            failed = self._episodes.failed(order.task, order.group_id, order.lease_id, failure, limit_s)
            self._report(worker, Finished(report.name, order.lease_id, failed))
        if (verdict := self.restarts.verdict(name)) is not None:
            self._background.fail(RolloutStalled(f"{verdict}: {why}"))
        worker.outbox.close()
        shell.slots.forget(worker.setup.slots)
        if worker.checked_in:
            shell.execute(shell.ledger.remove_slots(worker.setup.slots, shell.now()))
        return self.pool.died(name)
