"""Everything that rollouts need running: engines and schedulers. Wired here, top to bottom.

    start -> (give_weights | validate ...)* -> close

`PlayedBatches` also gives the batches of a run, those on disk first.

Whatever is waited for, the end of the engines is waited for too: when the last one cannot come back, the run
ends with its error instead of a silent wait.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import ray

from envsdk.base.processes.actor_death import on_the_living
from envsdk.base.store.travel import DriverFiles
from envsdk.config.device_sharing import SharedRole, device_groups
from envsdk.config.env_models import EnvManagerArgs
from envsdk.config.models import RunConfig
from envsdk.config.sampling_support import engine_settings
from envsdk.contracts.failures import ConfigurationError
from envsdk.contracts.held import Held
from envsdk.contracts.trajectory import RolloutBatch
from envsdk.engines.engine import EngineConfig
from envsdk.engines.engine_pace import DemandConfig
from envsdk.engines.engine_pool import PoolConfig
from envsdk.engines.settings import NO_EXPERTS
from envsdk.managers.batch_files import read_batch
from envsdk.managers.explorer_scheduler import ExplorerScheduler
from envsdk.managers.ledger_types import LedgerConfig, LedgerState
from envsdk.managers.ray_nodes import MANY_CALLS, check_placement, find_driver_files, on_this_node
from envsdk.managers.scheduler import RolloutScheduler, SchedulerSetup
from envsdk.managers.wiring import VAL_SPLIT, train_ledger, validation_ledger, worker_pool, worker_setups
from envsdk.runs.batch_source import BatchSource, EngineStatus, Result, part_of_run
from envsdk.runs.engine_group import HEALTH_CHECK_S, EngineGroup, EngineGroupSpec, Say
from envsdk.runs.node_watch import NodeWatch, address_of
from envsdk.runs.opponents import Opponents
from envsdk.runs.run_folder import TRAJECTORIES, RunFolder
from envsdk.runs.trainer_group import TrainerGroup
from envsdk.runs.trainers import trainer_mappings
from envsdk.weights.source import WeightSource


class RolloutCluster:
    """The actors that play, of one run. Owner: an explorer or a bench; `PlayedBatches` is one."""

    def __init__(
        self,
        config: RunConfig,
        *,
        model: Path,
        trajectories: Path,
        state: LedgerState | None = None,
        weights: WeightSource,
        trainer_mappings: Sequence[Sequence[int] | None] = (),
        say: Say,
        driver_files: DriverFiles | None = None,
    ) -> None:
        """`trainer_mappings` are accelerators that engines may share; `say` shows the user a line.

        `driver_files` has what other machines may lack; found out when it is not given.
        """
        self.config = config
        placement = config.ray.placement
        check_placement("workers", placement.workers)
        check_placement("engines", placement.engines)
        if driver_files is None:
            driver_files = find_driver_files(config, [model])
        spec = replace(_engines_spec(config, model, trainer_mappings), driver_files=driver_files)
        self.engines = EngineGroup(spec, weights, self._announce, say)
        self.opponents = Opponents(config, model, spec, self._announce, say)

        def setup(manager: EnvManagerArgs, split: str, ledger: LedgerConfig, **own: Any) -> SchedulerSetup:
            workers = worker_setups(
                config,
                manager,
                split=split,
                model=model,
                engines={**self.engines.actors, **self.opponents.actors},
                opponents=self.opponents.folders,
                driver_files=driver_files,
            )
            return SchedulerSetup(
                ledger=ledger,
                workers=workers,
                pool=worker_pool(manager),
                run_seed=config.seed,
                folder=trajectories,
                placement=placement.workers,
                **own,
            )

        self.rollout_scheduler: Any = None
        if config.mode in ("both", "explore"):
            training = setup(
                config.train_env_manager,
                "train",
                train_ledger(config),
                log_folder=trajectories.parent if config.mode == "both" else None,
                group_filters=config.group_filters,
                prefix_sampling=config.prefix_sampling,
                max_filtered_groups=config.filtered_groups_limit,
            )
            if config.mode == "both":
                self.rollout_scheduler = _actor(RolloutScheduler).remote(training, state)
            else:
                self.rollout_scheduler = _actor(ExplorerScheduler).remote(training)
        self._say = say
        self._watching: list[asyncio.Future[None]] = []
        self.validation_scheduler: Any = None
        if config.val_batch_size and config.mode in ("both", "bench"):
            held_out = setup(
                config.val_env_manager, VAL_SPLIT, validation_ledger(config), file_prefix=VAL_SPLIT
            )
            self.validation_scheduler = _actor(RolloutScheduler).remote(held_out)

    async def start(self, *also: Callable[[], Awaitable[None]]) -> None:
        """Start engines, then opponents; then workers, side by side with what `also` starts."""
        await self.call(self.engines.start())
        if self.config.algorithm.train_infer_correction.routing_replay:
            await self.call(self._check_that_experts_are_told())
        await self.call(self.opponents.start())
        starting = [scheduler.start.remote() for scheduler in self._schedulers]
        await self.call(asyncio.gather(*starting, *(start() for start in also)))
        await self.call(self.engines.choose_transport())
        config = self.config
        if config.ray.address is not None:
            self._watching.append(asyncio.ensure_future(NodeWatch(self._node_leaves).run()))
        if any(manager.has_worker_range for manager in (config.train_env_manager, config.val_env_manager)):
            self._watching.append(asyncio.ensure_future(self._tell_of_full_engines()))

    async def _check_that_experts_are_told(self) -> None:
        abilities = await asyncio.gather(
            *(actor.abilities.remote() for actor in self.engines.actors.values())
        )
        if not all(ability.routed_experts for ability in abilities):
            raise ConfigurationError(
                f"train_infer_correction.routing_replay: the engine of actor_infer {NO_EXPERTS}"
            )

    async def _tell_of_full_engines(self) -> None:
        """Schedulers add no workers meanwhile."""
        were_full = False
        while True:
            await asyncio.sleep(HEALTH_CHECK_S)
            if (are_full := self.engines.pool.has_queue) is not were_full:
                were_full = are_full
                told = (_quiet(each.engines_are_full.remote(are_full)) for each in self._schedulers)
                await asyncio.gather(*told)

    async def _node_leaves(self, node: str, grace_s: float) -> None:
        self._say(
            f"node {address_of(node)} goes away in {grace_s:.0f} s: its workers and engines finish what they "
            "can and are started elsewhere"
        )
        self.engines.node_leaves(node, grace_s)
        await asyncio.gather(*(_quiet(each.node_leaves.remote(node, grace_s)) for each in self._schedulers))

    async def call(self, awaitable: Awaitable[Result]) -> Result:
        """Wait for an actor's answer, or for the end of the engines; raises EnvsdkError for a failure."""
        answer = asyncio.ensure_future(awaitable)
        ends = [group.failed for group in (self.engines, *self.opponents.groups.values())]
        waited_for: set[asyncio.Future[Any]] = {answer, *ends}
        await asyncio.wait(waited_for, return_when=asyncio.FIRST_COMPLETED)
        with part_of_run(self._name_of, f"The checkpoints and batches in {self.config.run_folder}"):
            for failed in filter(asyncio.Future.done, ends):
                answer.cancel()
                failed.result()
            return answer.result()

    def _name_of(self, died: BaseException) -> str:
        names = ("the scheduler of rollouts", "the scheduler of evaluations")
        for name, actor in zip(names, (self.rollout_scheduler, self.validation_scheduler), strict=True):
            if actor is not None and actor._actor_id.hex() == getattr(died, "actor_id", None):
                return name
        return "a process of the run"

    async def give_weights(self, version: int, *, to_rollouts: bool = True) -> dict[str, float]:
        """The trainer's weights to every engine, then the new version to the scheduler; metrics.

        Rollouts begin with the first version that is announced to them.
        """
        report = await self.call(self.engines.publish(version))
        if to_rollouts and self.rollout_scheduler is not None:
            await self.tell(version)
        return report.metrics() if report is not None else {}

    async def tell(self, version: int) -> None:
        """Tell the scheduler that all engines have this version."""
        await self.call(self.rollout_scheduler.publish.remote(version))

    async def num_ready(self) -> int:
        """Trajectories that are ready for the next batch."""
        num_ready: int = await self.call(self.rollout_scheduler.num_ready.remote())
        return num_ready

    def weights_moving(self) -> AbstractAsyncContextManager[None]:
        """No engine is given weights meanwhile."""
        return self.engines.weights_moving()

    async def hold_engines(self, held: Held) -> None:
        """What the engines hold of their devices from now on."""
        await self.call(self.engines.hold(held))

    async def engine_status(self) -> EngineStatus:
        """The status of all of them."""
        engines = self.engines
        return EngineStatus(
            busy=await self.call(engines.busy_stretches()),
            health=await self.call(engines.health()),
            num_engines=engines.pool.num_engines,
            num_serving=engines.pool.num_serving,
            num_restarts=engines.pool.num_restarts,
        )

    async def suspend(self) -> None:
        """Hold up episodes of the training split."""
        await self.call(self.rollout_scheduler.suspend.remote())

    async def resume(self) -> None:
        """Let them go on."""
        await self.call(self.rollout_scheduler.resume.remote())

    async def validate(self, version: int, step: int) -> RolloutBatch:
        """The frozen held-out tasks under the weights the engines have now. Only where there are any."""
        assert self.validation_scheduler is not None
        await self.call(self.validation_scheduler.begin_again.remote(version))
        batch: RolloutBatch = await self.call(
            self.validation_scheduler.get_batch.remote(self.config.val_batch_size, step)
        )
        return batch

    async def close(self, *also: Callable[[], Awaitable[None]], patience_s: float = 5.0) -> None:
        """End everything, and what `also` ends; what is already gone is ignored.

        What takes longer ends with this process.
        """
        self.engines.close()
        self.opponents.close()
        for watching in self._watching:
            watching.cancel()
        closing = [scheduler.close.remote() for scheduler in self._schedulers]
        closing += [close() for close in also]
        await asyncio.wait([asyncio.ensure_future(_quiet(call)) for call in closing], timeout=patience_s)

    async def _announce(self, engine: str, actor: Any | None) -> None:
        """To the workers of both schedulers."""
        if actor is None:
            calls = (scheduler.engine_left.remote(engine) for scheduler in self._schedulers)
        else:
            calls = (scheduler.engine_joined.remote(engine, actor) for scheduler in self._schedulers)
        await asyncio.gather(*calls)

    @property
    def _schedulers(self) -> list[Any]:
        """That of rollouts and that of evaluations, where there are any."""
        return [each for each in (self.rollout_scheduler, self.validation_scheduler) if each is not None]


