"""BufferedBatches: the batches of a trainer whose explorers are programs of their own.

A `BatchSource`: groups come from the buffer, weights go to the programs that read them there. Each batch is
also written into the run's folder, where viewer and data-set tools find it.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

import ray

from envsdk.base.store.trajectories import write_trajectories
from envsdk.buffer.contract import JobView, LeaseLost, Member, Signal, TakenBatch
from envsdk.buffer.payload import from_all_bytes, from_bytes
from envsdk.config.models import RunConfig
from envsdk.contracts.failures import EnvsdkError, StorageError
from envsdk.contracts.trajectory import RolloutBatch
from envsdk.explorers.membership import Membership, selection_of
from envsdk.explorers.weight_lag import WeightLag
from envsdk.explorers.weights import VersionPublisher
from envsdk.runs.batch_source import BatchSource, Result, part_of_run
from envsdk.runs.checkpoints import oldest_step
from envsdk.runs.run_folder import TRAJECTORIES, RunFolder

LOOK_AGAIN_S = 5.0
"""A trainer that waits looks so often whether explorers live."""


class BufferedBatches(BatchSource):
    """Owner: the pipeline."""

    def __init__(
        self,
        config: RunConfig,
        folder: RunFolder,
        *,
        membership: Membership,
        publisher: VersionPublisher,
        say: Callable[[str], None],
    ) -> None:
        self._config = config
        self._selection = selection_of(config)
        self._folder = folder
        self._step = folder.first_step
        self._membership = membership
        self._publisher = publisher
        self._say = say
        self._version = 0
        self._lag = WeightLag(config.synchronizer.sync_timeout)
        self._living: asyncio.Task[None] | None = None
        self._last_view: JobView | None = None
        self._dropped_tokens: Counter[str] = Counter()
        """Sampled and thrown away by all programs until the last batch, by tag."""

    async def start(self, *also: Callable[[], Awaitable[None]]) -> None:
        """Join the job, and start what `also` starts."""
        await self._membership.join()
        step = self._step
        await self._ask(lambda me: self._membership.buffer.trainer.begin(me, step))
        self._living = asyncio.create_task(self._live())
        self._dropped_tokens = await self._dropped_so_far()
        await self.call(asyncio.gather(*(start() for start in also)))

    async def call(self, awaitable: Awaitable[Result]) -> Result:
        """Wait for an answer, or for what ends the run."""
        answer = asyncio.ensure_future(awaitable)
        waited_for: set[asyncio.Future[Any]] = {answer, *([self._living] if self._living else [])}
        checkpoints = f"The checkpoints in {self._config.run_folder}"
        try:
            with part_of_run(lambda died: "a process of the run", checkpoints):
                await asyncio.wait(waited_for, return_when=asyncio.FIRST_COMPLETED)
                if not answer.done() and self._living is not None:
                    self._living.result()
                return await answer
        finally:
            answer.cancel()

    async def publish(self, version: int, *, step: int) -> dict[str, float]:
        """Tell explorers that the trainer is at `step`; the weights too, every `sync_interval` steps.

        The last weights of a run are published in any case.
        """
        membership = self._membership
        terms, buffer = membership.terms, membership.buffer
        self._version = terms.version_at(step)
        location, began = None, time.monotonic()
        is_due, is_last = step % terms.sync_interval == 0, step == self._config.max_steps
        number = self._version + (is_last and not is_due)
        if is_due or is_last:
            at_step = await self.call(membership.client.call(lambda: buffer.step_of(number)))
            is_there = at_step == step and await asyncio.to_thread(self._publisher.still_has, number)
            if not is_there:
                location = await self.call(self._publisher.publish(number))
        selection = self._selection
        await self.call(
            self._ask(lambda me: buffer.trainer.publish(me, step, number, location, selection=selection))
        )
        self._step = step
        if location is None:
            return {}
        self._lag.published(number, now=time.monotonic())
        return {"weight_update/ship_s": time.monotonic() - began}

    async def get_batch(self, step: int) -> RolloutBatch:
        """The batch of `step`, as soon as there are enough groups for it."""
        while True:
            taken = await self.call(self._taken(step))
            batch = await asyncio.to_thread(_read, taken)
            if isinstance(batch, RolloutBatch):
                break
            for group_id, reason in batch.items():
                self._say(
                    f"group {group_id} of the batch of step {step} is dropped as damaged, and the next one "
                    f"that is ready takes its place: {reason}"
                )
            damaged = list(batch)
            await self.call(
                self._ask(lambda me: self._membership.buffer.trainer.drop_damaged(me, step, damaged))  # noqa: B023
            )
        await asyncio.to_thread(
            write_trajectories,
            self._folder.path / TRAJECTORIES / f"step_{step:06d}.parquet",
            batch.trajectories,
            metadata={"version": str(taken.version), "group_size": str(self._membership.terms.group_size)},
        )
        before, self._dropped_tokens = self._dropped_tokens, await self._dropped_so_far()
        dropped = self._dropped_tokens - before
        return replace(batch, dropped_tokens=dict(dropped), discarded_tokens=dropped.total())

    async def _dropped_so_far(self) -> Counter[str]:
        membership = self._membership
        return Counter(await self.call(membership.client.call(membership.buffer.dropped_tokens)))

    async def _taken(self, step: int) -> TakenBatch:
        membership, began = self._membership, time.monotonic()
        alone_since: float | None = None
        while True:
            seen = await membership.signal_number(Signal.BATCH)
            waited_s = time.monotonic() - began
            taken = await self._ask(
                partial(
                    membership.buffer.trainer.take,
                    step=step,
                    version=self._version,
                    selection=self._selection,
                    waited_s=waited_s,
                )
            )
            if taken is not None:
                return taken
            await membership.client.changed(Signal.BATCH, seen, timeout_s=LOOK_AGAIN_S)
            alone_since = self._alone_since(alone_since)

    def _alone_since(self, since: float | None) -> float | None:
        """When the last explorer was seen to be gone; EnvsdkError when that is too long ago."""
        view, now = self._last_view, time.monotonic()
        if view is None or view.explorer_versions:
            return None
        patience_s = self._config.buffer.patience_s
        if since is None:
            self._say(f"no explorer plays; waiting for one, at most {patience_s:g} s (buffer.patience_s)")
            return now
        if now - since > patience_s:
            raise EnvsdkError(
                f"no explorer has played for {patience_s:g} s (buffer.patience_s): start one with mode: "
                "explore, and this trainer again"
            )
        return since

    async def num_ready(self) -> int:
        """Trajectories in ready groups."""
        membership = self._membership
        groups = await self.call(membership.client.call(membership.buffer.num_ready))
        return groups * membership.terms.group_size

    async def checkpointed(self, step: int) -> None:
        """What was taken before `step` is trained."""
        trainer = self._membership.buffer.trainer
        keep_from = await asyncio.to_thread(oldest_step, self._folder.path)
        await self.call(self._ask(lambda me: trainer.trained(me, step, keep_from=keep_from)))

    async def finished(self) -> None:
        """Explorers may end."""
        membership = self._membership
        await self.call(self._ask(membership.buffer.trainer.finish))

    async def close(self, *also: Callable[[], Awaitable[None]], patience_s: float = 5.0) -> None:
        """Leave the job, and end what `also` ends."""
        if self._living is not None:
            self._living.cancel()
        closing = [self._publisher.close(), self._membership.leave(), *(end() for end in also)]
        await asyncio.wait([asyncio.ensure_future(_quiet(each)) for each in closing], timeout=patience_s)

    async def _ask(self, work: Callable[[Member], Result]) -> Result:
        """The buffer's answer to this trainer, which joins again where it was taken for dead.

        EnvsdkError when another trainer has gone on in its place.
        """
        membership = self._membership
        while True:
            me = membership.me
            try:
                return await membership.client.call(partial(work, me))
            except LeaseLost as error:
                await membership.join_again(me)
                now_at = (await membership.client.call(membership.buffer.view)).step
                if now_at not in (self._step, self._step + 1):  # it may know of the next step already
                    raise EnvsdkError(
                        f"{error}; that one has gone on, and this one ends. What it did after its last "
                        "checkpoint does not count"
                    ) from error

    async def _live(self) -> None:
        while True:
            version = self._version
            view = await self._ask(lambda me: self._membership.buffer.renew(me, version=version))  # noqa: B023
            self._last_view = view
            for line in self._lag.slow(view.explorer_versions, now=time.monotonic()):
                self._say(line)
            await asyncio.sleep(self._membership.pause_s)


def _read(taken: TakenBatch) -> RolloutBatch | dict[int, str]:
    """The batch; or by id, what is wrong with groups that cannot be read."""
    try:
        groups = from_all_bytes([group.payload for group in taken.groups])
    except StorageError:
        damaged: dict[int, str] = {}
        for group in taken.groups:
            try:
                from_bytes(group.payload)
            except StorageError as error:
                damaged[group.group_id] = str(error)
        if not damaged:
            raise
        return damaged
    return RolloutBatch(version=taken.version, groups=groups)


async def _quiet(work: Awaitable[None]) -> None:
    with suppress(EnvsdkError, ray.exceptions.RayError):
        await work
