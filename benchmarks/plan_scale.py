"""How long the planner takes for a large run: 100,000 environments on 4,096 engines.

    python benchmarks/plan_scale.py [--envs 100000] [--engines 4096] [--turns 3] [--steps 2]

The ledger is the real one. The routers are not: one looks at every engine for every request. An aggregate,
`LeastLoadedDispatch`, takes their place, and this program first says how far apart the two are on engines
that both can simulate. Both know the load of all engines; the routers of many small workers know less
(`slots_per_worker`).
"""

from __future__ import annotations

import argparse
import os
import time
from dataclasses import replace
from statistics import fmean

from envsdk.managers.ledger_types import LedgerConfig
from envsdk.view.planning.simulation import Prediction, Simulated, simulate
from envsdk.view.planning.workload import EngineTime, StatedEpisodes, Timings


def large(num_envs: int, num_engines: int, num_turns: int, seed: int = 0) -> Simulated:
    """A batch is as many episodes as half of the environments."""
    episodes = StatedEpisodes.model_validate(
        {
            "num_turns": num_turns,
            "reply_tokens": {"kind": "lognormal", "mean": 200, "sigma": 0.6},
            "env_s": {"kind": "lognormal", "mean": 2, "sigma": 0.5},
        }
    )
    timings = Timings(engine=EngineTime(token_s=0.02))
    batch_size = num_envs // 16 * 8
    return Simulated(
        ledger=LedgerConfig(
            batch_size=batch_size,
            group_size=8,
            alpha=1,
            tag_weights={"episode": 1},
            episode_deadline_s=1e6,
        ),
        num_slots=2 * batch_size,
        num_engines=num_engines,
        draw=lambda lease: episodes.draw(lease, timings, seed),
        train_s=lambda num_tokens: 5.0,
        max_running=32,
        slowdown={1: 1.0, 32: 2.0},
        update_s=1.0,
        slots_per_worker=2 * batch_size,
    )


def timed(run: Simulated, num_steps: int, warmup: int | None = None) -> tuple[Prediction, float]:
    """The prediction, and seconds of CPU time."""
    began = time.process_time()
    return simulate(run, num_steps=num_steps, warmup=warmup), time.process_time() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--envs", type=int, default=100_000, help="environments (default 100000)")
    parser.add_argument("--engines", type=int, default=4096, help="engines (default 4096)")
    parser.add_argument("--turns", type=int, default=3, help="turns of an episode (default 3)")
    parser.add_argument("--steps", type=int, default=2, help="steps after one of warm-up (default 2)")
    options = parser.parse_args()
    print(f"load average {os.getloadavg()[0]:.1f} on {os.cpu_count()} CPUs")
    print("engines  routers' s/step  aggregate's  apart  CPU s  CPU s")
    for num_engines in (4, 16, 64):
        runs = [large(num_engines * 24, num_engines, options.turns, seed) for seed in range(3)]
        exact, fast = (
            [timed(replace(run, routing=routing), 6) for run in runs]
            for routing in ("router", "least_loaded")
        )
        exact_s, fast_s = (fmean(found.step_s for found, _ in each) for each in (exact, fast))
        print(
            f"{num_engines:7d} {exact_s:16.2f} {fast_s:12.2f} {fast_s / exact_s - 1:6.1%} "
            f"{sum(s for _, s in exact):6.1f} {sum(s for _, s in fast):6.1f}",
            flush=True,
        )
    began = time.monotonic()
    found, cpu_s = timed(large(options.envs, options.engines, options.turns), options.steps, warmup=1)
    print(
        f"\n{options.envs} environments, {options.engines} engines, {options.steps + 1} steps of "
        f"{found.trajectories_per_step} episodes: {time.monotonic() - began:.1f} s, "
        f"{cpu_s:.1f} s of CPU time; {found.step_s:.2f} s per step"
    )


if __name__ == "__main__":
    main()
