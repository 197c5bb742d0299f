"""`PlayedBatches`: the batches of a run, those on disk first; what a run and `Rollouts` have in common."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from envsdk.base.store.travel import DriverFiles
from envsdk.config.models import RunConfig
from envsdk.contracts.failures import ConfigurationError
from envsdk.managers.batch_files import read_batch
from envsdk.managers.rollout_batch import RolloutBatch
from envsdk.runs.engine_group import Say
from envsdk.runs.rollout_cluster import RolloutCluster
from envsdk.runs.run_folder import TRAJECTORIES, RunFolder
from envsdk.runs.trainer_group import TrainerGroup
from envsdk.runs.trainers import trainer_mappings
from envsdk.weights.source import WeightSource


class PlayedBatches(RolloutCluster):
    """Batches of a run in their order: those that an earlier process left on disk, then new ones.

    A `BatchSource`. Owner: the pipeline, or `AsyncRollouts`.
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
            self._request = (step, size, asyncio.ensure_future(self.new_batch(size, step)))
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
        """Engines have the averaged weights meanwhile, once replies under way are finished."""
        if self._averaging is None:
            yield
            return
        await self._give_average(self._averaging, version, is_used=True)
        yield
        await self._give_average(self._averaging, version, is_used=False)

    async def _give_average(self, trainer: TrainerGroup, version: int, *, is_used: bool) -> None:
        async with self.weights_moving():
            await self.call(trainer.on_all("use_average", is_used))
        await self.call(self.engines.publish(version, mode="finish"))

    async def checkpointed(self, step: int) -> None:
        """The batch files hold the ledger."""

    async def finished(self) -> None:
        """Nobody else waits for the end."""
