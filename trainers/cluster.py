"""Everything a run has running: engines, trainer, schedulers. Wired here, top to bottom.

    start -> (publish | train | get_batch | validate ...)* -> close

Whatever the pipeline waits for, it also waits for the engines' own alarm: when the last one can no
longer answer, the run ends with its error instead of a silent wait.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from pathlib import Path
from typing import Any, TypeVar

import ray

from envsdk.config.models import RunConfig, TrainerRole
from envsdk.config.plugins import runs_on_several_ranks
from envsdk.failures import EngineError, EnvsdkError
from envsdk.inference.engine import EngineConfig, EngineHealth
from envsdk.inference.engine_host import EngineHost
from envsdk.inference.weight_transport import can_share_memory, choose_transport
from envsdk.managers.ledger_types import LedgerState
from envsdk.managers.scheduler import RolloutBatch, RolloutScheduler, SchedulerSetup, as_envsdk_error
from envsdk.managers.wiring import VAL_SPLIT, train_ledger, validation_ledger, worker_setups
from envsdk.trainers.trainer_group import TrainerGroup, TrainerSpec
from envsdk.trainers.weight_update import update_engines
from envsdk.training import TrainerConfig

Result = TypeVar("Result")


class Cluster:
    """The actors of one run. Owner: the pipeline."""

    def __init__(
        self, config: RunConfig, *, model: Path, trajectories: Path, state: LedgerState | None
    ) -> None:
        self._config = config
        self._alarms: dict[str, asyncio.Future[None]] = {}
        infer = config.actor_infer

        engine = _actor(EngineHost)
        self._engines = {
            f"engine-{index}": engine.remote(
                infer.strategy_args.strategy_name,
                EngineConfig(
                    model=model,
                    sequence_length=config.sequence_length,
                    max_running=infer.infer_batch_size,
                    strategy_config=infer.settings,
                    seed=config.seed + index,
                ),
            )
            for index in range(infer.num_engines)
        }

        self.trainer, self.reference = _trainers(config, model)

        scheduler = _actor(RolloutScheduler)
        self.rollouts = scheduler.remote(
            SchedulerSetup(
                ledger=train_ledger(config),
                workers=worker_setups(
                    config, config.train_env_manager, split="train", model=model, engines=self._engines
                ),
                run_seed=config.seed,
                folder=trajectories,
                group_filters=config.group_filters,
                max_filtered_groups=config.filtered_groups_limit,
            ),
            state,
        )
        self.held_out = scheduler.remote(
            SchedulerSetup(
                ledger=validation_ledger(config),
                workers=worker_setups(
                    config, config.val_env_manager, split=VAL_SPLIT, model=model, engines=self._engines
                ),
                run_seed=config.seed,
                folder=trajectories,
                file_prefix=VAL_SPLIT,
            )
        )

    async def start(self) -> None:
        """Start everything side by side; returns when every worker has checked in."""
        await self.call(asyncio.gather(*(engine.start.remote() for engine in self._engines.values())))
        self._alarms = {name: asyncio.ensure_future(_alarm(name, e)) for name, e in self._engines.items()}
        starting = [self.rollouts.start.remote(), self.held_out.start.remote()]
        await self.call(asyncio.gather(*starting, *(group.start() for group in self._trainers)))
        engine_nodes = await self.call(asyncio.gather(*(e.node_id.remote() for e in self._engines.values())))
        self._transport = choose_transport(
            self._config.model_update_transport,
            trainer_node=await self.call(self.trainer.node_id()),
            engine_nodes=dict(zip(self._engines, engine_nodes, strict=True)),
            can_share_memory=can_share_memory(),
        )

    async def call(self, awaitable: Awaitable[Result]) -> Result:
        """Wait for an actor's answer, or for the last engine's alarm; raises EnvsdkError for a failure."""
        answer = asyncio.ensure_future(awaitable)
        while not answer.done():
            waited_for: set[asyncio.Future[Any]] = {answer, *self._alarms.values()}
            await asyncio.wait(waited_for, return_when=asyncio.FIRST_COMPLETED)
            self._drop_lost_engines(answer)
        try:
            return answer.result()
        except (EnvsdkError, ray.exceptions.RayError) as error:
            raise as_envsdk_error(error, "a part of the run failed") from error

    def _drop_lost_engines(self, answer: asyncio.Future[Any]) -> None:
        """Go on without an engine that is gone, unless it was the last: then raise its error."""
        for name in [name for name, alarm in self._alarms.items() if alarm.done()]:
            alarm = self._alarms.pop(name)
            del self._engines[name]
            if not self._engines:
                answer.cancel()
                alarm.result()

    async def publish(self, version: int, *, to_rollouts: bool = True) -> dict[str, float]:
        """The trainer's weights to every engine, then the new version to the scheduler; metrics.

        Rollouts begin with the first version they are told of.
        """
        report = await self.call(
            update_engines(
                dict(self._engines),
                self.trainer.ship_weights,
                version=version,
                mode=self._config.weight_update,
                transport=self._transport,
                bucket_bytes=self._config.model_update_buffer_size_mb * 1024**2,
            )
        )
        if to_rollouts:
            await self.call(self.rollouts.publish.remote(version))
        return report.metrics() if report is not None else {}

    async def validate(self, version: int, number: int) -> RolloutBatch:
        """The frozen held-out tasks under the weights the engines have now."""
        await self.call(self.held_out.begin_again.remote(version))
        batch: RolloutBatch = await self.call(
            self.held_out.get_batch.remote(self._config.val_batch_size, number)
        )
        return batch

    async def engine_health(self) -> dict[str, EngineHealth]:
        """One look at every engine."""
        looks = await self.call(asyncio.gather(*(e.health.remote() for e in self._engines.values())))
        return dict(zip(self._engines, looks, strict=True))

    async def busy_stretches(self) -> list[tuple[float, float]]:
        """When any engine had requests, since the last call; Unix seconds."""
        found = await self.call(asyncio.gather(*(e.busy_stretches.remote() for e in self._engines.values())))
        return [stretch for stretches in found for stretch in stretches]

    async def close(self) -> None:
        """End everything; what is already gone is ignored."""
        for alarm in self._alarms.values():
            alarm.cancel()
        closing = [self.rollouts.close.remote(), self.held_out.close.remote()]
        closing += [group.close() for group in self._trainers]
        await asyncio.wait([asyncio.ensure_future(_quiet(call)) for call in closing], timeout=5)

    @property
    def _trainers(self) -> list[TrainerGroup]:
        return [self.trainer] if self.reference is None else [self.trainer, self.reference]


def _trainers(config: RunConfig, model: Path) -> tuple[TrainerGroup, TrainerGroup | None]:
    """The policy that learns, and the reference model where a KL term asks for one."""
    roles: dict[str, TrainerRole] = {"actor_train": config.actor_train}
    if config.algorithm.needs_reference:
        roles["reference"] = config.reference
    mappings = [role.device_mapping for role in roles.values()]
    groups = [
        TrainerGroup(_trainer_spec(config, key, role, model), all_mappings=mappings)
        for key, role in roles.items()
    ]
    return groups[0], groups[1] if len(groups) > 1 else None


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


async def _alarm(name: str, engine: Any) -> None:
    try:
        await engine.watch.remote()
    except (EnvsdkError, ray.exceptions.RayError) as error:
        raise EngineError(f"{name} is gone: {as_envsdk_error(error, 'its process ended')}") from error


async def _quiet(call: Awaitable[Any]) -> None:
    try:
        await call
    except ray.exceptions.RayError:
        return
