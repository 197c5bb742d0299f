"""Predictions of `envsdk plan` beside real runs.

    python benchmarks/plan_accuracy.py [--json FILE] [--only mock|embedded] [--num-steps 24]

Each family of configurations has one run that is measured, from which `envsdk.view.planning.measured` takes
episodes, reply times, training times and weight updates. The others are predicted from it: other values of
alpha, of the group size, of the redundancy and of the number of replies per engine. How long a mock engine's
reply takes is stated, not measured.

    mock       the real ledger, scheduler, workers, routers and engine hosts on Ray; mock engines answer after
               a drawn time, and a trainer sleeps. The runs of a family go on side by side: they mostly wait.
    embedded   whole runs, `envsdk train agentic_async.yaml`, one after another: they compute

The exit code is 1 when a prediction is more than 7% off.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from statistics import fmean
from typing import Any

import gymnasium
import ray
from orchestration import actor, publish_weights, worker_setups, write_toy_tokenizer

from envsdk.config.ray_models import RayArgs
from envsdk.contracts.env import EnvSpec, Info, TextEnv
from envsdk.contracts.trajectory import Trajectory
from envsdk.engines.engine import EngineConfig
from envsdk.engines.engine_host import EngineHost
from envsdk.engines.mock import LognormalLatency
from envsdk.managers.env_host import EnvBlueprint
from envsdk.managers.ray_runtime import ray_runtime
from envsdk.managers.scheduler import RolloutScheduler, SchedulerSetup
from envsdk.managers.traj_env_manager import TagSetup
from envsdk.tracking.jsonl import read_run_metrics
from envsdk.view.planning.candidates import Candidate, Plan
from envsdk.view.planning.measured import FIRST_STEPS, measured, read_measured
from envsdk.view.planning.simulation import simulate
from envsdk.view.planning.workload import EngineTime, StatedEpisodes, Timings, TrainTime, Workload

TAG = "episode"
NUM_TURNS = 3
MAX_ERROR = 0.07
SEEDS = 4
"""Simulations that a prediction is the mean of."""


class ThreeTurns(TextEnv):
    """An environment that takes no time."""

    observation_space = gymnasium.spaces.Text(100)
    action_space = gymnasium.spaces.Text(100)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, Info]:
        self._turn = 0
        return "P _ _ G turn 0", {}

    def step(self, action: str) -> tuple[str, float, bool, bool, Info]:
        self._turn += 1
        return "P _ _ G turn", 0.0, self._turn >= NUM_TURNS, False, {}


SPEC = EnvSpec(id="benchmark/ThreeTurns-v0", entry_point="plan_accuracy:ThreeTurns")


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """One configuration."""

    alpha: float
    max_staleness: int | None = None
    batch_size: int = 64
    group_size: int = 8
    spare_groups: int = 0
    spare_members: int = 0
    max_running: int = 64
    num_engines: int = 2
    num_envs: int = 128
    num_envs_per_worker: int = 128

    @property
    def candidate(self) -> Candidate:
        """As the planner knows it: a device for each engine, and one that trains."""
        return Candidate(
            sampling_devices=self.num_engines,
            async_generation_ratio=self.alpha,
            max_staleness=self.max_staleness,
            group_size=self.group_size,
            num_groups_redundancy=self.spare_groups,
            group_size_redundancy=self.spare_members,
            infer_batch_size=self.max_running,
        )

    def plan(self, workload: Workload | None = None, seed: int = 0) -> Plan:
        """A plan with nothing to search."""
        return Plan(
            workload=workload or Workload(episodes=StatedEpisodes(), timings=Timings()),
            devices=self.num_engines + 1,
            batch_size=self.batch_size,
            base=self.candidate,
            dimensions={},
            num_envs=self.num_envs,
            slots_per_worker=self.num_envs_per_worker,
            episode_deadline_s=3600.0,
            seed=seed,
        )

    @property
    def warmup(self) -> int:
        """Steps before those that are measured."""
        return math.ceil(self.alpha) + 3

    def __str__(self) -> str:
        parts = [f"alpha {self.alpha:g}"]
        if self.max_staleness is not None:
            parts[0] += f"/{self.max_staleness}"
        plain = Config(alpha=self.alpha)
        names = {
            "group_size": "groups of {}",
            "spare_groups": "{} spare groups",
            "spare_members": "{} spare members",
            "batch_size": "batch {}",
            "max_running": "{} running",
            "num_envs": "{} environments",
        }
        for name, text in names.items():
            if (value := getattr(self, name)) != getattr(plain, name):
                parts.append(text.format(value))
        return ", ".join(parts)


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A configuration, as it ran and as it was predicted; seconds per step."""

    family: str
    config: str
    is_measured: bool
    """Whether the predictions of its family come from this run."""
    real_s: float
    predicted_s: float
    real_waste: float
    predicted_waste: float
    load_average: float

    @property
    def error(self) -> float:
        return self.predicted_s / self.real_s - 1


