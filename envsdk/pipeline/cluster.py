"""Everything a run has running: engines, trainer, schedulers. Wired here, top to bottom.

    start -> (publish | train | get_batch | validate ...)* -> close

Whatever the pipeline waits for, it also waits for the end of the engines: when the last one cannot come
back, the run ends with its error instead of a silent wait.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from pathlib import Path
from typing import Any, TypeVar

import ray

from envsdk.config.models import RunConfig, TrainerRole
from envsdk.config.plugins import runs_on_several_ranks
from envsdk.failures import EnvsdkError, as_envsdk_error
from envsdk.inference.engine import EngineConfig
from envsdk.inference.engine_demand import DemandConfig
from envsdk.inference.engine_pool import PoolConfig
from envsdk.managers.ledger_types import LedgerState
from envsdk.managers.rollout_batch import RolloutBatch
from envsdk.managers.scheduler import RolloutScheduler, SchedulerSetup
from envsdk.managers.wiring import VAL_SPLIT, train_ledger, validation_ledger, worker_setups
from envsdk.pipeline.engine_group import EngineGroup, EngineGroupSpec, Say
from envsdk.pipeline.trainer_group import TrainerGroup, TrainerSpec, reason_of_death
from envsdk.trainer import TrainBatch, TrainerConfig

Result = TypeVar("Result")


class Cluster:
    """The actors of one run. Owner: the pipeline."""

    def __init__(
        self, config: RunConfig, *, model: Path, trajectories: Path, state: LedgerState | None, say: Say
    ) -> None:
        """`say` shows the user a line."""
        self._config = config
        self.trainer, self.reference = _trainers(config, model)
        self.engines = EngineGroup(_engines_spec(config, model), self.trainer, self._announce, say)

        scheduler = _actor(RolloutScheduler)
        self.rollout_scheduler = scheduler.remote(
            SchedulerSetup(
                ledger=train_ledger(config),
                workers=worker_setups(
                    config, config.train_env_manager, split="train", model=model, engines=self.engines.actors
                ),
                run_seed=config.seed,
                folder=trajectories,
                group_filters=config.group_filters,
                max_filtered_groups=config.filtered_groups_limit,
            ),
            state,
        )
        self.validation_scheduler = None
        if config.val_batch_size:
            self.validation_scheduler = scheduler.remote(
                SchedulerSetup(
                    ledger=validation_ledger(config),
                    workers=worker_setups(
                        config,
                        config.val_env_manager,
                        split=VAL_SPLIT,
                        model=model,
                        engines=self.engines.actors,
                    ),
                    run_seed=config.seed,
                    folder=trajectories,
                    file_prefix=VAL_SPLIT,
                )
            )

    async def start(self) -> None:
        """Start everything side by side; returns when every worker has checked in."""
        await self.call(self.engines.start())
        starting = [scheduler.start.remote() for scheduler in self._schedulers]
        await self.call(asyncio.gather(*starting, *(group.start() for group in self._trainers)))
        await self.call(self.engines.choose_transport())

    async def call(self, awaitable: Awaitable[Result]) -> Result:
        """Wait for an actor's answer, or for the end of the engines; raises EnvsdkError for a failure."""
        answer, failed = asyncio.ensure_future(awaitable), self.engines.failed
        waited_for: set[asyncio.Future[Any]] = {answer, failed}
        await asyncio.wait(waited_for, return_when=asyncio.FIRST_COMPLETED)
        try:
            if failed.done():
                answer.cancel()
                failed.result()
            return answer.result()
        except ray.exceptions.RayActorError as died:
            if died.actor_init_failed:
                raise as_envsdk_error(died, "a part of the run cannot be started") from died
            raise EnvsdkError(
                f"{self._name_of(died)} died ({reason_of_death(died)}). The checkpoints and batches in "
                f"{self._config.run_folder} are whole: the same command continues from them"
            ) from died
        except (EnvsdkError, ray.exceptions.RayError) as error:
            raise as_envsdk_error(error, "a part of the run failed") from error

    def _name_of(self, died: ray.exceptions.RayActorError) -> str:
        names = ("the scheduler of rollouts", "the scheduler of evaluations")
        for name, actor in zip(names, self._schedulers, strict=False):
            if actor._actor_id.hex() == died.actor_id:
                return name
        return "a process of the run"

    async def publish(self, version: int, *, to_rollouts: bool = True) -> dict[str, float]:
        """The trainer's weights to every engine, then the new version to the scheduler; metrics.

        Rollouts begin with the first version they are told of.
        """
        report = await self.call(self.engines.publish(version))
        if to_rollouts:
            await self.call(self.rollout_scheduler.publish.remote(version))
        return report.metrics() if report is not None else {}

    async def train_step(self, batch: TrainBatch) -> dict[str, float]:
        """Train on the batch while no engine is given weights; returns the metrics of the step."""

        async def step() -> dict[str, float]:
            async with self.engines.weights_moving():
                return await self.trainer.train_step(batch)

        return await self.call(step())

    async def validate(self, version: int, step: int) -> RolloutBatch:
        """The frozen held-out tasks under the weights the engines have now. Only where there are any."""
        assert self.validation_scheduler is not None
        await self.call(self.validation_scheduler.begin_again.remote(version))
        batch: RolloutBatch = await self.call(
            self.validation_scheduler.get_batch.remote(self._config.val_batch_size, step)
        )
        return batch

    async def close(self, *, patience_s: float = 5.0) -> None:
        """End everything; what is already gone is ignored. What takes longer ends with this process."""
        self.engines.close()
        closing = [scheduler.close.remote() for scheduler in self._schedulers]
        closing += [group.close() for group in self._trainers]
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
        """That of rollouts, and that of evaluations where there are any."""
        found = [self.rollout_scheduler]
        return found if self.validation_scheduler is None else [*found, self.validation_scheduler]

    @property
    def _trainers(self) -> list[TrainerGroup]:
        return [self.trainer] if self.reference is None else [self.trainer, self.reference]


