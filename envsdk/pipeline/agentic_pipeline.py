"""AgenticPipeline: train a policy on rollouts of agents.

    publish weights -> validate if due -> rollout_scheduler.get_batch() -> advantages -> train
    -> checkpoint if due

The loop is the same for synchronous and asynchronous runs; how far generation runs ahead of it is
the ledger's business (`async_generation_ratio`).
"""

from __future__ import annotations

import asyncio
import functools
import itertools
import json
import signal
import sys
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import yaml

from envsdk.config.algorithm_warnings import algorithm_notes
from envsdk.config.loading import LoadedConfig, leaves
from envsdk.config.models import RunConfig
from envsdk.display.progress import ProgressDisplay, StepSummary, Validation
from envsdk.display.terminal import say
from envsdk.failures import ConfigurationError, EnvsdkError, Interrupted
from envsdk.managers.batch_files import read_batch
from envsdk.managers.ledger_types import LedgerState
from envsdk.managers.ray_runtime import ray_runtime
from envsdk.managers.rollout_batch import RolloutBatch
from envsdk.pipeline.batches import ModelScores, learnable, prepare_batch, token_ids
from envsdk.pipeline.checkpoints import FOLDER as CHECKPOINTS
from envsdk.pipeline.checkpoints import Checkpoint, RunState, find_checkpoint, write_checkpoint
from envsdk.pipeline.cluster import Cluster
from envsdk.pipeline.engine_metrics import EngineMetrics
from envsdk.pipeline.rollout_metrics import num_sampled_tokens, rollout_metrics, validation_metrics
from envsdk.pipeline.run_origin import check_seed, model_of_run
from envsdk.settings.problems import dotted
from envsdk.settings.validation import shown
from envsdk.store.atomic import make_folder, write_atomically
from envsdk.store.file_lock import locked
from envsdk.store.trajectories import read_metadata
from envsdk.tracking import open_trackers, read_metrics
from envsdk.tracking.jsonl import FILE_NAME as METRICS_FILE
from envsdk.tracking.timeline import Timeline, Track
from envsdk.tracking.tracker import Tracker
from envsdk.trajectory import Trajectory

TRAJECTORIES = "trajectories"
CONFIG_FILE = "config.yaml"
LOCK_PATIENCE_S = 5.0
"""A process that was just killed may need a moment to end."""
Result = TypeVar("Result")


@dataclass(slots=True)
class RunFolder:
    """`runs/<exp_name>/` and where in it a run stands."""

    path: Path
    checkpoint: Checkpoint | None
    has_begun: bool = False
    """It holds a checkpoint of this run, or batches."""
    batches: dict[int, Path] = field(default_factory=dict)
    """Batches on disk that the checkpoint has not trained, by step."""
    state: LedgerState | None = None
    """The ledger's state after the newest batch on disk or, where none is left, in the checkpoint."""

    @property
    def first_step(self) -> int:
        return self.checkpoint.state.step if self.checkpoint else 0

    @classmethod
    def open(cls, config: RunConfig) -> RunFolder:
        """Where to continue.

        ConfigurationError when `resume: never` would overwrite a run, or another `seed` go on with it.
        """
        path = config.run_folder
        checkpoint = find_checkpoint(path, config.resume)
        trajectories = path / TRAJECTORIES
        left = itertools.chain(trajectories.glob("step_*.parquet"), (path / CHECKPOINTS).glob("step_*"))
        if config.resume == "never" and any(left):
            raise ConfigurationError(
                f"resume: never, but {path} already holds a run; choose another exp_name, "
                f"set resume: auto to continue it, or remove the folder"
            )
        is_own = checkpoint is not None and checkpoint.folder.resolve().is_relative_to(path.resolve())
        if checkpoint is not None and is_own:
            check_seed(config, checkpoint.state.seed)
        make_folder(trajectories)
        folder = cls(path=path, checkpoint=checkpoint, has_begun=is_own)
        step = folder.first_step
        while (batch := trajectories / f"step_{step:06d}.parquet").is_file():
            folder.batches[step] = batch
            folder.has_begun = True
            step += 1
        newest = folder.ledger_before(step)
        folder.state = None if newest is None else LedgerState.from_dict(newest)
        return folder

    def ledger_before(self, step: int) -> Mapping[str, Any] | None:
        """`LedgerState.to_dict` after the batch before this step, from its file or else the checkpoint."""
        batch = self.path / TRAJECTORIES / f"step_{step - 1:06d}.parquet"
        if batch.is_file():
            state: dict[str, Any] = json.loads(read_metadata(batch)["ledger_state"])
            return state
        if self.checkpoint is not None and step == self.first_step:
            return self.checkpoint.state.ledger
        return None


