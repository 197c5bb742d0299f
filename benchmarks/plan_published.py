"""Published speed-ups of asynchronous training, simulated under stated assumptions.

    python benchmarks/plan_published.py [--json FILE] [--num-steps 12]

The published figures are those of ROLL Flash (arXiv 2510.11345): asynchronous training over synchronous on as
many devices, and the best split of 40. It publishes neither the durations of turns nor those of training, so
the assumptions are this file's: `WORKLOADS` has them. They say how long turns take; the share of the
synchronous step that is training is given, and the trainer's speed follows from it.

Two schedules on all devices in turns, and the asynchronous ones on devices that are divided as is best:

    barrier    every turn waits for the slowest reply of all, then for the slowest step of all
    turns      each episode goes on by itself; the ledger at alpha 0
    divided    the ledger at alpha A, the better for each split
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from envsdk.contracts.trajectory import Task
from envsdk.managers.ledger_types import Lease
from envsdk.view.planning.candidates import Candidate, Plan, Row
from envsdk.view.planning.workload import EngineTime, StatedEpisodes, Timings, TrainTime, Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """A published figure, and what is assumed to simulate it."""

    name: str
    speedup: float | None
    """Of the asynchronous run over `over`."""
    over: str
    devices: int
    num_groups: int
    group_size: int
    episodes: StatedEpisodes
    engine: EngineTime
    max_running: int
    train_share: float
    """Of the synchronous step on all devices."""
    scaling: float
    alphas: tuple[float, ...]
    splits: tuple[int, ...]
    num_envs: int | None = None
    """None: one for every episode that may be open."""


ALFWORLD = Published(
    name="ALFWorld",
    speedup=2.72,
    over="barrier",
    devices=40,
    num_groups=16,
    group_size=8,
    episodes=StatedEpisodes.model_validate(
        {
            "num_turns": 30,
            "reply_tokens": {"kind": "lognormal", "mean": 100, "sigma": 0.25},
            "env_s": {"kind": "normal", "mean": 3.0, "std": 1.2},
            "env_delay": {"rate": 0.0002, "delay_s": 90},
        }
    ),
    engine=EngineTime(token_s=0.02),
    max_running=32,
    train_share=0.28,
    scaling=1.0,
    alphas=(1.0, 2.0),
    splits=(8, 16, 24, 28),
    num_envs=128,
)
SWE = replace(
    ALFWORLD,
    name="SWE",
    speedup=1.81,
    episodes=StatedEpisodes.model_validate(
        {
            "num_turns": 40,
            "reply_tokens": 300,
            "env_s": {"kind": "lognormal", "mean": 3.0, "sigma": 0.22},
            "env_delay": {"rate": 0.00005, "delay_s": 60},
        }
    ),
    train_share=0.25,
)
RLVR = Published(
    name="RLVR",
    speedup=2.24,
    over="sync",
    devices=64,
    # A quarter of 256 prompts and of 32 places per device: as many waves, in a quarter of the time.
    num_groups=64,
    group_size=16,
    episodes=StatedEpisodes.model_validate(
        {"reply_tokens": {"kind": "lognormal", "mean": 2000, "sigma": 0.86, "most": 27600}}
    ),
    engine=EngineTime(token_s=0.02, slowdown={1: 1.0, 8: 1.3}),
    max_running=8,
    train_share=0.3,
    scaling=1.0,
    alphas=(1.0, 2.0),
    splits=(24, 32, 40, 48),
)
SPLIT = replace(
    RLVR,
    name="split of 40",
    speedup=None,
    devices=40,
    alphas=(1.0, 2.0, 4.0),
    splits=(16, 20, 24, 28, 32),
    # Of a model that thinks long about everything: a shorter tail, cut at four times the median.
    episodes=StatedEpisodes.model_validate(
        {"reply_tokens": {"kind": "lognormal", "mean": 2000, "sigma": 0.45, "most": 7230}}
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """Seconds per step."""

    name: str
    barrier_s: float
    sync_s: float
    by_split: dict[str, dict[int, float]]
    """By alpha and by sampling devices."""

    @property
    def best(self) -> tuple[str, int, float]:
        """Alpha, sampling devices and seconds of the fastest."""
        return min(
            ((alpha, split, s) for alpha, found in self.by_split.items() for split, s in found.items()),
            key=lambda each: each[2],
        )


def barrier_s(published: Published, plan: Plan, num_steps: int) -> float:
    """Seconds of playing per step when every turn waits for the slowest."""
    timings, total_s = plan.workload.timings, 0.0
    for step in range(num_steps):
        drawn = [
            plan.workload.episodes.draw(
                Lease(
                    lease_id=0,
                    group_id=group,
                    member=member,
                    attempt=0,
                    task=Task(tag="episode", split="train", index=step * published.num_groups + group),
                    version=0,
                    deadline=0.0,
                ),
                timings,
                plan.seed,
            )
            for group in range(published.num_groups)
            for member in range(published.group_size)
        ]
        for turn in range(max(len(each.turns) for each in drawn)):
            turns = [each.turns[turn] for each in drawn if turn < len(each.turns)]
            total_s += max(each.reply_s for each in turns) + max(each.env_s for each in turns)
    return total_s / num_steps


def simulated(published: Published, num_steps: int) -> Result:
    """All schedules of one figure."""
    base = Candidate(
        sampling_devices=published.devices,
        async_generation_ratio=0.0,
        group_size=published.group_size,
        infer_batch_size=published.max_running,
        is_shared=True,
    )
    plan = Plan(
        workload=Workload(episodes=published.episodes, timings=Timings(engine=published.engine)),
        devices=published.devices,
        batch_size=published.num_groups * published.group_size,
        base=base,
        dimensions={},
        num_envs=published.num_envs,
        episode_deadline_s=1e6,
        num_steps=num_steps,
    )

    def seconds(row: Row) -> float:
        assert row.prediction is not None, row.problem
        return row.prediction.step_s

    # Nothing is trained in no time: a token of training stands for the first look.
    tiny = Timings(engine=published.engine, train=TrainTime(base_s=1e-6))
    play = plan_with(plan, tiny).evaluate(base)
    assert play.prediction is not None
    train_s = seconds(play) * published.train_share / (1 - published.train_share)
    token_s = train_s * published.devices**published.scaling / play.prediction.tokens_per_step
    plan = plan_with(
        plan,
        Timings(engine=published.engine, train=TrainTime(token_s=token_s, scaling=published.scaling)),
    )
    by_split = {
        f"{alpha:g}": {
            split: seconds(
                plan.evaluate(
                    replace(base, sampling_devices=split, async_generation_ratio=alpha, is_shared=False)
                )
            )
            for split in published.splits
        }
        for alpha in published.alphas
    }
    return Result(
        name=published.name,
        barrier_s=barrier_s(published, plan, num_steps) + train_s,
        sync_s=seconds(plan.evaluate(base)),
        by_split=by_split,
    )


def plan_with(plan: Plan, timings: Timings) -> Plan:
    return replace(plan, workload=replace(plan.workload, timings=timings))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--num-steps", type=int, default=12, help="steps after the warm-up (default 12)")
    parser.add_argument("--json", type=Path, help="also write the figures here")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="some of ALFWorld, SWE, RLVR, split of 40")
    options = parser.parse_args()
    results = []
    print("figure       published  barrier s  turns s  divided s  alpha  sampling   x barrier  x turns")
    for published in (ALFWORLD, SWE, RLVR, SPLIT):
        if options.only and published.name not in options.only:
            continue
        result = simulated(published, options.num_steps)
        results.append(result)
        alpha, split, best_s = result.best
        said = f"{published.speedup:.2f}" if published.speedup else "24 of 40"
        print(
            f"{published.name:12s} {said:>9} {result.barrier_s:10.1f} {result.sync_s:8.1f} {best_s:10.1f} "
            f"{alpha:>6} {f'{split} of {published.devices}':>9} {result.barrier_s / best_s:11.2f} "
            f"{result.sync_s / best_s:8.2f}",
            flush=True,
        )
        for each, found in result.by_split.items():
            print(f"    alpha {each}: " + "  ".join(f"{n}: {s:.1f}" for n, s in found.items()), flush=True)
    if options.json:
        options.json.write_text(json.dumps([asdict(each) for each in results], indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