def _engines_spec(config: RunConfig, model: Path) -> EngineGroupSpec:
    infer = config.actor_infer
    fewest, most = infer.engines_between
    return EngineGroupSpec(
        strategy_name=infer.strategy_args.strategy_name,
        configs={
            f"engine-{index}": EngineConfig(
                model=model,
                sequence_length=config.sequence_length,
                max_running=infer.infer_batch_size,
                strategy_config=infer.settings,
                seed=config.seed + index,
                reproducible=config.async_generation_ratio == 0,
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
        device_mapping=infer.device_mapping,
        other_mappings=[role.device_mapping for role in _trainer_roles(config).values()],
    )


def _trainers(config: RunConfig, model: Path) -> tuple[TrainerGroup, TrainerGroup | None]:
    """The policy that learns, and the reference model where a KL term asks for one."""
    roles = _trainer_roles(config)
    mappings = [role.device_mapping for role in roles.values()]
    if config.actor_infer.device_mapping is not None:
        mappings.append(config.actor_infer.device_mapping)
    groups = [
        TrainerGroup(_trainer_spec(config, key, role, model), all_mappings=mappings)
        for key, role in roles.items()
    ]
    return groups[0], groups[1] if len(groups) > 1 else None


def _trainer_roles(config: RunConfig) -> dict[str, TrainerRole]:
    roles: dict[str, TrainerRole] = {"actor_train": config.actor_train}
    return roles | {"reference": config.reference} if config.algorithm.needs_reference else roles


def _trainer_spec(config: RunConfig, key: str, role: TrainerRole, model: Path) -> TrainerSpec:
    learns = role is config.actor_train
    strategy = role.strategy_args.strategy_name
    return TrainerSpec(
        key=key,
        strategy_name=strategy,
        config=TrainerConfig(
            model=model,
            sequence_length=config.sequence_length,
            seed=config.seed,
            algorithm=config.algorithm.model_dump(),
            training_args=config.actor_train.training_args if learns else {},
            strategy_config=role.settings,
            with_value_head=learns and config.algorithm.needs_values,
        ),
        device_mapping=role.device_mapping,
        uses_accelerators=role.device_mapping is not None or runs_on_several_ranks(strategy),
    )


def _actor(body: type[Any]) -> Any:
    return ray.remote(num_cpus=0, max_restarts=0)(body)


async def _quiet(call: Awaitable[Any]) -> None:
    try:
        await call
    except ray.exceptions.RayError:
        return
