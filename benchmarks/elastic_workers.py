"""The number of workers follows the load: environments that are slow, then fast, then slow again.

    python benchmarks/elastic_workers.py [--phase-s 60] [--json FILE]

Real workers and a real scheduler; a mock engine answers at once and a trainer that sleeps takes the batches.
The same load is played by as few workers as allowed, by as many, and by a number between the two that follows
it. The table gives, for the last third of each phase, the workers and the seconds per step; the mean number
of workers over everything is what was paid for.

The exit code is 1 when the number did not rise, fall and rise again, or an episode was lost or failed.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import gymnasium
import ray
from orchestration import actor, publish_weights, worker_setups, write_toy_tokenizer

from envsdk.config.ray_models import RayArgs
from envsdk.contracts.env import AsyncTextEnv, EnvSpec, Info, Isolation
from envsdk.engines.engine import EngineConfig
from envsdk.engines.engine_host import EngineHost
from envsdk.managers.env_host import EnvBlueprint
from envsdk.managers.ledger_types import LedgerConfig
from envsdk.managers.ray_runtime import ray_runtime
from envsdk.managers.scheduler import RolloutScheduler, SchedulerSetup
from envsdk.managers.traj_env_manager import TagSetup
from envsdk.managers.worker_pool import WorkerDemandConfig, WorkerPoolConfig

FEWEST, MOST, PER_WORKER = 2, 8, 8
BATCH_SIZE, GROUP_SIZE, NUM_TURNS, TRAIN_S = 64, 8, 3, 2.0
SLOW_S, FAST_S = 1.0, 0.02
PHASES = (("slow", SLOW_S), ("fast", FAST_S), ("slow", SLOW_S))


class PacedEnv(AsyncTextEnv):
    """A turn takes the seconds that a file says."""

    observation_space = gymnasium.spaces.Text(100)
    action_space = gymnasium.spaces.Text(100)

    def __init__(self, pace: str) -> None:
        self._pace = Path(pace)
        self._turn = 0

    async def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[str, Info]:
        self._turn = 0
        return "P _ _ G turn 0", {}

    async def step(self, action: str) -> tuple[str, float, bool, bool, Info]:
        await asyncio.sleep(float(self._pace.read_text()))
        self._turn += 1
        return "P _ _ G turn", 0.0, self._turn >= NUM_TURNS, False, {}


SPEC = EnvSpec(id="benchmark/Paced-v0", entry_point="elastic_workers:PacedEnv", isolation=Isolation.ASYNC)


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One batch and one step of the trainer."""

    phase: int
    ended_s: float
    step_s: float
    num_workers: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One run."""

    workers: str
    steps: Sequence[Step]
    num_lost: int
    """Episodes that failed or whose worker was lost."""
    load_average: float

    def last_third(self, phase: int, phase_s: float) -> list[Step]:
        since = (phase + 2 / 3) * phase_s
        return [step for step in self.steps if step.phase == phase and step.ended_s >= since]


def set_pace(pace: Path, seconds: float) -> None:
    """At once: no environment reads half a number."""
    written = pace.with_suffix(".new")
    written.write_text(str(seconds))
    written.replace(pace)


async def run(name: str, pool: WorkerPoolConfig, options: argparse.Namespace, model: Path) -> Row:
    """Play all phases."""
    pace = model / f"pace-{name.replace(' ', '-')}"
    set_pace(pace, SLOW_S)
    engine = actor(EngineHost).remote(
        "mock",
        EngineConfig(
            model=None, sequence_length=4096, max_running=512, strategy_config={"reply": [[5, 6, 7, 8]]}
        ),
    )
    await engine.start.remote()
    setup = TagSetup(
        tag="paced",
        blueprint=EnvBlueprint(spec=SPEC, env_config={"pace": str(pace)}, isolation=Isolation.ASYNC),
        max_turns=NUM_TURNS,
        max_new_tokens=8,
    )
    workers = worker_setups(
        pool.max_workers * PER_WORKER, PER_WORKER, setup=setup, model=model, engines={"engine": engine}
    )
    ledger = LedgerConfig(
        batch_size=BATCH_SIZE,
        group_size=GROUP_SIZE,
        alpha=1,
        tag_weights={"paced": 1},
        max_group_attempts=100,
    )
    scheduler = actor(RolloutScheduler).remote(
        SchedulerSetup(ledger=ledger, workers=workers, pool=pool, run_seed=0)
    )
    await scheduler.start.remote()
    await scheduler.publish.remote(0)
    began, version, steps, num_lost = time.perf_counter(), 0, [], 0
    for phase, (_, seconds) in enumerate(PHASES):
        set_pace(pace, seconds)
        while time.perf_counter() - began < (phase + 1) * options.phase_s:
            before = time.perf_counter()
            batch = await scheduler.get_batch.remote(BATCH_SIZE)
            await asyncio.sleep(TRAIN_S)
            version += 1
            await publish_weights(engine, version)
            await scheduler.publish.remote(version)
            now = time.perf_counter()
            num_workers = batch.workers.get("playing", pool.num_workers)
            steps.append(Step(phase=phase, ended_s=now - began, step_s=now - before, num_workers=num_workers))
            num_lost += sum(batch.failures.values()) + sum(t.failure is not None for t in batch.trajectories)
    await scheduler.close.remote()
    ray.kill(engine)
    return Row(workers=name, steps=steps, num_lost=num_lost, load_average=os.getloadavg()[0])


def mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else float("nan")


def pool_of(fewest: int, most: int, begin: int) -> WorkerPoolConfig:
    # Other programs of the machine shall not decide here: CPU is not looked at.
    demand = WorkerDemandConfig(slots_per_worker=PER_WORKER, max_node_cpu=1.0, grow_s=5.0, idle_s=5.0)
    return WorkerPoolConfig(min_workers=fewest, max_workers=most, num_workers=begin, demand=demand)


def report(rows: Sequence[Row], phase_s: float) -> bool:
    """Print the table; returns whether the elastic run did what it should."""
    names = [f"{name}: workers, s/step" for name, _ in PHASES]
    print("| workers | " + " | ".join(names) + " | workers, mean | lost | load average |")
    print("| --- |" + " --- |" * (len(PHASES) + 3))
    for row in rows:
        cells = []
        for phase in range(len(PHASES)):
            steps = row.last_third(phase, phase_s)
            cells.append(f"{mean([s.num_workers for s in steps]):.1f}, {mean([s.step_s for s in steps]):.1f}")
        paid = sum(s.num_workers * s.step_s for s in row.steps) / sum(s.step_s for s in row.steps)
        print(
            f"| {row.workers} | " + " | ".join(cells) + f" | {paid:.1f} | {row.num_lost} "
            f"| {row.load_average:.1f} |"
        )
    slow, fast, again = (rows[-1].last_third(phase, phase_s)[-1].num_workers for phase in range(3))
    return fast < slow and fast < again and not any(row.num_lost for row in rows)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--phase-s", type=float, default=60.0)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    kinds = {
        f"{FEWEST}": pool_of(FEWEST, FEWEST, FEWEST),
        f"{MOST}": pool_of(MOST, MOST, MOST),
        f"{FEWEST} to {MOST}": pool_of(FEWEST, MOST, FEWEST),
    }
    with tempfile.TemporaryDirectory() as folder, ray_runtime(RayArgs()):
        model = write_toy_tokenizer(Path(folder))
        rows = [asyncio.run(run(name, pool, options, model)) for name, pool in kinds.items()]
    is_good = report(rows, options.phase_s)
    if options.json:
        options.json.write_text(json.dumps([asdict(row) for row in rows]) + "\n")
    return 0 if is_good else 1


if __name__ == "__main__":
    sys.exit(main())
