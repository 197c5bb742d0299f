"""The quickstart's recipe in one process: play groups, learn from them, publish, play again."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import envsdk
from benchmarks.gpu_parts.bench import Bench, Row
from envsdk.algorithms.batches import ModelScores, learnable, prepare_batch
from envsdk.config import RunConfig
from envsdk.config.loading import load_config
from envsdk.contracts.trainer import TrainerConfig
from envsdk.trainers.torch_trainer import TorchTrainer
from envsdk.trainers.warm_start.prepare import prepare_policy

RECIPE = "agentic_async.yaml"
SEEDS = (42, 43)
NUM_STEPS = 80
LEAST_GAIN = 0.10
"""Of held-out success, as a share of all episodes."""
SMALL = ["warm_start={num_episodes: 24, hidden_size: 32, num_layers: 1}"]


def recipe(seed: int, *, is_small: bool) -> RunConfig:
    """The quickstart's run file, with this seed and a policy that has more to learn."""
    overrides = [f"seed={seed}", "warm_start.epsilon=0.3", *(SMALL if is_small else [])]
    return load_config(RECIPE, overrides).config


def success(config: RunConfig, engine: envsdk.LocalEngine, num_episodes: int) -> float:
    """Share of held-out episodes that end well."""
    tags = config.val_env_manager.tags
    played = envsdk.rollout_sync(config, policy=engine, tasks=num_episodes, split="val", tags=tags)
    return sum(each.success for each in played) / len(played)


@dataclass(frozen=True, slots=True, kw_only=True)
class Lesson:
    """What is learned in one process, and which success counts."""

    name: str
    config: RunConfig
    folder: Path
    """The model to begin with."""
    num_steps: int
    ends_at: float
    """On `time.monotonic`; the last step begins before."""
    least: float = 0.0
    """Of held-out success at the end, as a share of all episodes; 0: as much as `least_gain` asks."""
    least_gain: float = 0.0


def learn(bench: Bench, lesson: Lesson) -> Iterator[Row]:
    """Success before, steps, success after."""
    config, name = lesson.config, lesson.name
    training = config.actor_train.training_args
    trainer = TorchTrainer.create(
        TrainerConfig(
            model=lesson.folder,
            sequence_length=config.sequence_length,
            seed=config.seed,
            algorithm=config.algorithm.model_dump(),
            training_args=training if isinstance(training, dict) else training.model_dump(),
            strategy_config={**config.actor_train.settings, "device": bench.device},
        )
    )
    group_size = config.train_env_manager.group_size
    num_tasks = max(1, config.num_train_groups // len(config.train_env_manager.tags))
    num_held_out = 8 if bench.is_small else config.val_batch_size
    settings = {"device": bench.device}
    with envsdk.LocalEngine(
        lesson.folder, sequence_length=config.sequence_length, seed=config.seed, settings=settings
    ) as engine:
        before = success(config, engine, num_held_out)
        began, step, num_tokens = time.monotonic(), 0, 0
        for step in range(1, lesson.num_steps + 1):
            tasks = range((step - 1) * num_tasks, step * num_tasks)
            played = envsdk.rollout_sync(config, policy=engine, tasks=tasks, group_size=group_size)
            batch = prepare_batch(config.algorithm, step, learnable(list(played)), ModelScores()).batch
            num_tokens += sum(int(sequence.response_mask.sum()) for sequence in batch.sequences)
            if batch.sequences:
                trainer.train_step(batch)
            engine.publish(dict(trainer.device_weights()))
            if time.monotonic() > lesson.ends_at:
                break
        seconds = time.monotonic() - began
        after = success(config, engine, num_held_out)
    least = lesson.least or before + lesson.least_gain
    is_judged = not bench.is_small and (step == lesson.num_steps or lesson.least > 0)
    is_cut = not bench.is_small and step < lesson.num_steps
    yield Row(what=f"{name}: held-out success before", value=100 * before, unit="%")
    yield Row(
        what=f"{name}: held-out success after {step} steps",
        value=100 * after,
        unit="%",
        at_least=100 * least if is_judged else None,
        note=f"of {lesson.num_steps}: its time was over" if is_cut else "",
    )
    yield Row(what=f"{name}: seconds per step", value=seconds / step, unit="s")
    yield Row(what=f"{name}: sampled tokens", value=num_tokens / seconds, unit="tokens/s")


def run(bench: Bench) -> Iterator[Row]:
    seeds = SEEDS[:1] if bench.is_small else SEEDS
    for number, seed in enumerate(seeds):
        config = recipe(seed, is_small=bench.is_small)
        # What is left is shared by the seeds that are left, with some of it for the last evaluation.
        lesson = Lesson(
            name=f"seed {seed}",
            config=config,
            folder=prepare_policy(config, device=bench.device),
            num_steps=2 if bench.is_small else NUM_STEPS,
            ends_at=time.monotonic() + 0.85 * bench.left_s / (len(seeds) - number),
            least_gain=LEAST_GAIN,
        )
        yield from learn(bench, lesson)