class PlayedBatches(RolloutCluster, BatchSource):
    """Batches of a run in their order: those that an earlier process left on disk, then new ones.

    The batch files hold the ledger. Owner: the pipeline, or `AsyncRollouts`.
    """

    def __init__(
        self,
        config: RunConfig,
        folder: RunFolder,
        *,
        model: Path,
        weights: WeightSource,
        say: Say,
        driver_files: DriverFiles | None = None,
        averaging: TrainerGroup | None = None,
    ) -> None:
        """`driver_files` as of `RolloutCluster`; evaluations play the averaged weights of `averaging`."""
        super().__init__(
            config,
            model=model,
            trajectories=(folder.path / TRAJECTORIES).resolve(),
            state=folder.state,
            weights=weights,
            trainer_mappings=trainer_mappings(config),
            say=say,
            driver_files=driver_files,
        )
        self._folder = folder
        self._averaging = averaging
        self._request: tuple[int, int, asyncio.Future[RolloutBatch]] | None = None
        self.is_suspended = False
        """Whether `suspend` was called last, not `resume`."""
        self._pending_version: int | None = None
        """A version that engines have and the scheduler does not, because batches on disk come first."""

    @property
    def played_version(self) -> int:
        """The newest version that an earlier process of the run had played batches under."""
        return 0 if self._folder.state is None else self._folder.state.version

    @property
    def is_asked(self) -> bool:
        """Whether a batch was asked for that nobody has got."""
        return self._request is not None

    @property
    def validates(self) -> bool:
        """Whether there are held-out tasks."""
        return self.config.val_batch_size > 0

    async def publish(self, version: int, *, step: int) -> dict[str, float]:
        """The source's weights to every engine, as `version`; metrics of the transfer.

        Episodes are played under it, unless the batch of `step` is on disk: they wait until those are used.
        """
        await self.call(self.opponents.refresh(step))
        is_on_disk = step in self._folder.batches
        metrics = await self.give_weights(version, to_rollouts=not is_on_disk)
        self._pending_version = version if is_on_disk else None
        return metrics

    async def get_batch(self, step: int, batch_size: int | None = None) -> RolloutBatch:
        """Batch `step`, from disk or of new episodes: `batch_size` trajectories in complete groups.

        A caller that gives up waiting and asks again waits for the same batch.
        """
        on_disk = self._folder.batches.get(step)
        if on_disk is not None:
            batch = await asyncio.to_thread(read_batch, on_disk)
            del self._folder.batches[step]
            return batch
        size = batch_size or self.config.train_batch_size
        if self._pending_version is not None:  # a part of its batches was on disk
            await self.tell(self._pending_version)
            self._pending_version = None
        if self._request is None:
            new = self.rollout_scheduler.get_batch.remote(size, step)  # on disk when it comes
            self._request = (step, size, asyncio.ensure_future(self.call(new)))
        asked_step, asked_size, answer = self._request
        if (asked_step, asked_size) != (step, size):
            raise ConfigurationError(
                f"get_batch({asked_size}) was given up before its batch came: ask for as many again"
            )
        try:
            batch = await asyncio.shield(answer)
        finally:
            if answer.done():
                self._request = None
        return batch

    async def validate(self, version: int, step: int) -> RolloutBatch:
        """Play the held-out tasks under the engines' weights; training episodes wait, if configured so."""
        if self.config.validation_overlaps:
            return await super().validate(version, step)
        async with self._held_up(), self._averaged(version):
            return await super().validate(version, step)

    async def suspend(self) -> None:
        """Hold up episodes of the training split until `resume`, also across evaluations."""
        self.is_suspended = True
        await super().suspend()

    async def resume(self) -> None:
        """Let them continue."""
        self.is_suspended = False
        await super().resume()

    @asynccontextmanager
    async def _held_up(self) -> AsyncIterator[None]:
        await super().suspend()
        try:
            yield
        finally:
            if not self.is_suspended:
                await super().resume()

    @asynccontextmanager
    async def _averaged(self, version: int) -> AsyncIterator[None]:
        """Engines have the averaged weights meanwhile, once replies under way are finished.

        Requests of the training split that were still on their way wait for the others.
        """
        if self._averaging is None:
            yield
            return
        await self._serve_only(f"{VAL_SPLIT}-")
        await self._give_average(self._averaging, version, is_used=True)
        yield
        await self._give_average(self._averaging, version, is_used=False)
        await self._serve_only("")

    async def _serve_only(self, clients: str) -> None:
        await self.call(on_the_living(self.engines.started_actors(), "serve_only", clients))

    async def _give_average(self, trainer: TrainerGroup, version: int, *, is_used: bool) -> None:
        async with self.weights_moving():
            await self.call(trainer.on_all("use_average", is_used))
        await self.call(self.engines.publish(version, mode="finish"))


