"""AgenticPipeline: train a policy on rollouts of agents.

    publish weights -> validate and select if due -> get_batch -> advantages -> train -> checkpoint if due

The loop is the same for synchronous and asynchronous runs; how far generation runs ahead of it is
decided by the ledger (`async_generation_ratio`). `run.py` connects the parts and starts the loop.
"""

from __future__ import annotations

import asyncio
import functools
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from envsdk.algorithms.batches import (
    ModelScores,
    learnable,
    prepare_batch,
    recorded_experts,
    supports,
    token_ids,
)
from envsdk.base.display.progress import ProgressDisplay, Validation
from envsdk.config.advantage_checks import algorithm_notes
from envsdk.config.device_sharing import Phase
from envsdk.config.models import RunConfig
from envsdk.config.section_checks import teachers_by_tag
from envsdk.config.start_checks import prompt_notes
from envsdk.contracts.failures import Interrupted, RolloutStalled
from envsdk.contracts.held import Held
from envsdk.contracts.trainer import TeacherScores, TrainBatch
from envsdk.contracts.trajectory import RolloutBatch, Trajectory
from envsdk.runs.batch_source import BatchSource
from envsdk.runs.checkpoints import RunState, link_best, write_checkpoint
from envsdk.runs.rollout_cluster import engines_and_workers
from envsdk.runs.rollout_metrics import validation_metrics, validation_problem
from envsdk.runs.run_folder import RunFolder, validations_of
from envsdk.runs.selection import Selection
from envsdk.runs.shared_devices import SharedDevices
from envsdk.runs.step_log import StepLog
from envsdk.runs.trainers import Trainers
from envsdk.tracking.run_record import write_kernels
from envsdk.tracking.timeline import Timeline, Track
from envsdk.tracking.tracker import Tracker

Result = TypeVar("Result")


def _interruptible(
    part: Callable[[AgenticPipeline], Awaitable[Result]],
) -> Callable[[AgenticPipeline], Awaitable[Result]]:
    """Mark a method that may take long, and that can be given up when the user asks to stop."""

    @functools.wraps(part)
    async def unless_stopped(pipeline: AgenticPipeline) -> Result:
        return await pipeline.unless_stopped(part(pipeline))

    return unless_stopped


