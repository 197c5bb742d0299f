"""Shell: the worker processes of one scheduler, as Ray actors, and the messages to them.

started -> checked in -> (messages)* -> dead -> started again under the next incarnation
                                     -> ended, when it is needed no more

`worker_pool.py` decides which workers there are.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from envsdk.base.net.long_poll import Outbox
from envsdk.base.processes.actor_death import ACTOR_DIED, reason_of_death
from envsdk.base.processes.call_watch import KillReport, read_kill_report
from envsdk.base.processes.cpu_meter import CpuUse
from envsdk.config.ray_models import RolePlacement
from envsdk.contracts.failures import as_envsdk_error
from envsdk.managers.env_worker import (
    Control,
    EngineJoined,
    EngineLeft,
    EnvWorker,
    ToWorker,
    WorkerId,
    WorkerSetup,
)
from envsdk.managers.ray_nodes import Placer
from envsdk.managers.worker_pool import Life

REPORT_PATIENCE_S = 10.0
CPU_PATIENCE_S = 5.0
END_PATIENCE_S = 30.0
"""For closing a worker's environments."""


@dataclass(slots=True)
class Worker:
    """One incarnation of a worker process."""

    worker_id: WorkerId
    setup: WorkerSetup
    actor: Any
    outbox: Outbox[ToWorker] = field(default_factory=Outbox)
    checked_in: bool = False
    node: str = ""
    """Ray's id of the machine, once known."""


class WorkerGroup:
    """Starts the workers, replaces dead ones, and carries messages to them. Owner: the scheduler."""

    def __init__(self, setups: Mapping[str, WorkerSetup], placement: RolePlacement | None = None) -> None:
        """`setups` are those of all seats."""
        self._seats = setups
        self._placer = Placer(placement or RolePlacement())
        self.workers: dict[str, Worker] = {}
        """The present incarnation of each worker, by name."""
        self._engines: dict[str, Any] = {}
        """Engines that workers may send requests to, by name."""
        for setup in setups.values():
            self._engines |= setup.engines
        self.name_of_slot: dict[str, str] = {}
        """Name of the worker that has this slot."""
        self._is_closing = False

    async def supervise(
        self, life: Life, scheduler: Any, died: Callable[[Worker, str, KillReport | None], bool]
    ) -> None:
        """Run one worker until `end` or `close`. When it dies, call `died` with the reason.

        If that returns True, start the worker again.

        Raises EnvsdkError when the worker's own code fails.
        """
        name, slots = life.name, self.add_slots_of(life)
        for incarnation in itertools.count():
            worker_id = WorkerId(name, incarnation)
            setup = replace(self._seats[life.seat], slots=slots, engines=dict(self._engines))
            options = self._placer.options(worker_id.name)
            actor: Any = ray.remote(**options)(EnvWorker).remote(worker_id, setup)
            worker = self.workers[name] = Worker(worker_id, setup, actor)
            report_at = None
            try:
                report_at = await actor.kill_report.remote()
                worker.node = report_at[0]
                self._placer.landed(name, report_at[0])
                await actor.run.remote(scheduler)
                if not self._is_closing:
                    self.forget(worker)
                return
            except ACTOR_DIED as error:
                if self._is_closing:
                    return
                report = None if report_at is None else await _take_kill_report(*report_at)
                if not died(worker, reason_of_death(error), report):
                    self.forget(worker)
                    return
                # The process may only be out of reach; two of one name must not run.
                ray.kill(actor)
            except Exception as error:
                raise as_envsdk_error(error, f"worker {name} failed") from error

    def add_slots_of(self, life: Life) -> dict[str, str]:
        """The slots of this worker, which are its own: a worker that had its seat may still play."""
        suffix = f".{life.number}" if life.number else ""
        slots = {f"{slot_id}{suffix}": tag for slot_id, tag in self._seats[life.seat].slots.items()}
        self.name_of_slot |= dict.fromkeys(slots, life.name)
        return slots

    def forget(self, worker: Worker) -> None:
        """This worker is gone for good."""
        worker.outbox.close()
        ray.kill(worker.actor)
        del self.workers[worker.worker_id.name]
        self._placer.left(worker.worker_id.name)
        for slot_id in worker.setup.slots:
            del self.name_of_slot[slot_id]

    def end(self, name: str) -> None:
        """Let this worker, which plays nothing, close its environments and end."""
        worker = self.workers[name]
        if not worker.checked_in:
            ray.kill(worker.actor)
            return
        worker.outbox.put(Control.CLOSE)
        asyncio.get_running_loop().call_later(END_PATIENCE_S, ray.kill, worker.actor)

    def check_in(self, worker: Worker, *, is_suspended: bool) -> None:
        """The first call of a worker: tell it what changed since its setup was written."""
        worker.checked_in = True
        if is_suspended:
            worker.outbox.put(Control.SUSPEND)
        for engine in worker.setup.engines.keys() - self._engines.keys():
            worker.outbox.put(EngineLeft(engine))
        for engine, actor in self._engines.items():
            if worker.setup.engines.get(engine) is not actor:
                worker.outbox.put(EngineJoined(engine, actor))

    def send(self, slot_id: str, message: ToWorker) -> None:
        """To the worker of this slot."""
        self.workers[self.name_of_slot[slot_id]].outbox.put(message)

    def broadcast(self, message: ToWorker) -> None:
        """To every worker that has checked in."""
        for worker in self.workers.values():
            if worker.checked_in:
                worker.outbox.put(message)

    def engine_joined(self, name: str, actor: Any) -> None:
        """Workers may send requests to this engine."""
        self._engines[name] = actor
        self.broadcast(EngineJoined(name, actor))

    def engine_left(self, name: str) -> None:
        """Workers must send this engine no more requests."""
        self._engines.pop(name, None)
        self.broadcast(EngineLeft(name))

    def kill(self, name: str) -> None:
        """Kill this worker; `supervise` starts it again."""
        ray.kill(self.workers[name].actor)

    async def num_calls(self) -> int:
        """Ray calls made for rollouts since start, by all workers that there are."""
        return sum(await asyncio.gather(*(w.actor.num_calls.remote() for w in self.workers.values())))

    async def cpu(self, names: Iterable[str]) -> list[CpuUse]:
        """CPU use of these workers and their machines since the last call; without those that are late."""
        asked = [
            asyncio.ensure_future(self.workers[name].actor.cpu.remote())
            for name in names
            if name in self.workers
        ]
        if not asked:
            return []
        answered, late = await asyncio.wait(asked, timeout=CPU_PATIENCE_S)
        for each in late:
            each.cancel()
        return [each.result() for each in answered if each.exception() is None]

    def close(self) -> None:
        """End all workers."""
        self._is_closing = True
        self.broadcast(Control.CLOSE)
        for worker in self.workers.values():
            ray.kill(worker.actor)


async def _take_kill_report(node_id: str, path: Path) -> KillReport | None:
    """The report that a worker's watcher left on that machine, if it killed the worker."""
    where = NodeAffinitySchedulingStrategy(node_id, soft=False)
    reader = ray.remote(num_cpus=0, max_retries=0)(read_kill_report)
    reading = reader.options(scheduling_strategy=where).remote(path)
    try:
        async with asyncio.timeout(REPORT_PATIENCE_S):
            report: KillReport | None = await reading
            return report
    except (TimeoutError, RayError):
        return None  # the machine is gone, too
