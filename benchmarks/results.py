"""What it costs to turn 1,000 episodes into arrays, advantages and frames.

    python benchmarks/results.py

Milliseconds of CPU time of this process, the best of five; episodes of drawn tokens in groups of eight.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from functools import partial

import numpy as np

from envsdk import Outcome, Task, TokenLog, Trajectories, Trajectory, Turn, VersionSpan
from envsdk.base.display.terminal import say

NUM_EPISODES = 1000
GROUP_SIZE = 8
SIZES = {"8 turns, 480 tokens": (8, 50, 10), "20 turns, 4,000 tokens": (20, 150, 50)}
"""Turns, and tokens of each observation and each reply."""
CONVERSIONS: Mapping[str, Callable[[Trajectories], object]] = {
    "to_arrays(), padded": lambda each: each.to_arrays(),
    "to_arrays('packed')": lambda each: each.to_arrays("packed"),
    "to_arrays(library='torch')": lambda each: each.to_arrays(library="torch"),
    "to_verl()": lambda each: each.to_verl(),
    "advantages('grpo')": lambda each: each.advantages("grpo"),
    "advantages('reinforce_plus_plus')": lambda each: each.advantages("reinforce_plus_plus"),
    "to_frame('arrow', per='turn')": lambda each: each.to_frame("arrow", per="turn"),
}


def episode(rng: np.random.Generator, number: int, num_turns: int, seen: int, said: int) -> Trajectory:
    log, turns = TokenLog(), []
    for turn in range(num_turns):
        log.append_prompt(rng.integers(0, 1000, seen).tolist())
        start = len(log)
        span = VersionSpan(version=0, start=0, end=said)
        log.append_sampled(rng.integers(0, 1000, said).tolist(), [-1.0] * said, [span])
        reward = float(turn == num_turns - 1 and number % 2)
        turns.append(
            Turn(observation="seen", reply="said", reward=reward, response_start=start, response_end=len(log))
        )
    group = number // GROUP_SIZE
    return Trajectory(
        trajectory_id=str(number),
        group_id=group,
        task=Task(tag="Drawn", split="train", index=group),
        seed=group,
        outcome=Outcome.TERMINATED,
        success=bool(number % 2),
        turns=turns,
        tokens=log.arrays(),
        started_at=0.0,
        ended_at=0.0,
    )


def cpu_ms(call: Callable[[], object]) -> float:
    best = float("inf")
    for _ in range(5):
        before = time.process_time()
        call()
        best = min(best, time.process_time() - before)
    return best * 1000


def main() -> None:
    rng = np.random.default_rng(0)
    for size, shape in SIZES.items():
        trajectories = Trajectories(episode(rng, number, *shape) for number in range(NUM_EPISODES))
        for name, convert in CONVERSIONS.items():
            convert(trajectories)
            say(f"{size:24s} {name:36s} {cpu_ms(partial(convert, trajectories)):7.1f} ms")


if __name__ == "__main__":
    main()
