"""Shell: the engines of one run as Ray actors. One that is lost, hangs or is slow is started again, gets the
newest weights and joins the workers; their number follows the load where it may.

    start -> (publish -> weights_moving)* -> close
             looks at engines, losses, time -> EnginePool's commands: end, start, update, join, leave
             the last one cannot come back -> `failed` has its error
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import ray
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from envsdk.base.processes.actor_death import ACTOR_DIED, on_the_living, reason_of_death
from envsdk.base.store.travel import DriverFiles
from envsdk.config.ray_models import RolePlacement
from envsdk.contracts.failures import EngineError, EnvsdkError, as_envsdk_error
from envsdk.contracts.held import Held
from envsdk.engines.engine import EngineConfig, EngineHealth
from envsdk.engines.engine_host import EngineHost
from envsdk.engines.engine_pool import (
    End,
    EngineIncarnation,
    EnginePool,
    EngineState,
    Join,
    Leave,
    PoolCommand,
    PoolConfig,
    Start,
    Update,
)
from envsdk.managers.ray_nodes import MANY_CALLS, Placer
from envsdk.runs.rank_placement import EnginePlace, device_bundle, engine_places
from envsdk.runs.reservation import KEEP_DEVICES, Reservation, show_only
from envsdk.runs.weight_way import WeightWay
from envsdk.weights.buckets import UpdateInterrupted
from envsdk.weights.source import WeightSource
from envsdk.weights.transports import Transport
from envsdk.weights.update import TransferReport, update_engines

HEALTH_CHECK_S = 1.0
POLL_S = 0.05
CLOSE_TIMEOUT_S = 5.0

Announce = Callable[[str, Any | None], Awaitable[None]]
"""Tells the workers which actor an engine is now. None: it leaves, and what runs there may end there."""
Say = Callable[[str], None]
"""Shows the user a line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineGroupSpec:
    """The engines of one run."""

    strategy_name: str
    configs: Mapping[str, EngineConfig]
    """Configurations by the engine's name: all there may ever be."""
    num_started: int | None = None
    """How many the run begins with, in their order; None: all."""
    pool: PoolConfig
    weight_update: str
    transport: str
    """As configured."""
    bucket_bytes: int
    delta: bool = False
    """Send differences to the update before."""
    dtype: str = "float32"
    """What float32 weights are sent as."""
    key: str = "actor_infer"
    """Where the file says so, for messages."""
    device_mapping: Sequence[int] | None = None
    """Accelerators, as many for each engine; they are reserved for engines that are not started too."""
    other_mappings: Sequence[Sequence[int] | None] = ()
    """Mappings of trainers, which may share accelerators with the engines."""
    placement: RolePlacement = field(default_factory=RolePlacement)
    """Nodes of the cluster that the engines run on."""
    driver_files: DriverFiles = field(default_factory=DriverFiles)
    """Files that their machines may lack."""


class PlacedEngineHost(EngineHost):
    """An engine that sees the accelerators of its place, and no others."""

    def __init__(
        self, devices: Sequence[int], strategy_name: str, config: EngineConfig, driver_files: DriverFiles
    ) -> None:
        show_only(devices)
        super().__init__(strategy_name, config, driver_files)