def _interruptible(
    part: Callable[[AgenticPipeline], Awaitable[Result]],
) -> Callable[[AgenticPipeline], Awaitable[Result]]:
    """A part of the run that may take long and loses nothing when the user asks to stop."""

    @functools.wraps(part)
    async def unless_stopped(pipeline: AgenticPipeline) -> Result:
        return await pipeline.unless_stopped(part(pipeline))

    return unless_stopped


class AgenticPipeline:
    """One training run. `run` returns when `max_steps` batches are trained."""

    def __init__(
        self,
        config: RunConfig,
        folder: RunFolder,
        cluster: Cluster,
        *,
        tracker: Tracker,
        timeline: Timeline,
        display: ProgressDisplay,
    ) -> None:
        self.config = config
        self.folder = folder
        self.cluster = cluster
        self.tracker = tracker
        self.timeline = timeline
        self.display = display
        self.step = folder.first_step
        self.validations = earlier_validations(folder)
        self._metrics: dict[str, float] = {}
        self._engine_metrics = EngineMetrics()
        self._kl_coef: float | None = None
        if config.target_kl is not None and folder.checkpoint is not None:
            self._kl_coef = folder.checkpoint.state.kl_coef
        self._failing_tags: set[str] = set()
        """Those that the user has been told of."""
        self._checkpointed_step = -1
        self.has_trained = False
        """From its first batch on this process has something to keep."""
        self._stop = asyncio.Event()
        self._started_at = time.monotonic()

    async def run(self) -> None:
        """The algorithm."""
        while self.step < self.config.max_steps:
            step_began = time.monotonic()
            await self.publish()
            if self.step == 0 or self.is_due(self.config.eval_steps):
                await self.validate()
            batch = await self.get_batch()
            await self.train(batch)
            self._metrics["time/step_s"] = time.monotonic() - step_began
            await self.log_step(batch)
            self.step += 1
            if self.is_due(self.config.save_steps) or self._stop.is_set():
                await self.checkpoint()
            if self._stop.is_set():
                raise Interrupted(f"stopped after step {self.step}; the same command continues from there")
        await self.publish()
        await self.validate()
        await self.log_validation()
        await self.checkpoint()

    def is_due(self, every: int) -> bool:
        """Whether something done every so many steps is due before the present one."""
        return every > 0 and self.step % every == 0

    @_interruptible
    async def start(self) -> None:
        """Start everything, and load what the run continues from."""
        self.display.phase("starting engines, workers and the trainer")
        await self.cluster.start()
        for note in algorithm_notes(self.config):
            self.display.note(f"note: {note}")
        if self.folder.checkpoint is not None:
            await self.cluster.call(self.cluster.trainer.load(self.folder.checkpoint.folder.resolve()))
            self.display.note(f"continuing {self.folder.path} from step {self.folder.first_step}")
        if self.folder.batches:
            self.display.note(f"{len(self.folder.batches)} batches on disk are trained first")

    @_interruptible
    async def publish(self) -> None:
        """The trainer's weights to the engines, as version `step`.

        Rollouts wait until the batches that an earlier process left on disk are trained.
        """
        self.display.phase("publishing weights")
        with self._timed("publish", Track.PUBLISH):
            to_rollouts = self.step not in self.folder.batches
            self._metrics |= await self.cluster.publish(self.step, to_rollouts=to_rollouts)

    @_interruptible
    async def validate(self) -> None:
        """Play the held-out tasks under the present weights; training episodes wait meanwhile."""
        self.display.phase("evaluating on held-out tasks")
        pause = self.config.validation == "pause"
        with self._timed("validate", Track.VALIDATION):
            if pause:
                await self.cluster.call(self.cluster.rollout_scheduler.suspend.remote())
            batch = await self.cluster.validate(self.step, self.step)
            if pause:
                await self.cluster.call(self.cluster.rollout_scheduler.resume.remote())
        metrics = self.validations[self.step] = validation_metrics(batch)
        self._metrics |= metrics
        result = Validation.from_metrics(metrics, step=self.step)
        if result is not None:
            self.display.validation(result)

    @_interruptible
    async def get_batch(self) -> RolloutBatch:
        """The next batch: one that an earlier process left on disk, or a new one."""
        self.display.phase("waiting for rollouts")
        on_disk = self.folder.batches.pop(self.step, None)
        with self._timed("wait_batch", Track.TRAINER, name="wait"):
            if on_disk is not None:
                return read_batch(on_disk)
            rollout_scheduler = self.cluster.rollout_scheduler
            request = rollout_scheduler.get_batch.remote(self.config.rollout_batch_size, self.step)
            return await self.cluster.call(self._showing_progress(request))

    async def train(self, batch: RolloutBatch) -> None:
        """Advantages and one trainer step. Failed episodes are left out, with their tokens."""
        self.display.phase("training")
        self.has_trained = True
        trajectories = learnable(batch.trajectories)
        with self._timed("train", Track.TRAINER):
            scores = await self._scores(trajectories)
            prepared = prepare_batch(
                self.config.algorithm, self.step, trajectories, scores, kl_coef=self._kl_coef
            )
            metrics = await self.cluster.train_step(prepared.batch)
        self._kl_coef = prepared.kl_coef
        self._metrics |= prepared.metrics | metrics

    async def checkpoint(self) -> None:
        """Write `checkpoints/step_N`, unless it was just written."""
        if self._checkpointed_step == self.step:
            return
        self.display.phase("writing a checkpoint")
        state = RunState(
            step=self.step,
            seed=self.config.seed,
            kl_coef=self._kl_coef,
            ledger=self.folder.ledger_before(self.step),
        )
        with self._timed("checkpoint", Track.TRAINER):
            loop = asyncio.get_running_loop()
            save = self.cluster.trainer.save
            await asyncio.to_thread(
                write_checkpoint,
                self.folder.path,
                state,
                lambda folder: asyncio.run_coroutine_threadsafe(save(folder.resolve()), loop).result(),
            )
        self._checkpointed_step = self.step

    def request_stop(self) -> None:
        """End as soon as nothing is lost, with a checkpoint of what was trained; asked again, end at once."""
        if self._stop.is_set():
            raise KeyboardInterrupt
        self._stop.set()
        if self.has_trained:
            self.display.note("stopping with a checkpoint; Ctrl-C again stops at once")

    async def _scores(self, trajectories: list[Trajectory]) -> ModelScores:
        args, cluster = self.config.algorithm, self.cluster
        ids = token_ids(trajectories)
        reference_logprobs = logprobs = values = None
        if cluster.reference is not None:
            reference_logprobs = await cluster.call(cluster.reference.logprobs(ids))
        if args.init_kl_coef > 0:
            logprobs = await cluster.call(cluster.trainer.logprobs(ids))
        if args.needs_values:
            values = await cluster.call(cluster.trainer.values(token_ids(trajectories, with_end=True)))
        return ModelScores(logprobs=logprobs, reference_logprobs=reference_logprobs, values=values)

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
        raise Interrupted(f"stopped before step {self.step + 1}; the same command continues from there")

    async def _showing_progress(self, request: Awaitable[Result]) -> Result:
        answer = asyncio.ensure_future(request)
        while not answer.done():
            await asyncio.wait({answer}, timeout=0.5)
            if not answer.done():
                ready = await self.cluster.rollout_scheduler.num_ready.remote()
                self.display.rollouts(ready=ready, needed=self.config.rollout_batch_size)
        return answer.result()

    async def log_step(self, batch: RolloutBatch) -> None:
        """Metrics of the step to the trackers, the display and the timeline."""
        metrics = self._metrics | rollout_metrics(batch)
        metrics |= await self._generation_metrics(metrics["time/step_s"], batch)
        metrics["version"] = float(batch.version)
        for tag in batch.failing_tags.keys() - self._failing_tags:
            self.display.note(f"no episode of {tag} is in this batch: {batch.failing_tags[tag]}")
        self._failing_tags = set(batch.failing_tags)
        if (self.step + 1) % self.config.logging_steps == 0 or any(n.startswith("val/") for n in metrics):
            self.tracker.log(self.step, metrics, time_unix_s=time.time())
        done = self.step + 1 - self.folder.first_step
        eta_s = (time.monotonic() - self._started_at) / done * (self.config.max_steps - self.step - 1)
        self.display.step(
            StepSummary.from_metrics(metrics, step=self.step, max_steps=self.config.max_steps, eta_s=eta_s)
        )
        self._metrics = {}

    async def log_validation(self) -> None:
        """The last evaluation belongs to no step of training."""
        self.tracker.log(self.step, self._metrics, time_unix_s=time.time())
        self._metrics = {}

    async def _generation_metrics(self, step_s: float, batch: RolloutBatch) -> Mapping[str, float]:
        stretches = await self.cluster.call(self.cluster.engines.busy_stretches())
        for start, end in stretches:
            self.timeline.span(Track.GENERATION, "generate", start, end, step=self.step)
        busy_s = sum(end - start for start, end in stretches) / max(1, self.cluster.engines.num_engines)
        health = await self.cluster.call(self.cluster.engines.health())
        num_tokens = sum(map(num_sampled_tokens, batch.trajectories)) + batch.discarded_tokens
        return {
            "rollout/tokens_per_s": num_tokens / step_s,
            "time/engine_idle_share": max(0.0, 1.0 - busy_s / step_s),
            "engine/serving": float(self.cluster.engines.num_serving),
            "engine/restarts": float(self.cluster.engines.num_restarts),
        } | self._engine_metrics.step(health, time.monotonic())

    def _timed(self, what: str, track: Track, name: str | None = None) -> _Timed:
        return _Timed(self._metrics, f"time/{what}_s", self.timeline, track, name or what, self.step)


