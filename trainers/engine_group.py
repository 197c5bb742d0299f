"""Shell: the engines of one run as Ray actors. One that is lost is started again, gets the newest weights
and joins the workers.

    start -> (publish -> train_step)* -> close
             an engine is lost -> EnginePool's commands: end, start, update, join
             the last one cannot come back -> `failed` has its error
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from envsdk.failures import EngineError, EnvsdkError
from envsdk.inference.engine import EngineConfig, EngineHealth
from envsdk.inference.engine_host import EngineHost
from envsdk.inference.engine_pool import End, EnginePool, Join, Life, PoolCommand, PoolConfig, Start, Update
from envsdk.inference.weight_transport import Transport, can_share_memory, choose_transport
from envsdk.managers.scheduler import as_envsdk_error
from envsdk.trainers.trainer_group import TrainerGroup, reason_of_death
from envsdk.trainers.weight_update import ShipReport, update_engines
from envsdk.training import TrainBatch

HEALTH_CHECK_S = 1.0

Announce = Callable[[str, Any], Awaitable[None]]
"""Tells the workers that the actor of an engine is another one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineGroupSpec:
    """The engines of one run."""

    strategy_name: str
    configs: Mapping[str, EngineConfig]
    """By the engine's name."""
    pool: PoolConfig
    weight_update: str
    transport: str
    """As configured."""
    bucket_bytes: int


