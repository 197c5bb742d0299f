"""A small policy that learns the quickstart's tasks from a larger teacher, or from rewards.

    python benchmarks/teacher.py             table, a minute once both policies are made
    python benchmarks/teacher.py --docs      ... and the figure into docs/images

The teacher is the quickstart's warm-started policy. The student has imitated the same demonstrations and is a
quarter as wide and half as deep. One process: an embedded engine plays, the torch trainer learns, both
teachers and students score by the product's code. CPU seconds are those of playing and learning, without
evaluations.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent / "staleness"))
from figure import draw_curves
from results import Spread

import envsdk
from envsdk.algorithms.args import AlgorithmArgs
from envsdk.algorithms.batches import ModelScores, learnable, prepare_batch, token_ids
from envsdk.config import RunConfig, load_config
from envsdk.contracts.trainer import TeacherScores, TrainerConfig
from envsdk.trainers.torch_trainer import TorchTrainer
from envsdk.trainers.warm_start.prepare import prepare_policy

FIGURE = Path(__file__).parents[1] / "docs" / "images" / "teacher.svg"
STUDENT = ("warm_start.hidden_size=32", "warm_start.num_layers=2", "warm_start.num_heads=2")
NUM_STEPS = {"rewards": 16, "teacher": 8}
"""Of each variant: they take about the same time."""
SEEDS = (1, 2, 3)
EVERY, NUM_GROUPS, GROUP_SIZE, HELD_OUT = 8, 8, 8, 128


def make_trainer(model: Path, config: RunConfig, seed: int) -> TorchTrainer:
    args = {"learning_rate": 1e-3, "warmup_steps": 2}
    return TorchTrainer.create(
        TrainerConfig(model=model, sequence_length=config.sequence_length, seed=seed, training_args=args)
    )


def run(variant: str, seed: int, config: RunConfig, student: Path, teacher: Path) -> dict[str, Any]:
    """Held-out success by step, CPU seconds of a step, and the divergence in the first and the last one."""
    args, num_steps = AlgorithmArgs(distill_reward_coef=float(variant == "rewards")), NUM_STEPS[variant]
    trainer, scorer = make_trainer(student, config, seed), make_trainer(teacher, config, seed)
    curve, divergence, spent = {}, [], 0.0
    with envsdk.LocalEngine(student, sequence_length=config.sequence_length, seed=seed) as engine:
        for step in range(num_steps + 1):
            if step % EVERY == 0:
                played = envsdk.rollout_sync(config, policy=engine, tasks=HELD_OUT, split="val")
                curve[step] = statistics.fmean(each.success for each in played)
            if step == num_steps:
                break
            began = time.process_time()
            split = f"train {step}"
            played = envsdk.rollout_sync(
                config, policy=engine, tasks=NUM_GROUPS, group_size=GROUP_SIZE, split=split, seed=seed
            )
            episodes = learnable(list(played))
            scores: Sequence[TeacherScores] = ()
            if variant != "rewards":
                scores = [TeacherScores(logprobs=each) for each in scorer.logprobs(token_ids(episodes))]
            prepared = prepare_batch(args, step, episodes, ModelScores(teacher=scores))
            divergence.append(prepared.metrics.get("distill/kl_per_token", 0.0))
            trainer.train_step(prepared.batch)
            engine.publish(dict(trainer.weights()))
            spent += time.process_time() - began
    return {"curve": curve, "step_s": spent / num_steps, "divergence": (divergence[0], divergence[-1])}


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--docs", action="store_true", help="put the figure into docs/images")
    options = parser.parse_args(argv)
    larger = load_config("agentic_async.yaml", []).config
    smaller = load_config("agentic_async.yaml", STUDENT).config
    teacher, student = prepare_policy(larger), prepare_policy(smaller)
    print("| learns from | start | end | CPU per step | nats per token |", "| --- " * 5 + "|", sep="\n")
    curves = {}
    for variant in NUM_STEPS:
        found = [run(variant, seed, smaller, student, teacher) for seed in SEEDS]
        curves[variant] = {
            step: Spread.of(each["curve"][step] for each in found) for step in found[0]["curve"]
        }
        first, *_, last = curves[variant].values()
        step_s = statistics.fmean(each["step_s"] for each in found)
        before, after = (statistics.fmean(each["divergence"][at] for each in found) for at in (0, 1))
        print(
            f"| {variant} | {first.mean:.1%} | {last.mean:.1%} ({last.low:.0%} to {last.high:.0%}) "
            f"| {step_s:.2f} s | {before:.2f} to {after:.2f} |",
            flush=True,
        )
    picture = draw_curves(
        curves,
        title="A student that learns from rewards, or from a larger teacher",
        subtitle=f"{HELD_OUT} held-out lakes and rooms, {NUM_GROUPS * GROUP_SIZE} episodes a step",
        num_seeds=len(SEEDS),
    )
    if options.docs:
        FIGURE.write_text(picture)
    return 0


if __name__ == "__main__":
    sys.exit(main())