@dataclass(frozen=True, slots=True)
class RealRun:
    """What a run did."""

    batches: list[list[Trajectory]] = field(default_factory=list)
    steps: list[dict[str, float]] = field(default_factory=list)
    wastes: list[tuple[int, int]] = field(default_factory=list)
    """Leases delivered and ended, after each step."""

    def step_s(self, config: Config) -> float:
        ends = [step["time_unix_s"] for step in self.steps[config.warmup - 1 :]]
        return (ends[-1] - ends[0]) / (len(ends) - 1)

    def waste(self, config: Config) -> float:
        (d0, e0), (d1, e1) = self.wastes[config.warmup - 1], self.wastes[-1]
        return 1 - (d1 - d0) / max(1, e1 - e0)


async def run_mock(
    config: Config, latency: LognormalLatency, train_s: float, num_steps: int, model: Path
) -> RealRun:
    """Play and sleep for `warmup + num_steps` steps."""
    engines = {
        f"engine{index}": actor(EngineHost).remote(
            "mock",
            EngineConfig(
                model=None,
                sequence_length=4096,
                max_running=config.max_running,
                seed=index,
                strategy_config={"reply": [[5, 6, 7, 8]], "latency": latency.model_dump()},
            ),
        )
        for index in range(config.num_engines)
    }
    await asyncio.gather(*(engine.start.remote() for engine in engines.values()))
    setup = TagSetup(tag=TAG, blueprint=EnvBlueprint(spec=SPEC), max_turns=NUM_TURNS, max_new_tokens=8)
    ledger = replace(config.plan().simulated(config.candidate).ledger, tag_weights={TAG: 1})
    scheduler = actor(RolloutScheduler).remote(
        SchedulerSetup(
            ledger=ledger,
            workers=worker_setups(
                config.num_envs, config.num_envs_per_worker, setup=setup, model=model, engines=engines
            ),
            run_seed=0,
        )
    )
    await scheduler.start.remote()
    await scheduler.publish.remote(0)
    run = RealRun()
    publish_s = 0.0
    for version in range(1, config.warmup + num_steps + 1):
        began = time.time()
        batch = await scheduler.get_batch.remote(config.batch_size)
        waited = time.time()
        await asyncio.sleep(train_s)
        trained = time.time()
        run.batches.append(list(batch.trajectories))
        ended = sum(n for name, n in batch.ledger_counts.items() if name not in ("started", "open"))
        run.wastes.append((batch.ledger_counts["delivered"], ended))
        run.steps.append(
            {
                "time_unix_s": trained,
                "time/step_s": trained - began + publish_s,
                "time/wait_batch_s": waited - began,
                "time/train_s": trained - waited,
                "time/publish_s": publish_s,
                "rollout/sequence_tokens_mean": fmean(len(t.tokens) for t in batch.trajectories if t.tokens),
            }
        )
        await asyncio.gather(*(publish_weights(engine, version) for engine in engines.values()))
        await scheduler.publish.remote(version)
        publish_s = time.time() - trained
    await scheduler.close.remote()
    for engine in engines.values():
        ray.kill(engine)
    return run


BASE = Config(alpha=1)
MOCK = [
    BASE,
    Config(alpha=0),
    Config(alpha=2, num_envs=192),
    Config(alpha=1, max_staleness=2),
    Config(alpha=1, group_size=4),
    Config(alpha=1, group_size=16),
    Config(alpha=0, spare_groups=2),
    Config(alpha=0, spare_members=1),
    Config(alpha=1, max_running=24),
]
EMBEDDED = [
    replace(BASE, num_engines=1),
    replace(BASE, num_engines=1, alpha=2),
    replace(BASE, num_engines=1, group_size=4),
    replace(BASE, num_engines=1, batch_size=128),
    replace(BASE, num_engines=1, alpha=0),
]
"""The first of each is measured."""


async def mock_family(sigma: float, options: argparse.Namespace, model: Path) -> list[Row]:
    """Real runs side by side, and their predictions."""
    latency = LognormalLatency(kind="lognormal", mean_s=options.mean_s, sigma=sigma)
    load_average = os.getloadavg()[0]
    runs = await asyncio.gather(
        *(run_mock(config, latency, options.train_s, options.num_steps, model) for config in MOCK)
    )
    first = runs[0]
    found = measured(
        first.batches[BASE.warmup - FIRST_STEPS :],
        [],
        first.steps[BASE.warmup - FIRST_STEPS :],
        num_engines=BASE.num_engines,
        max_running=BASE.max_running,
        train_devices=1,
    )
    workload = with_stated_replies(found.workload, first, latency)
    return [
        row_of(f"mock, sigma {sigma:g}", config, workload, run, options.num_steps, load_average)
        for config, run in zip(MOCK, runs, strict=True)
    ]


def with_stated_replies(workload: Workload, run: RealRun, latency: LognormalLatency) -> Workload:
    """Replies as the mock engine draws them; what a turn took besides is measured.

    What a busy machine adds to a reply takes no place at an engine.
    """
    episodes = [one for batch in run.batches[BASE.warmup :] for one in batch]
    turn_s = fmean((one.ended_at - one.started_at) / len(one.turns) for one in episodes)
    reply = {"kind": "lognormal", "mean": 1000, "sigma": latency.sigma}
    return Workload(
        episodes=StatedEpisodes.model_validate({"num_turns": NUM_TURNS, "reply_tokens": reply}),
        timings=workload.timings.model_copy(
            update={
                "engine": EngineTime(token_s=latency.mean_s / 1000),
                "train": TrainTime(base_s=fmean(step["time/train_s"] for step in run.steps)),
                "turn_overhead_s": max(0.0, turn_s - latency.mean_s),
            }
        ),
    )


