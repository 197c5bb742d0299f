"""The report of each step: metrics to the trackers, a line to the display, spans to the timeline."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import KW_ONLY, dataclass, field

from envsdk.base.display.progress import ProgressDisplay, StepSummary
from envsdk.base.store.tally import unscorable
from envsdk.config.models import RunConfig
from envsdk.contracts.trajectory import RolloutBatch
from envsdk.engines.engine import EngineHealth
from envsdk.managers.harness_env_manager import failed_programs
from envsdk.runs.batch_source import BatchSource
from envsdk.runs.rollout_metrics import DroppedTokens, rollout_metrics
from envsdk.tracking import read_metrics
from envsdk.tracking.cost import TOTAL, CostMeter, Usage, usage_of
from envsdk.tracking.jsonl import FILE_NAME
from envsdk.tracking.learning_signs import LearningSigns
from envsdk.tracking.timeline import Timeline, Track
from envsdk.tracking.tracker import Tracker


@dataclass
class StepLog:
    """Collects the metrics of a step: (timed | metrics)* -> step_done, again for every step.

    Owner: the pipeline.
    """

    config: RunConfig
    batches: BatchSource
    _: KW_ONLY
    first_step: int
    tracker: Tracker
    timeline: Timeline
    display: ProgressDisplay
    metrics: dict[str, float] = field(default_factory=dict, init=False)
    """Metrics of the step under way."""

    def __post_init__(self) -> None:
        self._engine_metrics = EngineMetrics()
        self._signs = LearningSigns()
        self._dropped = DroppedTokens()
        self._failing_tags: set[str] = set()
        """Those that the display has named already."""
        self._warnings = [failed_programs, unscorable]
        """Those that were not given yet."""
        self._started_at = self._metered_at = time.monotonic()
        self._cost = cost_meter(self.config, self.first_step)

    @contextmanager
    def timed(self, what: str, track: Track, step: int, *, name: str | None = None) -> Iterator[None]:
        """Add the seconds of a block to the metric `time/WHAT_s`, and a span to the timeline."""
        start, began = time.time(), time.monotonic()
        try:
            yield
        finally:
            # The time of day may be set meanwhile.
            seconds, key = time.monotonic() - began, f"time/{what}_s"
            self.metrics[key] = self.metrics.get(key, 0.0) + seconds
            self.timeline.span(track, name or what, start, start + seconds, step=step)

    async def step_done(self, step: int, batch: RolloutBatch) -> None:
        """Report the step: to the trackers, the display and the timeline."""
        config = self.config
        metrics = self.metrics | rollout_metrics(batch) | self._dropped.add(batch)
        metrics |= await self._generation_metrics(step, metrics["time/step_s"], batch)
        metrics["version"] = float(batch.version)
        self.played(batch, discarded_tokens=batch.discarded_tokens)
        metrics |= self._cost_metrics()
        for tag in batch.failing_tags.keys() - self._failing_tags:
            self.display.note(f"no episode of {tag} is in this batch: {batch.failing_tags[tag]}")
        self._failing_tags = set(batch.failing_tags)
        for tell in [*self._warnings]:
            if said := tell(batch.trajectories):
                self._warnings.remove(tell)
                self.display.note(said)
        if warning := self._dropped.warning():
            self.display.note(warning)
        if (step + 1) % config.logging_steps == 0 or any(n.startswith("val/") for n in metrics):
            self.tracker.log(step, metrics, time_unix_s=time.time())
        self.tracker.log_episodes(step, batch.trajectories)
        done = step + 1 - self.first_step
        eta_s = (time.monotonic() - self._started_at) / done * (config.max_steps - step - 1)
        self.display.step(
            StepSummary.from_metrics(metrics, step=step, max_steps=config.max_steps, eta_s=eta_s)
        )
        self._tell_signs(metrics)
        self.metrics = {}

    def run_done(self, step: int) -> None:
        """Report the last evaluation, which belongs to no step of training."""
        self._tell_signs(self.metrics)
        self.tracker.log(step, self.metrics | self._cost_metrics(), time_unix_s=time.time())
        self.metrics = {}

    def played(self, batch: RolloutBatch, *, discarded_tokens: int = 0) -> None:
        """Count what these episodes used, those of evaluations too."""
        self._cost.add(usage_of(batch.trajectories) + Usage(output_tokens=discarded_tokens))

    def _tell_signs(self, metrics: Mapping[str, float]) -> None:
        for sign in self._signs.step(metrics):
            self.display.note(sign)

    def _cost_metrics(self) -> dict[str, float]:
        before, self._metered_at = self._metered_at, time.monotonic()
        return self._cost.step(self._metered_at - before)

    async def _generation_metrics(self, step: int, step_s: float, batch: RolloutBatch) -> Mapping[str, float]:
        num_tokens = sum(each.num_sampled_tokens for each in batch.trajectories) + batch.discarded_tokens
        speed = {"rollout/tokens_per_s": num_tokens / step_s}
        engines = await self.batches.engine_status()
        if engines is None:
            return speed
        for start, end in engines.busy:
            self.timeline.span(Track.GENERATION, "generate", start, end, step=step)
        busy_s = sum(end - start for start, end in engines.busy) / max(1, engines.num_engines)
        return {
            **speed,
            "time/engine_idle_share": max(0.0, 1.0 - busy_s / step_s),
            "engine/serving": float(engines.num_serving),
            "engine/restarts": float(engines.num_restarts),
        } | self._engine_metrics.step(engines.health, time.monotonic())


def cost_meter(config: RunConfig, first_step: int) -> CostMeter:
    """The meter of a run that begins or continues at `first_step`."""
    roles = (config.actor_train, config.actor_infer, config.reference)
    devices = {device for role in roles for device in role.device_mapping or ()}
    return CostMeter(
        config.prices,
        num_gpus=len(devices),
        num_cpus=config.ray.num_cpus or os.cpu_count() or 1,
        total=_spent_before(config, first_step),
    )


def _spent_before(config: RunConfig, first_step: int) -> float:
    file = config.run_folder / FILE_NAME
    if not first_step or not file.is_file():
        return 0.0
    return max((row.get(TOTAL, 0.0) for row in read_metrics(file) if row["step"] < first_step), default=0.0)


@dataclass(frozen=True, slots=True)
class _Look:
    time_s: float
    num_tokens: int


class EngineMetrics:
    """Keeps the last look at each engine, because rates are between two.

    Owner: the pipeline, which looks once per step.
    """

    def __init__(self) -> None:
        self._looks: dict[str, _Look] = {}

    def step(self, health: Mapping[str, EngineHealth], now_s: float) -> dict[str, float]:
        """Metrics of one look at every engine that runs; `now_s` on any clock that only goes forward."""
        looks = health.values()
        metrics = {
            "engine/tokens_sampled": float(sum(look.num_tokens_sampled for look in looks)),
            "engine/prompt_tokens": float(sum(look.num_prompt_tokens for look in looks)),
            "engine/prefilled_tokens": float(sum(look.num_prefilled_tokens for look in looks)),
            "engine/queued": float(sum(look.num_queued for look in looks)),
            "engine/kv_usage": max((look.kv_usage for look in looks), default=0.0),
        }
        for name, look in health.items():
            metrics[f"engine/{name}/queued"] = float(look.num_queued)
            metrics[f"engine/{name}/kv_usage"] = look.kv_usage
            last = self._looks.get(name)
            if last is not None and now_s > last.time_s:
                # A restarted engine counts from 0 again.
                before = last.num_tokens if last.num_tokens <= look.num_tokens_sampled else 0
                rate = (look.num_tokens_sampled - before) / (now_s - last.time_s)
                metrics[f"engine/{name}/tokens_per_s"] = rate
        self._looks = {name: _Look(now_s, look.num_tokens_sampled) for name, look in health.items()}
        return metrics