class _Timed:
    """Adds a block's seconds to a metric and a span to the timeline."""

    def __init__(
        self, metrics: dict[str, float], key: str, timeline: Timeline, track: Track, name: str, step: int
    ) -> None:
        self._metrics, self._key = metrics, key
        self._timeline, self._track, self._name, self._step = timeline, track, name, step

    def __enter__(self) -> None:
        self._start = time.time()

    def __exit__(self, *exc: object) -> None:
        end = time.time()
        self._metrics[self._key] = self._metrics.get(self._key, 0.0) + end - self._start
        self._timeline.span(self._track, self._name, self._start, end, step=self._step)


def earlier_validations(folder: RunFolder) -> dict[int, dict[str, float]]:
    """Evaluations of the run before the step it continues from."""
    metrics = folder.path / METRICS_FILE
    rows = read_metrics(metrics) if metrics.is_file() else []
    return {
        step: {name: value for name, value in row.items() if name.startswith("val/")}
        for row in rows
        if (step := int(row["step"])) < folder.first_step and "val/success/mean" in row
    }


def run(loaded: LoadedConfig) -> None:
    """Train as the configuration says. Raises EnvsdkError; Interrupted after Ctrl-C."""
    config = loaded.config
    with _only_run_in(config.run_folder):
        _train(loaded)