class AgenticPipeline:
    """One training run. `run` returns when `max_steps` batches are trained, or it has stopped improving."""

    def __init__(
        self,
        config: RunConfig,
        folder: RunFolder,
        batches: BatchSource,
        trainers: Trainers,
        *,
        tracker: Tracker,
        timeline: Timeline,
        display: ProgressDisplay,
    ) -> None:
        self.config = config
        self.folder = folder
        self.batches = batches
        self.trainers = trainers
        self.display = display
        self.log = StepLog(
            config,
            batches,
            first_step=folder.first_step,
            tracker=tracker,
            timeline=timeline,
            display=display,
        )
        self.devices = SharedDevices(config, self._hold)
        self.step = folder.first_step
        self.validations = {
            step: metrics for step, metrics in validations_of(folder.path).items() if step < folder.first_step
        }
        state = None if folder.checkpoint is None else folder.checkpoint.state
        self.selection = Selection.of(config, None if state is None else state.selection)
        self._kl_coef: float | None = None
        if config.target_kl is not None and state is not None:
            self._kl_coef = state.kl_coef
        self._checkpointed_step = -1
        self.has_trained = False
        """Whether this process has something to keep: True from its first batch on."""
        self._stop = asyncio.Event()
        self._why_stopped = ""

    async def run(self) -> None:
        """The algorithm."""
        while self.step < self.config.max_steps:
            step_began = time.monotonic()
            await self.publish()
            if self.step == 0 or self.is_due(self.config.eval_steps):
                await self.validate()
                if await self.select():
                    break
            batch = await self.get_batch()
            await self.train(batch)
            self.log.metrics["time/step_s"] = time.monotonic() - step_began
            await self.log.step_done(self.step, batch)
            self.step += 1
            if self.is_due(self.config.save_steps) or self._stop.is_set():
                await self.checkpoint()
            if self._stop.is_set():
                raise self._interrupted(f"after step {self.step}")
        else:  # it did not stop early
            await self.publish()
            await self.validate()
            await self.select()
        self.log.run_done(self.step)
        await self.checkpoint()
        await self.batches.finished()

    def is_due(self, every: int) -> bool:
        """Whether something that is done every `every` steps is due before the present step."""
        return every > 0 and self.step % every == 0

    @_interruptible
    async def start(self) -> None:
        """Start everything, and load what the run continues from."""
        began = time.monotonic()
        others = f"{engines_and_workers(self.config)}, and " if self.config.mode == "both" else ""
        self.display.phase(f"starting {others}the trainer")
        await self.batches.start(
            *(self.devices.starting(group.key, group.start) for group in self.trainers.groups)
        )
        for note in (*algorithm_notes(self.config, at_start=True), *prompt_notes(self.config)):
            self.display.note(f"note: {note}")
        kernels = {group.key: await self.batches.call(group.kernels()) for group in self.trainers.groups}
        write_kernels(self.folder.path, kernels)
        for key, found in kernels.items():
            for what, kernel in found.items():
                self.display.note(f"{key}: {what} by {kernel}")
        if self.folder.checkpoint is not None:
            await self.batches.call(self.trainers.actor.load(self.folder.checkpoint.folder.resolve()))
            self.display.note(f"continuing {self.folder.path} from step {self.folder.first_step}")
        if self.folder.batches:
            self.display.note(f"{len(self.folder.batches)} batches on disk are trained first")
        self.log.metrics["time/start_s"] = time.monotonic() - began

    @_interruptible
    async def publish(self) -> None:
        """Send the trainer's weights to the engines, as version `step`.

        Rollouts wait until the batches that an earlier process left on disk are trained.
        """
        self.display.phase("publishing weights")
        with self.log.timed("publish", Track.PUBLISH, self.step):
            await self.devices.begin(Phase.PUBLISH)
            self.log.metrics |= await self.batches.publish(self.step, step=self.step)

    @_interruptible
    async def validate(self) -> None:
        """Play the held-out tasks under the present weights; training episodes wait meanwhile."""
        if not self.batches.validates:
            return
        self.display.phase("evaluating on held-out tasks")
        with self.log.timed("validate", Track.VALIDATION, self.step):
            await self.devices.begin(Phase.VALIDATE)
            batch = await self.batches.validate(self.step, self.step)
        self.log.played(batch)
        metrics = self.validations[self.step] = validation_metrics(batch)
        self.log.metrics |= metrics
        result = Validation.from_metrics(metrics, step=self.step)
        if result is not None:
            self.display.validation(result)
        if problem := validation_problem(metrics, self.config.max_failed_share):
            self.log.run_done(self.step)
            if self.has_trained:
                await self.checkpoint()
            raise RolloutStalled(f"evaluation after {self.step} steps: {problem}")

    async def select(self) -> bool:
        """Keep the present weights as `checkpoints/best` if their evaluation is the best; whether to stop."""
        if self.selection.metric is None or self.step not in self.validations:
            return False
        self.selection = self.selection.with_evaluation(self.step, self.validations[self.step])
        best = self.selection.best_step
        if best == self.step > 0:
            await self.checkpoint()
        await asyncio.to_thread(link_best, self.folder.path, best)
        if self.selection.is_over and self.step < self.config.max_steps:
            self.display.note(
                f"stopping early after {self.step} steps: {self.selection.patience} evaluations in a row did "
                f"not improve on {self.selection.metric} of step {best}"
            )
            return True
        return False

    @_interruptible
    async def get_batch(self) -> RolloutBatch:
        """Take the next batch: one that an earlier process left on disk, or a new one."""
        self.display.phase("waiting for rollouts")
        with self.log.timed("wait_batch", Track.TRAINER, self.step, name="wait"):
            await self.devices.begin(Phase.GENERATE)
            return await self._showing_progress(self.batches.get_batch(self.step))

    async def train(self, batch: RolloutBatch) -> None:
        """Compute advantages and take one trainer step. Failed and masked episodes are left out of it."""
        self.display.phase("training")
        self.has_trained = True
        trajectories = learnable(batch.trajectories, self.config.algorithm.advantage_unit)
        with self.log.timed("train", Track.TRAINER, self.step):
            scores = await self._scores(trajectories)
            prepared = prepare_batch(
                self.config.algorithm, self.step, trajectories, scores, kl_coef=self._kl_coef
            )
            self._kl_coef = prepared.kl_coef
            self.log.metrics |= prepared.metrics
            if prepared.nothing_left:
                self.display.note(f"step {self.step + 1}: {prepared.nothing_left}")
            else:
                await self.devices.begin(Phase.TRAIN)
                self.log.metrics |= await self.batches.call(self._train_step(prepared.batch))

    async def _train_step(self, batch: TrainBatch) -> dict[str, float]:
        """Train while no engine is given weights."""
        async with self.batches.weights_moving():
            return await self.trainers.actor.train_step(batch)

    async def _hold(self, role: str, held: Held) -> None:
        """Tell a role what to hold of devices that it shares."""
        with self.log.timed("switch", Track.TRAINER, self.step):
            if role == "actor_infer":
                await self.batches.hold_engines(held)
            for group in self.trainers.groups:
                if group.key == role:
                    await self.batches.call(group.on_all("hold", held))

    async def checkpoint(self) -> None:
        """Write `checkpoints/step_N`, unless it was just written."""
        if self._checkpointed_step == self.step:
            return
        self.display.phase("writing a checkpoint")
        if not self._stop.is_set():  # else the other roles may not answer
            await self.devices.begin(Phase.SAVE)
        state = RunState(
            step=self.step,
            seed=self.config.seed,
            kl_coef=self._kl_coef,
            ledger=self.folder.ledger_before(self.step),
            selection=self.selection.state(),
        )
        past_versions = (each.refresh_steps for each in self.config.opponents.values())
        spared = {self.step - self.step % every for every in past_versions if every is not None}
        if (best := self.selection.best_step) is not None:
            spared.add(best)
        with self.log.timed("checkpoint", Track.TRAINER, self.step):
            loop = asyncio.get_running_loop()
            save = self.trainers.actor.save
            await asyncio.to_thread(
                write_checkpoint,
                self.folder.path,
                state,
                lambda folder: asyncio.run_coroutine_threadsafe(save(folder.resolve()), loop).result(),
                keep=self.config.max_ckpt_to_keep,
                spared=spared,
            )
        self._checkpointed_step = self.step
        await self.batches.checkpointed(self.step)

    def give_way(self, why: str) -> None:
        """As `request_stop`, because a machine goes away; the run's last message says why."""
        if not self._stop.is_set():
            self._why_stopped = f"{why}: "
            self._stop.set()
            self.display.note(f"{why}; stopping with a checkpoint")

    def request_stop(self) -> None:
        """End as soon as nothing is lost, with a checkpoint; at the second request, end at once."""
        if self._stop.is_set():
            raise KeyboardInterrupt
        self._stop.set()
        if self.has_trained:
            self.display.note("stopping with a checkpoint; Ctrl-C again stops at once")

    async def _scores(self, trajectories: list[Trajectory]) -> ModelScores:
        args, call, trainers = self.config.algorithm, self.batches.call, self.trainers
        ids, of_tokens = token_ids(trajectories), supports(trajectories)
        reference_logprobs = logprobs = values = None
        if trainers.reference is not None:
            await self.devices.begin(Phase.SCORE, trainers.reference.key)
            reference_logprobs = await call(trainers.reference.logprobs(ids, (), of_tokens))
        if args.init_kl_coef > 0 or args.needs_values:
            await self.devices.begin(Phase.SCORE)
        if args.init_kl_coef > 0:
            replays = args.train_infer_correction.routing_replay
            experts = recorded_experts(trajectories) if replays else ()
            logprobs = await call(trainers.actor.logprobs(ids, experts, of_tokens))
        if args.needs_values:
            values = await call(trainers.actor.values(token_ids(trajectories, with_end=True)))
        tags = [each.task.tag for each in trajectories for part in each.segments() if part.tokens is not None]
        teacher = await self._teacher_scores(ids, tags) if trainers.teachers else ()
        return ModelScores(
            logprobs=logprobs, reference_logprobs=reference_logprobs, values=values, teacher=teacher
        )

    async def _teacher_scores(
        self, ids: Sequence[NDArray[np.int32]], tags: Sequence[str]
    ) -> list[TeacherScores | None]:
        """The scores of each sequence by the teacher of its tag."""
        found: list[TeacherScores | None] = [None] * len(ids)
        num_top, teacher_of = self.config.distill_top_k, teachers_by_tag(self.config)
        for name, group in self.trainers.teachers.items():
            own = [place for place, tag in enumerate(tags) if teacher_of.get(tag) == name]
            scores = await self.batches.call(group.score([ids[place] for place in own], num_top))
            for place, each in zip(own, scores, strict=True):
                found[place] = replace(each, coef=self.config.teachers[name].coef)
        return found

    async def close(self, *, patience_s: float) -> None:
        """End the processes of the run."""
        await self.batches.close(*(group.close for group in self.trainers.groups), patience_s=patience_s)

    async def unless_stopped(self, waiting: Awaitable[Result]) -> Result:
        """Wait, unless the user asks to stop first: then keep what was trained in a checkpoint, and end."""
        answer, stop = asyncio.ensure_future(waiting), asyncio.ensure_future(self._stop.wait())
        await asyncio.wait({answer, stop}, return_when=asyncio.FIRST_COMPLETED)
        if answer.done():
            stop.cancel()
            return answer.result()
        answer.cancel()
        if self.has_trained:
            await self.checkpoint()
        raise self._interrupted(f"before step {self.step + 1}")

    def _interrupted(self, when: str) -> Interrupted:
        return Interrupted(f"{self._why_stopped}stopped {when}; the same command continues from there")

    async def _showing_progress(self, request: Awaitable[Result]) -> Result:
        answer = asyncio.ensure_future(request)
        while not answer.done():
            await asyncio.wait({answer}, timeout=0.5)
            if not answer.done():
                ready = await self.batches.num_ready()
                self.display.rollouts(ready=ready, needed=self.config.train_batch_size)
        return answer.result()
