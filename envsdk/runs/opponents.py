"""Shell: the models that play against the policy, each behind an engine of its own.

    start -> (refresh)* -> close

One with `refresh_steps` is a past version of the policy: it plays the checkpoint of the newest step that this
number divides, before the first one the run's `pretrain`. A run that continues finds that checkpoint again.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

from envsdk.config.models import RunConfig
from envsdk.config.role_models import Opponent
from envsdk.engines.engine import EngineConfig
from envsdk.rollouts.play.model import find_model_folder
from envsdk.runs.checkpoints import folder_of
from envsdk.runs.engine_group import Announce, EngineGroup, EngineGroupSpec, Say
from envsdk.weights.source import GivenWeights


class Opponents:
    """Owner: the cluster."""

    def __init__(
        self, config: RunConfig, model: Path, policy: EngineGroupSpec, announce: Announce, say: Say
    ) -> None:
        """`policy` describes the engines of the policy with the folder `model`."""
        self._config = config
        self._playing: dict[str, int] = {}
        """The step that each past version is of."""
        self.folders = {name: _folder(name, each, model) for name, each in config.opponents.items()}
        self._sources: dict[str, GivenWeights | None] = {
            name: None if each.refresh_steps is None else GivenWeights(self.folders[name])
            for name, each in config.opponents.items()
        }
        self.groups = {
            name: EngineGroup(_spec(name, each, folder, policy), self._sources[name], announce, say)
            for (name, each), folder in zip(config.opponents.items(), self.folders.values(), strict=True)
        }

    @property
    def actors(self) -> dict[str, Any]:
        """The engines; their names begin with that of the opponent and a slash."""
        return {name: actor for group in self.groups.values() for name, actor in group.actors.items()}

    async def start(self) -> None:
        """Load the models; those that never change play from now on."""
        for name, group in self.groups.items():
            await group.start()
            await group.choose_transport()
            if self._sources[name] is None:
                await group.publish(0)

    async def refresh(self, step: int) -> None:
        """Give past versions the weights that they play with before training step `step`, unless they have
        them."""
        for name, source in self._sources.items():
            every = self._config.opponents[name].refresh_steps
            of_step = step - step % (every or 1)
            if source is None or self._playing.get(name) == of_step:
                continue
            if of_step:
                folder = folder_of(self._config.run_folder, of_step)
                source.hold(await asyncio.to_thread(source.checked, folder.resolve()))
            await self.groups[name].publish(of_step)
            self._playing[name] = of_step

    def close(self) -> None:
        """Leave the accelerators."""
        for group in self.groups.values():
            group.close()


def _folder(name: str, opponent: Opponent, model: Path) -> Path:
    if opponent.pretrain is None:
        return model
    return find_model_folder(Path(opponent.pretrain), option=f"opponents.{name}.pretrain")


def _spec(name: str, opponent: Opponent, folder: Path, policy: EngineGroupSpec) -> EngineGroupSpec:
    like = next(iter(policy.configs.values()))
    strategy = opponent.strategy_args
    settings = like.strategy_config if strategy is None else strategy.strategy_config
    config: EngineConfig = replace(like, model=folder, strategy_config=settings)
    return replace(
        policy,
        strategy_name=policy.strategy_name if strategy is None else strategy.strategy_name,
        configs={f"{name}/engine-0": config},
        num_started=1,
        pool=replace(policy.pool, min_engines=1),
        transport="auto",
        delta=False,
        key=f"opponents.{name}",
        device_mapping=opponent.device_mapping,
        other_mappings=(),
    )