@contextmanager
def _only_run_in(folder: Path) -> Iterator[None]:
    """Keep a second process from training in `folder`."""
    make_folder(folder)
    with ExitStack() as stack:
        try:
            stack.enter_context(locked(folder / ".lock", patience_s=LOCK_PATIENCE_S))
        except BlockingIOError:
            raise ConfigurationError(
                f"another process is training in {folder}; wait for it, or choose another exp_name"
            ) from None
        yield


def _train(loaded: LoadedConfig) -> None:
    config = loaded.config
    folder = RunFolder.open(config)
    if folder.first_step >= config.max_steps:
        say(f"{folder.path} has all {config.max_steps} steps; raise max_steps or choose another exp_name.")
        if not (folder.path / "report.html").is_file():
            say(f"Report: {_write_report(folder)}")
        return
    model = model_of_run(config, has_begun=folder.has_begun)
    changes = changed_settings(folder, loaded) if folder.has_begun else []
    write_atomically(folder.path / CONFIG_FILE, loaded.resolved_yaml().encode())
    keep_tokenizer(model, folder.path)
    if_lost = [sys.executable, "-m", "envsdk.pipeline.lost_runtime", str(folder.path)]
    with ray_runtime(config.ray, if_lost=if_lost):
        asyncio.run(_run(config, folder, model, changes))


