"""`mode: bench`: evaluates the versions that a job's trainer publishes, as they appear.

    newest version -> due? -> engines -> held-out tasks -> bench/metrics.jsonl     until the last one

The tasks and their sampling are those of a single program's evaluations. A version that a newer one replaced
before this program came to it is left out, which it says.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import KW_ONLY, dataclass
from pathlib import Path

from envsdk.base.display.scores import failed_kinds, held_out, in_one_line
from envsdk.base.display.terminal import say
from envsdk.base.processes.interrupts import on_stop_signals
from envsdk.base.store.atomic import make_folder, write_atomically
from envsdk.config.loading import LoadedConfig
from envsdk.config.models import RunConfig
from envsdk.config.start_checks import check_start
from envsdk.contracts.failures import EnvsdkError, Interrupted, RolloutStalled
from envsdk.explorers.published import PublishedVersions, Standing, done_before
from envsdk.explorers.weights import FetchedVersion, VersionReader
from envsdk.managers.ray_runtime import ray_runtime
from envsdk.runs.lost_runtime import lost_runtime
from envsdk.runs.rollout_cluster import RolloutCluster
from envsdk.runs.rollout_metrics import validation_metrics, validation_problem
from envsdk.runs.run import ending_told, success_before_and_after
from envsdk.runs.run_folder import CONFIG_FILE, TRAJECTORIES, only_run_in
from envsdk.runs.run_origin import model_of_job
from envsdk.tracking import BENCH, Tracker, open_trackers, read_metrics
from envsdk.tracking.jsonl import FILE_NAME as METRICS_FILE
from envsdk.view.export import write_report_of_job
from envsdk.weights.source import GivenWeights


def run(loaded: LoadedConfig) -> None:
    """Evaluate until the trainer has finished and its last version is evaluated.

    Raises EnvsdkError; Interrupted after Ctrl-C or SIGTERM.
    """
    config = loaded.config
    check_start(config)
    folder = config.run_folder / BENCH
    with only_run_in(folder, taken="another process evaluates in"):
        model = model_of_job(config)
        make_folder(config.run_folder / TRAJECTORIES)
        write_atomically(folder / CONFIG_FILE, loaded.resolved_yaml().encode())
        if_lost = lost_runtime(
            f"The evaluations in {folder} are whole: the same command continues with the newest version",
            report_of=config.run_folder,
        )
        with ray_runtime(config.ray, if_lost=if_lost):
            asyncio.run(_run(config, folder, model))
        report = write_report_of_job(config.run_folder)
        say(success_before_and_after(_evaluations(folder)))
        if report is not None:
            say(f"Report: {report}")


async def _run(config: RunConfig, folder: Path, model: Path) -> None:
    weights = GivenWeights(model)
    cluster = RolloutCluster(
        config,
        model=model,
        trajectories=(config.run_folder / TRAJECTORIES).resolve(),
        weights=weights,
        say=_note,
    )
    reader = VersionReader(config, folder, model, say=_note)
    versions = PublishedVersions(config, reader, say=_note, model=model)
    with ExitStack() as stack:
        tracker = open_trackers(config.trackers, folder, config.tracker_args)
        stack.callback(tracker.close)
        bench = Bench(
            config,
            cluster,
            versions,
            weights,
            tracker=tracker,
            evaluated=max(_evaluations(folder), default=None),
        )
        stop = asyncio.Event()
        on_stop_signals(stop.set)
        try:
            with ending_told(tracker):
                if not await done_before(stop, bench.run()):
                    raise Interrupted("bench stopped; the same command continues with the newest version")
        finally:
            await cluster.close(versions.close)


@dataclass
class Bench:
    """The evaluations of one job. `run` returns after the last version."""

    config: RunConfig
    cluster: RolloutCluster
    versions: PublishedVersions
    weights: GivenWeights
    _: KW_ONLY
    tracker: Tracker
    evaluated: int | None
    """The step of the newest version that was evaluated, also by an earlier process."""

    def __post_init__(self) -> None:
        self._plan = EvaluationPlan(self.config.eval_steps, self.config.synchronizer.sync_interval)
        self._trainer_gone_since: float | None = None

    async def run(self) -> None:
        """Evaluate what is published."""
        await self.versions.open()
        _note("starting engines and workers")
        await self.cluster.start()
        while True:
            standing = await self.versions.look()
            newest, is_last = standing.newest, standing.is_finished
            if newest is not None and newest.step < (self.evaluated or 0):
                _note(f"the trainer went back to step {newest.step}: what came after it is evaluated again")
                self.tracker.rewind(newest.step)
                self.evaluated = max(_evaluations(self.config.run_folder / BENCH), default=None)
            if newest is not None and self._plan.is_due(newest.step, after=self.evaluated, is_last=is_last):
                if (found := await self.versions.fetch(newest)) is not None:
                    await self._evaluate(found)
            elif is_last:
                return
            else:
                await self.versions.changed()
            self._look_after_trainer(standing)

    async def _evaluate(self, found: FetchedVersion) -> None:
        step, began = found.step, time.monotonic()
        if missed := self._plan.missed(step, after=self.evaluated):
            _note(
                f"step {step} is evaluated in place of {', '.join(map(str, missed))}, whose weights were "
                "replaced before this program came to them"
            )
        weights = found.weights
        if isinstance(weights, Path):
            weights = await asyncio.to_thread(self.weights.checked, weights)
        async with self.cluster.weights_moving():
            self.weights.hold(weights)
        await self.cluster.give_weights(found.version)
        batch = await self.cluster.validate(found.version, step)
        metrics = validation_metrics(batch) | {
            "version": float(found.version),
            "time/validate_s": time.monotonic() - began,
        }
        self.tracker.log(step, metrics, time_unix_s=time.time())
        self.evaluated = step
        _note(_line(metrics, step, found.version))
        if problem := validation_problem(metrics, self.config.max_failed_share):
            raise RolloutStalled(f"evaluation after {step} steps: {problem}")

    def _look_after_trainer(self, standing: Standing) -> None:
        """Say that the trainer is gone; EnvsdkError when it is for too long."""
        patience_s, now = self.config.buffer.patience_s, time.monotonic()
        if standing.has_trainer or standing.is_finished:
            self._trainer_gone_since = None
        elif self._trainer_gone_since is None:
            self._trainer_gone_since = now
            _note(f"no trainer is running; waiting for one at most {patience_s:g} s (buffer.patience_s)")
        elif now - self._trainer_gone_since > patience_s:
            raise EnvsdkError(
                f"no trainer has run for {patience_s:g} s (buffer.patience_s). Start the trainer again, then "
                "this program: it continues with the newest version"
            )


def _evaluations(folder: Path) -> dict[int, dict[str, float]]:
    """What was evaluated, by step."""
    file = folder / METRICS_FILE
    rows = read_metrics(file) if file.is_file() else []
    return {int(row["step"]): row for row in rows if "val/episodes" in row}


def _line(metrics: Mapping[str, float], step: int, version: int) -> str:
    took = f"{metrics['time/validate_s']:.1f} s"
    line = in_one_line(held_out(metrics), failed_kinds(metrics))
    return f"held-out after {step} steps (version {version}): {line} | {took}"


def _note(text: str) -> None:
    say(f"bench: {text}", flush=True)


@dataclass(frozen=True, slots=True)
class EvaluationPlan:
    """As in a single program: at the first step, every `eval_steps` steps, and at the last one."""

    eval_steps: int
    """0: only the first and the last version."""
    sync_interval: int
    """Steps per version: an evaluation that is due in between waits for the next version."""

    def is_due(self, step: int, *, after: int | None, is_last: bool) -> bool:
        """Whether the version of `step` is evaluated, where that of step `after` was the one before."""
        if after is None:
            return True
        if step <= after:
            return False
        return is_last or (self.eval_steps > 0 and step // self.eval_steps > after // self.eval_steps)

    def missed(self, step: int, *, after: int | None) -> list[int]:
        """Steps of versions that were due after `after`, and in whose place that of `step` is evaluated."""
        if not self.eval_steps:
            return []
        after = -1 if after is None else after
        every, interval = self.eval_steps, self.sync_interval
        marks = range((after // every + 1) * every, step, every)
        return sorted({due for mark in marks if (due := -(-mark // interval) * interval) < step})
