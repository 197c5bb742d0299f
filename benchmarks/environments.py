"""What the environments cost: a step and a task of FrozenLake and Sokoban, against bounds.

    python benchmarks/environments.py [--json FILE] [--repeats N]

Steps are timed in blocks that take turns with blocks of gymnasium's own FrozenLake, so that the
ratio holds on a busy machine; the figures are CPU time, of this process alone. Resets include
seeding the environment. The exit code is 1 when a bound is missed.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np

import envsdk
from envsdk.envs.grid import REPLIES

STEPS_PER_BLOCK = 2_000
NEVER = 10**9


def time_steps(env: gymnasium.Env[Any, Any], actions: Sequence[Any], seed: int) -> float:
    """CPU seconds per step over one block of random actions, without the resets in between."""
    chosen = [actions[i] for i in np.random.default_rng(seed).integers(len(actions), size=STEPS_PER_BLOCK)]
    env.reset(seed=seed)
    spent, steps, clock = 0.0, 0, time.process_time
    while steps < STEPS_PER_BLOCK:
        started = clock()
        over = False
        while steps < STEPS_PER_BLOCK and not over:
            _, _, terminated, truncated, _ = env.step(chosen[steps])
            over = terminated or truncated
            steps += 1
        spent += clock() - started
        if over:
            env.reset()
    return spent / steps


def time_resets(env: gymnasium.Env[Any, Any], num_rooms: int) -> list[float]:
    """CPU seconds of each of `num_rooms` seeded resets."""
    seconds = []
    for seed in range(num_rooms):
        started = time.process_time()
        env.reset(seed=seed)
        seconds.append(time.process_time() - started)
    return seconds


def measure(repeats: int) -> dict[str, list[float]]:
    """Seconds per step by block, and per reset, by name."""
    open_lake = ["S" + "F" * 7, *["F" * 8] * 6, "F" * 7 + "G"]
    steppers: dict[str, tuple[gymnasium.Env[Any, Any], Sequence[Any]]] = {
        "gymnasium FrozenLake step": (
            gymnasium.make("FrozenLake-v1", desc=open_lake, is_slippery=True).unwrapped,
            range(4),
        ),
        "FrozenLake step": (
            envsdk.make("envsdk/FrozenLake-v1", size=8, p=1.0, is_slippery=True, max_steps=NEVER),
            REPLIES,
        ),
        "Sokoban step": (envsdk.make("envsdk/Sokoban-v1", max_steps=NEVER), REPLIES),
        "Sokoban 10x10 step": (
            envsdk.make("envsdk/Sokoban-v1", dim=(10, 10), num_boxes=4, max_steps=NEVER),
            REPLIES,
        ),
        "Sokoban step, no valid reply": (
            envsdk.make("envsdk/Sokoban-v1", max_steps=NEVER),
            ["I think that I should go to the right, because the box is there. " * 10],
        ),
    }
    seconds: dict[str, list[float]] = {name: [] for name in steppers}
    for block in range(repeats):
        for name, (env, actions) in steppers.items():
            seconds[name].append(time_steps(env, actions, seed=block))
    rooms: dict[str, tuple[dict[str, Any], int]] = {
        "Sokoban 6x6 one box room": ({}, 50 * repeats),
        "Sokoban 8x8 two boxes room": ({"preset": "LargerSokoban"}, 20 * repeats),
        "Sokoban 10x10 four boxes room": ({"dim": (10, 10), "num_boxes": 4, "max_steps": 120}, 10 * repeats),
    }
    seconds["FrozenLake 4x4 map"] = time_resets(envsdk.make("envsdk/FrozenLake-v1"), 50 * repeats)
    for name, (kwargs, num_rooms) in rooms.items():
        seconds[name] = time_resets(envsdk.make("envsdk/Sokoban-v1", **kwargs), num_rooms)
    return seconds


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--json", type=Path, help="write the figures to this file as well")
    parser.add_argument("--repeats", type=int, default=40, help="blocks of steps (default %(default)s)")
    options = parser.parse_args(arguments)

    seconds = measure(options.repeats)
    figures = {
        name: {
            "per_second": len(values) / max(sum(values), 1e-9),
            "p50_us": float(np.percentile(values, 50)) * 1e6,
            "p99_us": float(np.percentile(values, 99)) * 1e6,
        }
        for name, values in seconds.items()
    }
    reference = seconds["gymnasium FrozenLake step"]
    ratio = float(np.median(np.divide(seconds["FrozenLake step"], reference)))

    print(f"{'':32} {'per second':>12} {'p50 us':>10} {'p99 us':>10}")
    for name, row in figures.items():
        print(f"{name:32} {row['per_second']:12,.0f} {row['p50_us']:10.2f} {row['p99_us']:10.2f}")
    print()

    p99_us = {name: row["p99_us"] for name, row in figures.items()}
    bounds = [
        ("FrozenLake step / gymnasium's, median of blocks", ratio, 1.5, ""),
        ("FrozenLake step, p99 of blocks", p99_us["FrozenLake step"], 30.0, " us"),
        ("Sokoban step, p99 of blocks", p99_us["Sokoban step"], 30.0, " us"),
        ("Sokoban 10x10 step, p99 of blocks", p99_us["Sokoban 10x10 step"], 30.0, " us"),
        ("Sokoban 6x6 one box room, p99", p99_us["Sokoban 6x6 one box room"] / 1e3, 1.0, " ms"),
        ("Sokoban 10x10 four boxes room, p99", p99_us["Sokoban 10x10 four boxes room"] / 1e3, 100.0, " ms"),
    ]
    checks = [
        {"what": what, "value": value, "bound": bound, "passed": value <= bound}
        for what, value, bound, _ in bounds
    ]
    for (what, value, bound, unit), check in zip(bounds, checks, strict=True):
        print(f"{'PASS' if check['passed'] else 'FAIL'}  {what}: {value:.2f}{unit} (at most {bound:g}{unit})")
    if options.json:
        options.json.write_text(json.dumps({"figures": figures, "checks": checks}, indent=2) + "\n")
    return 0 if all(check["passed"] for check in checks) else 1


if __name__ == "__main__":
    sys.exit(main())