def changed_settings(folder: RunFolder, loaded: LoadedConfig) -> list[str]:
    """`key: before -> now` of what the run was last started with and is continued with."""
    file = folder.path / CONFIG_FILE
    before = leaves(yaml.safe_load(file.read_text())) if file.is_file() else {}
    now = leaves(yaml.safe_load(loaded.resolved_yaml()))
    return [
        f"{dotted(path)}: {shown(before.get(path))} -> {shown(now.get(path))}"
        for path in dict.fromkeys([*before, *now])
        if before.get(path) != now.get(path) and before
    ]


def keep_tokenizer(model: Path, folder: Path) -> None:
    """Copy a model's `tokenizer.json`, if it has one: a run's tokens stay readable without the model."""
    tokenizer = model / "tokenizer.json"
    if tokenizer.is_file():
        write_atomically(folder / tokenizer.name, tokenizer.read_bytes())


async def _run(config: RunConfig, folder: RunFolder, model: Path, changes: Sequence[str]) -> None:
    trajectories = (folder.path / TRAJECTORIES).resolve()
    with ExitStack() as stack:
        display = stack.enter_context(ProgressDisplay(config.exp_name, max_steps=config.max_steps))
        timeline = stack.enter_context(Timeline(folder.path / "timeline.json"))
        tracker = open_trackers(config.trackers, folder.path)
        stack.callback(tracker.close)
        tracker.rewind(folder.first_step - 1)
        cluster = Cluster(
            config, model=model, trajectories=trajectories, state=folder.state, say=display.note
        )
        pipeline = AgenticPipeline(
            config, folder, cluster, tracker=tracker, timeline=timeline, display=display
        )
        loop = asyncio.get_running_loop()
        for signal_number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(signal_number, pipeline.request_stop)
        for change in changes:
            display.note(f"other settings than before: {change}")
        display.note(f"run folder: {folder.path}; look inside with: envsdk view {folder.path}")
        try:
            await pipeline.start()
            await pipeline.run()
        except BaseException as error:
            # What went wrong is what the user must see, not a report that could not be written either.
            with suppress(EnvsdkError):
                if isinstance(error, Interrupted) and not pipeline.has_trained:
                    # Actors that are still starting would not answer for seconds, and nothing was done.
                    await _close(cluster, tracker, timeline, patience_s=0.0)
                else:
                    await _close(cluster, tracker, timeline)
                    _write_report(folder)
            raise
        await _close(cluster, tracker, timeline)
        report = _write_report(folder)
    say(_before_and_after(pipeline.validations))
    say(f"Report: {report}")
    say(f"Trajectories: envsdk view {folder.path}")


async def _close(cluster: Cluster, tracker: Tracker, timeline: Timeline, *, patience_s: float = 5.0) -> None:
    await cluster.close(patience_s=patience_s)
    tracker.close()
    timeline.close()


def _write_report(folder: RunFolder) -> Path | None:
    """The report, if there is anything to report."""
    from envsdk.report import write_report

    metrics = folder.path / METRICS_FILE
    return write_report(folder.path) if metrics.is_file() and metrics.stat().st_size else None


def _before_and_after(validations: Mapping[int, Mapping[str, float]]) -> str:
    """Held-out success before and after, by tag."""
    first, last = validations[min(validations)], validations[max(validations)]
    names = [name for name in first if name.startswith("val/success/")]
    lines = [f"Held-out success, step {min(validations)} -> step {max(validations)}:"]
    for name in sorted(names, key=lambda name: (name != "val/success/mean", name)):
        before, after = first[name], last.get(name, float("nan"))
        tag = name.removeprefix("val/success/")
        lines.append(f"  {tag:<28} {before:6.1%} -> {after:6.1%}   ({100 * (after - before):+.1f} points)")
    return "\n".join(lines)