def embedded_family(options: argparse.Namespace, folder: Path) -> list[Row]:
    """Whole runs of the quickstart, one after another."""
    load_average, runs, found = os.getloadavg()[0], [], None
    for number, config in enumerate(EMBEDDED):
        name = f"embedded{number}"
        keys = {
            "exp_name": name,
            "output_dir": folder,
            "max_steps": config.warmup + options.num_steps,
            "eval_steps": 0,
            "save_steps": 0,
            "val_batch_size": 16,
            "val_env_manager.num_env_groups": 16,
            "async_generation_ratio": config.alpha,
            "rollout_batch_size": config.batch_size,
            "train_env_manager.group_size": config.group_size,
            "train_env_manager.num_env_groups": config.num_envs // config.group_size,
            "actor_infer.infer_batch_size": config.max_running,
            "trackers": "[jsonl]",
        }
        command = [sys.executable, "-m", "envsdk.train", "agentic_async.yaml"]
        command += [f"{key}={value}" for key, value in keys.items()]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        if found is None:
            found = read_measured(
                folder / name, num_engines=1, max_running=config.max_running, train_devices=1
            )
        steps = [row for row in read_run_metrics(folder / name) if "time/step_s" in row]
        delivered = [int(row["ledger/delivered"]) for row in steps]
        names = ("delivered", "filtered", "stale", "failed", "cancelled")
        ended = [int(sum(row[f"ledger/{name}"] for name in names)) for row in steps]
        runs.append(RealRun(steps=steps, wastes=list(zip(delivered, ended, strict=True))))
    assert found is not None
    return [
        row_of("embedded", config, found.workload, run, options.num_steps, load_average)
        for config, run in zip(EMBEDDED, runs, strict=True)
    ]


def row_of(
    family: str, config: Config, workload: Workload, run: RealRun, num_steps: int, load_average: float
) -> Row:
    """A real run beside its prediction, the mean over `SEEDS` seeds."""
    results = [
        simulate(
            config.plan(workload, seed).simulated(config.candidate),
            num_steps=num_steps,
            warmup=config.warmup,
        )
        for seed in range(SEEDS)
    ]
    return Row(
        family=family,
        config=str(config),
        is_measured=config in (MOCK[0], EMBEDDED[0]),
        real_s=run.step_s(config),
        predicted_s=fmean(each.step_s for each in results),
        real_waste=run.waste(config),
        predicted_waste=fmean(each.waste for each in results),
        load_average=load_average,
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--only", choices=["mock", "embedded"], help="one kind of engine (default: both)")
    parser.add_argument("--mean-s", type=float, default=0.5, help="mean reply of mock engines (default 0.5)")
    parser.add_argument(
        "--train-s", type=float, default=1.2, help="the sleeping trainer's step (default 1.2)"
    )
    parser.add_argument("--num-steps", type=int, default=24, help="steps measured (default 24)")
    parser.add_argument("--sigma", type=float, nargs="+", default=[0.5, 0.86])
    parser.add_argument("--json", type=Path, help="also write the figures here")
    options = parser.parse_args()

    # Workers import the environment from this folder.
    os.environ["PYTHONPATH"] = os.pathsep.join(
        filter(None, [str(Path(__file__).resolve().parent), os.environ.get("PYTHONPATH")])
    )
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as folder:
        if options.only != "embedded":
            model = write_toy_tokenizer(Path(folder))
            with ray_runtime(RayArgs()):
                for sigma in options.sigma:
                    rows += asyncio.run(mock_family(sigma, options, model))
        if options.only != "mock":
            rows += embedded_family(options, Path(folder))
    print(
        "family            configuration                    real s/step  predicted  error  thrown away  "
        "predicted  load"
    )
    for row in rows:
        print(
            f"{row.family:17s} {row.config:32s} {row.real_s:11.3f} {row.predicted_s:10.3f} {row.error:6.1%} "
            f"{row.real_waste:12.1%} {row.predicted_waste:10.1%} {row.load_average:5.1f}"
            f"{'  measured' if row.is_measured else ''}"
        )
    predicted = [row for row in rows if not row.is_measured]
    met = [row for row in predicted if abs(row.error) <= MAX_ERROR]
    worst = max(abs(row.error) for row in predicted)
    print(
        f"\n{'PASS' if len(met) == len(predicted) else 'FAIL'}  {len(met)} of {len(predicted)} predictions "
        f"within {MAX_ERROR:.0%}, the worst {worst:.1%} off"
    )
    if options.json:
        options.json.write_text(
            json.dumps({"rows": [{**asdict(row), "error": row.error} for row in rows]}, indent=2)
        )
    return 0 if len(met) == len(predicted) else 1


if __name__ == "__main__":
    sys.exit(main())