class EngineGroup:
    """Owner: the cluster; called from one event loop."""

    def __init__(
        self, spec: EngineGroupSpec, weights: WeightSource | None, announce: Announce, say: Say
    ) -> None:
        """Without `weights`, engines keep those of their folders."""
        self._spec = spec
        self._source = weights
        self._announce = announce
        self._say = say
        names = list(spec.configs)
        self._placer = Placer(spec.placement)
        self.pool = EnginePool(names, spec.pool, num_started=spec.num_started)
        """Which engines serve; others read it."""
        self._reservation: Reservation | None = None
        self._places = self._reserve(names)
        self._way = WeightWay(
            spec.transport,
            delta=spec.delta,
            nodes={name: place.node for name, place in self._places.items()},
            say=say,
        )
        self._held = Held.ALL
        self.actors: dict[str, Any] = {name: self._new_actor(name) for name in names[: spec.num_started]}
        """The newest of each engine that was ever started, dead or alive."""
        self._being_updated: set[EngineIncarnation] = set()
        self._announcing = asyncio.Lock()
        """Workers hear the news in their order."""
        self._weights = asyncio.Lock()
        """Held by the task that needs the trainer's weights to stay as they are, or changes them."""
        self._watches: dict[EngineIncarnation, asyncio.Task[None]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self.failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Gets the error that ends the run."""

    async def start(self) -> None:
        """Load the model everywhere. An engine that cannot even begin ends the run."""
        await asyncio.gather(*(actor.start.remote() for actor in self.actors.values()))
        nodes = await asyncio.gather(*(actor.node_id.remote() for actor in self.actors.values()))
        for name, node in zip(self.actors, nodes, strict=True):
            self._placer.landed(name, node)
        cards = await asyncio.gather(*(actor.card.remote() for actor in self.actors.values()))
        for name, node, card in zip(self.actors, nodes, cards, strict=True):
            self._way.came(name, node, card)
        for name, actor in self.actors.items():
            incarnation = EngineIncarnation(name, 0)
            self._do(self.pool.started(incarnation))
            self._watches[incarnation] = self._in_background(self._watch(incarnation, actor))
        self._in_background(self._tick())

    async def choose_transport(self) -> None:
        """Find the way of the weights, and whether an adapter will do; both sides have started.

        ConfigurationError when the way that is asked for does not exist.
        """
        if self._source is not None:
            await self._way.choose(self._source, self.actors, self._spec.configs)

    async def hold(self, held: Held) -> None:
        """What the engines hold of their devices from now on; none is starting when they hold `NOTHING`.

        With nothing, none of them is started and no time passes for them. They wait for the next `publish`.
        """
        while held is Held.NOTHING and any(  # noqa: ASYNC110 - several things end a start
            self.pool.state(name) is EngineState.STARTING for name in self.actors
        ):
            await asyncio.sleep(POLL_S)
        async with self._weights:
            if held is Held.NOTHING:
                self.pool.weights_move()
            # Paused from here on; an engine that hangs meanwhile is still found out.
            self._held = min(self._held, max(held, Held.WEIGHTS))
            await on_the_living(self.started_actors(), "hold", held)
            self._held = held

    async def publish(self, version: int, *, mode: str | None = None) -> TransferReport | None:
        """The trainer's weights to every engine that runs; None without one. `mode`: as `weight_update`."""
        async with self._weights:
            incarnations = self.pool.incarnations
            if self._source is None:
                self._do(self.pool.published(version, incarnations))
                return None
            report = await self._update(incarnations, version, mode)
            updated = report.engines if report is not None else ()
            for incarnation in incarnations:
                if incarnation.name not in updated:
                    self._do(self.pool.lost(incarnation, await self._why_left_out(incarnation)))
            self._do(
                self.pool.published(
                    version, [incarnation for incarnation in incarnations if incarnation.name in updated]
                )
            )
        return report

    @asynccontextmanager
    async def weights_moving(self) -> AsyncIterator[None]:
        """The trainer may change its weights here; engines that come back wait for the next `publish`."""
        async with self._weights:
            self.pool.weights_move()
            yield

    async def health(self) -> dict[str, EngineHealth]:
        """One look at every engine that runs."""
        return await on_the_living(self.started_actors(), "health")

    async def busy_stretches(self) -> list[tuple[float, float]]:
        """When any engine had requests, since the last call; Unix seconds."""
        found = await on_the_living(self.started_actors(), "busy_stretches")
        return [stretch for stretches in found.values() for stretch in stretches]

    def node_leaves(self, node: str, grace_s: float) -> None:
        """This node goes away: its engines end their turns and are started elsewhere."""
        there = [each for each in self._watches if self._way.nodes.get(each.name) == node]
        self._do(self.pool.leave(there, grace_s))

    def close(self) -> None:
        """Watch no more, and leave the accelerators."""
        for task in self._tasks:
            task.cancel()
        self.failed.cancel()
        if self._reservation is not None:
            self._reservation.release()

    def _do(self, commands: Iterable[PoolCommand]) -> None:
        for command in commands:
            incarnation = command.incarnation
            if isinstance(command, Start):
                self.actors[incarnation.name] = actor = self._new_actor(incarnation.name)
                self._watches[incarnation] = self._in_background(self._start_again(incarnation, actor))
            elif isinstance(command, End):
                actor = self.actors[incarnation.name]
                if command.is_well:
                    self._in_background(_close_and_kill(actor))
                    self._placer.left(incarnation.name)
                else:
                    ray.kill(actor)
                self._watches.pop(incarnation).cancel()
            elif isinstance(command, Update):
                self._in_background(self._give_weights(incarnation))
            elif isinstance(command, Join):
                self._in_background(self._tell(incarnation.name, self.actors[incarnation.name]))
            elif isinstance(command, Leave):
                self._in_background(self._tell(incarnation.name, None))
        for line in self.pool.take_news():
            self._say(line)
        if self.pool.failure:
            self._fail(EngineError(self.pool.failure))

    def _new_actor(self, name: str) -> Any:
        args = (self._spec.strategy_name, self._spec.configs[name], self._spec.driver_files)
        if name in self._places:
            return self._placed_actor(self._places[name], *args)
        where = self._way.nodes[name] if self._way.in_memory is Transport.SHARED_MEMORY else None
        options = self._placer.options(name, where)
        actor: Any = ray.remote(**options, **MANY_CALLS)(EngineHost)
        return actor.remote(*args)

    def _reserve(self, names: Sequence[str]) -> dict[str, EnginePlace]:
        """Each engine's accelerators, where Ray has any and the engines are mapped to them.

        ConfigurationError when the cluster can never hold them, EngineError when it is too busy.
        """
        mapping = self._spec.device_mapping
        if not mapping or ray.cluster_resources().get("GPU", 0) < 1:
            return {}
        per_engine = len(mapping) // len(names)
        self._reservation = Reservation(
            device_bundle(mapping, self._spec.other_mappings),
            mapping,
            placement=self._spec.placement,
            count=len(mapping),
            key=self._spec.key,
            of_what=f"{len(names)} engines of {per_engine}",
            error=EngineError,
        )
        places = self._reservation.take()
        found = engine_places(places, self._reservation.nodes, per_engine=per_engine)
        return dict(zip(names, found, strict=True))

    def _placed_actor(self, place: EnginePlace, *args: Any) -> Any:
        assert self._reservation is not None
        there = PlacementGroupSchedulingStrategy(
            self._reservation.group, placement_group_bundle_index=place.bundle
        )
        actor: Any = ray.remote(
            num_cpus=0,
            num_gpus=self._reservation.bundle["GPU"],
            max_restarts=0,
            scheduling_strategy=there,
            runtime_env=KEEP_DEVICES,
            **MANY_CALLS,
        )(PlacedEngineHost)
        return actor.remote(place.devices, *args)

    async def _tell(self, name: str, actor: Any | None) -> None:
        async with self._announcing:
            await self._announce(name, actor)

    async def _start_again(self, incarnation: EngineIncarnation, actor: Any) -> None:
        try:
            await actor.start.remote()
            self._way.came(incarnation.name, await actor.node_id.remote(), await actor.card.remote())
        except (EnvsdkError, ray.exceptions.RayError) as error:
            self._do(self.pool.lost(incarnation, _reason(error)))
            return
        self._do(self.pool.started(incarnation))
        await self._watch(incarnation, actor)

    async def _watch(self, incarnation: EngineIncarnation, actor: Any) -> None:
        try:
            while not (error := (look := await actor.health.remote()).error):
                if incarnation in self._being_updated or self._held is not Held.ALL:
                    self.pool.heard(incarnation)
                else:
                    self._do(self.pool.seen(incarnation, look))
                await asyncio.sleep(HEALTH_CHECK_S)
        except ray.exceptions.RayError as lost:
            error = _reason(lost)
        self._do(self.pool.lost(incarnation, error))

    async def _tick(self) -> None:
        last = time.monotonic()
        while True:
            await asyncio.sleep(HEALTH_CHECK_S)
            now = time.monotonic()
            if self._held is not Held.NOTHING:
                # While this process itself was held up it did not listen.
                self._do(self.pool.tick(min(now - last, 2 * HEALTH_CHECK_S)))
            last = now

    async def _give_weights(self, incarnation: EngineIncarnation) -> None:
        async with self._weights:
            version = self.pool.version_for(incarnation)
            if version is None:
                return
            if self._source is None:
                self._do(self.pool.given(incarnation, version))
                return
            try:
                report = await self._update([incarnation], version)
            except EngineError as error:
                self._do(self.pool.lost(incarnation, str(error)))
                return
            if report is not None and report.engines:
                self._do(self.pool.given(incarnation, version))

    async def _why_left_out(self, incarnation: EngineIncarnation) -> str:
        """An update leaves out an engine whose process ended; Ray knows how."""
        try:
            await self.actors[incarnation.name].health.remote()
        except ray.exceptions.RayError as error:
            return _reason(error)
        return "it did not get the newest weights"

    async def _update(
        self, incarnations: Iterable[EngineIncarnation], version: int, mode: str | None = None
    ) -> TransferReport | None:
        engines = {incarnation: self.actors[incarnation.name] for incarnation in incarnations}
        actors = {incarnation.name: actor for incarnation, actor in engines.items()}
        transport = self._way.to(actors)
        self._being_updated |= engines.keys()
        try:
            return await self._update_by(transport, actors, version, mode)
        except UpdateInterrupted as error:
            if not self._way.failed(transport, str(as_envsdk_error(error, "it broke off"))):
                raise
            return await self._update_by(self._way.in_memory, actors, version, mode)
        finally:
            self._being_updated -= engines.keys()

    async def _update_by(
        self, transport: Transport, actors: Mapping[str, Any], version: int, mode: str | None
    ) -> TransferReport | None:
        assert self._source is not None
        return await update_engines(
            actors,
            self._source.send_weights,
            version=version,
            mode=mode or self._spec.weight_update,
            transport=transport,
            bucket_bytes=self._spec.bucket_bytes,
            as_adapter=self._way.sends_adapter,
            delta=self._spec.delta,
            dtype=self._spec.dtype,
        )

    def started_actors(self) -> dict[str, Any]:
        """`EngineHost` actors of the engines that run, by name."""
        return {each.name: self.actors[each.name] for each in self.pool.incarnations}

    def _in_background(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.ensure_future(work)
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
    if isinstance(error, ACTOR_DIED):
        return f"its process ended: {reason_of_death(error)}"
    return str(as_envsdk_error(error, "it failed"))


async def _close_and_kill(actor: Any) -> None:
    with suppress(ray.exceptions.RayError, TimeoutError):
        await asyncio.wait_for(actor.close.remote(), CLOSE_TIMEOUT_S)
    ray.kill(actor)