class EngineGroup:
    """Owner: the cluster; called from one event loop."""

    def __init__(self, spec: EngineGroupSpec, trainer: TrainerGroup, announce: Announce) -> None:
        self._spec = spec
        self._trainer = trainer
        self._announce = announce
        self._pool = EnginePool(list(spec.configs), spec.pool)
        self._nodes: dict[str, str] = {}
        self._transport = Transport.OBJECT_STORE
        self.actors: dict[str, Any] = {name: self._new_actor(name) for name in spec.configs}
        """The newest of each engine, dead or alive."""
        self._weights = asyncio.Lock()
        """Held by whoever needs the trainer's weights to stay as they are, or changes them."""
        self._watches: dict[Life, asyncio.Task[None]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self.failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Gets the error that ends the run."""

    @property
    def num_running(self) -> int:
        """Engines that have started, whether the workers know of them or not."""
        return len(self._pool.lives)

    @property
    def num_serving(self) -> int:
        return self._pool.num_serving

    @property
    def num_restarts(self) -> int:
        """Since the start of the run."""
        return self._pool.num_restarts

    async def start(self) -> None:
        """Load the model everywhere. An engine that cannot even begin ends the run."""
        await asyncio.gather(*(actor.start.remote() for actor in self.actors.values()))
        nodes = await asyncio.gather(*(actor.node_id.remote() for actor in self.actors.values()))
        self._nodes = dict(zip(self.actors, nodes, strict=True))
        for name, actor in self.actors.items():
            life = Life(name, 0)
            self._do(self._pool.started(life))
            self._watches[life] = self._in_background(self._watch(life, actor))
        self._in_background(self._tick())

    async def choose_transport(self) -> None:
        """Find the way of the weights; both sides have started."""
        self._transport = choose_transport(
            self._spec.transport,
            trainer_node=await self._trainer.node_id(),
            engine_nodes=self._nodes,
            can_share_memory=can_share_memory(),
        )

    async def publish(self, version: int) -> ShipReport | None:
        """The trainer's weights to every engine that runs; None when none does."""
        async with self._weights:
            lives = self._pool.lives
            report = await self._update(lives, version)
            updated = report.engines if report is not None else ()
            self._do(self._pool.published(version, [life for life in lives if life.name in updated]))
        return report

    async def train_step(self, batch: TrainBatch) -> dict[str, float]:
        """Metrics of the step. Engines that come back meanwhile wait for the next `publish`."""
        async with self._weights:
            self._pool.weights_move()
            return await self._trainer.train_step(batch)

    async def health(self) -> dict[str, EngineHealth]:
        """One look at every engine that runs."""
        return await self._from_the_living("health")

    async def busy_stretches(self) -> list[tuple[float, float]]:
        """When any engine had requests, since the last call; Unix seconds."""
        found = await self._from_the_living("busy_stretches")
        return [stretch for stretches in found.values() for stretch in stretches]

    def close(self) -> None:
        """Watch no more."""
        for task in self._tasks:
            task.cancel()
        self.failed.cancel()

    # Commands of the pool

    def _do(self, commands: Iterable[PoolCommand]) -> None:
        for command in commands:
            life = command.life
            if isinstance(command, Start):
                self.actors[life.name] = actor = self._new_actor(life.name)
                self._watches[life] = self._in_background(self._start_again(life, actor))
            elif isinstance(command, End):
                ray.kill(self.actors[life.name])
                self._watches.pop(life).cancel()
            elif isinstance(command, Update):
                self._in_background(self._give_weights(life))
            elif isinstance(command, Join):
                self._in_background(self._announce(life.name, self.actors[life.name]))
        if self._pool.failure:
            self._fail(EngineError(self._pool.failure))

    def _new_actor(self, name: str) -> Any:
        actor: Any = ray.remote(num_cpus=0, max_restarts=0)(EngineHost)
        if name in self._nodes and self._transport is Transport.SHARED_MEMORY:
            here = NodeAffinitySchedulingStrategy(self._nodes[name], soft=False)
            actor = actor.options(scheduling_strategy=here)
        return actor.remote(self._spec.strategy_name, self._spec.configs[name])

    async def _start_again(self, life: Life, actor: Any) -> None:
        try:
            await actor.start.remote()
        except (EnvsdkError, ray.exceptions.RayError) as error:
            self._do(self._pool.lost(life, _reason(error)))
            return
        self._do(self._pool.started(life))
        await self._watch(life, actor)

    async def _watch(self, life: Life, actor: Any) -> None:
        try:
            while not (error := (await actor.health.remote()).error):
                self._pool.heard(life)
                await asyncio.sleep(HEALTH_CHECK_S)
        except ray.exceptions.RayError as lost:
            error = _reason(lost)
        self._do(self._pool.lost(life, error))

    async def _tick(self) -> None:
        last = time.monotonic()
        while True:
            await asyncio.sleep(HEALTH_CHECK_S)
            now = time.monotonic()
            # While this process itself was held up it did not listen.
            self._do(self._pool.tick(min(now - last, 2 * HEALTH_CHECK_S)))
            last = now

    async def _give_weights(self, life: Life) -> None:
        async with self._weights:
            version = self._pool.version_for(life)
            if version is None:
                return
            try:
                report = await self._update([life], version)
            except EngineError as error:
                self._do(self._pool.lost(life, str(error)))
                return
            if report is not None and report.engines:
                self._do(self._pool.given(life, version))

    async def _update(self, lives: Iterable[Life], version: int) -> ShipReport | None:
        return await update_engines(
            {life.name: self.actors[life.name] for life in lives},
            self._trainer.ship_weights,
            version=version,
            mode=self._spec.weight_update,
            transport=self._transport,
            bucket_bytes=self._spec.bucket_bytes,
        )

    # Around them

    async def _from_the_living(self, method: str) -> dict[str, Any]:
        names = [life.name for life in self._pool.lives]
        calls = [getattr(self.actors[name], method).remote() for name in names]
        answers = await asyncio.gather(*calls, return_exceptions=True)
        found = {}
        for name, answer in zip(names, answers, strict=True):
            if isinstance(answer, BaseException):
                if not isinstance(answer, ray.exceptions.RayActorError):
                    raise answer
                continue
            found[name] = answer
        return found

    def _in_background(self, work: Awaitable[None]) -> asyncio.Task[None]:
        task = asyncio.ensure_future(_awaited(work))
        self._tasks.add(task)
        task.add_done_callback(self._background_ended)
        return task

    def _background_ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._fail(error)

    def _fail(self, error: BaseException) -> None:
        if not self.failed.done():
            self.failed.set_exception(error)


def _reason(error: BaseException) -> str:
    """Why an engine is lost, on one line."""
    if isinstance(error, ray.exceptions.RayActorError):
        return f"its process ended: {reason_of_death(error)}"
    return str(as_envsdk_error(error, "it failed"))


async def _awaited(work: Awaitable[None]) -> None:
    await work