def engines_and_workers(config: RunConfig) -> str:
    """What is started for rollouts."""
    engines, manager = config.actor_infer, config.train_env_manager
    return (
        f"{engines.num_engines} engine{'s' * (engines.num_engines != 1)} "
        f"({engines.strategy_args.strategy_name}), {manager.num_workers} "
        f"worker{'s' * (manager.num_workers != 1)} with {manager.num_envs} environments"
    )


def _engines_spec(
    config: RunConfig, model: Path, trainer_mappings: Sequence[Sequence[int] | None]
) -> EngineGroupSpec:
    infer = config.actor_infer
    fewest, most = infer.engines_between
    takes_turns = any(SharedRole("actor_infer", "all") in group for group in device_groups(config))
    return EngineGroupSpec(
        strategy_name=infer.strategy_args.strategy_name,
        configs={
            f"engine-{index}": EngineConfig(
                model=model,
                sequence_length=config.sequence_length,
                max_running=infer.infer_batch_size,
                strategy_config=engine_settings(config),
                seed=config.seed + index,
                reproducible=config.largest_depth == 0,
                takes_turns=takes_turns,
            )
            for index in range(most)
        },
        num_started=infer.num_engines,
        pool=PoolConfig(
            max_restarts=infer.max_engine_restarts,
            silence_s=infer.engine_timeout_s,
            stall_s=infer.engine_stall_s,
            slow_ratio=infer.slow_engine_ratio,
            min_engines=fewest,
            demand=DemandConfig(
                places=infer.infer_batch_size,
                max_queued=infer.max_queued_per_engine,
                idle_s=infer.engine_idle_s,
            ),
        ),
        weight_update=config.weight_update,
        transport=config.model_update_transport,
        bucket_bytes=config.model_update_buffer_size_mb * 1024**2,
        delta=config.model_update_delta,
        dtype=config.model_update_dtype,
        device_mapping=infer.device_mapping,
        other_mappings=trainer_mappings,
        placement=config.ray.placement.engines,
    )


def _actor(body: type[Any]) -> Any:
    """Beside the driver: a scheduler writes into the run's folder."""
    return ray.remote(**on_this_node(), **MANY_CALLS)(body)


async def _quiet(call: Awaitable[Any]) -> None:
    try:
        await call
    except ray.exceptions.RayError:
        return
