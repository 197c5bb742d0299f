"""The quickstart's recipe in one process: play groups, learn from them, publish, play again."""

from __future__ import annotations

import time
from collections.abc import Iterator

import envsdk
from benchmarks.gpu_parts.bench import Bench, Row
from envsdk.config import RunConfig
from envsdk.config.loading import load_config
from envsdk.contracts.trainer import TrainerConfig
from envsdk.runs.batches import ModelScores, learnable, prepare_batch
from envsdk.trainers.torch_trainer import TorchTrainer
from envsdk.trainers.warm_start.prepare import prepare_policy

RECIPE = "agentic_async.yaml"
SEEDS = (42, 43)
NUM_STEPS = 60
LEAST_GAIN = 0.10
"""Of held-out success, as a share of all episodes."""
SMALL = ["warm_start={num_episodes: 24, hidden_size: 32, num_layers: 1}"]


def recipe(seed: int, *, is_small: bool) -> RunConfig:
    """The quickstart's run file, with this seed."""
    return load_config(RECIPE, [f"seed={seed}", *(SMALL if is_small else [])]).config


def success(config: RunConfig, engine: envsdk.LocalEngine, num_episodes: int) -> float:
    """Share of held-out episodes that end well."""
    tags = config.val_env_manager.tags
    played = envsdk.rollout_sync(config, policy=engine, tasks=num_episodes, split="val", tags=tags)
    return sum(each.success for each in played) / len(played)


def learn(bench: Bench, seed: int, ends_at: float) -> Iterator[Row]:
    """One seed: success before, steps, success after."""
    config = recipe(seed, is_small=bench.is_small)
    folder = prepare_policy(config, device=bench.device)
    training = config.actor_train.training_args
    trainer = TorchTrainer.create(
        TrainerConfig(
            model=folder,
            sequence_length=config.sequence_length,
            seed=seed,
            algorithm=config.algorithm.model_dump(),
            training_args=training if isinstance(training, dict) else training.model_dump(),
            strategy_config={"device": bench.device},
        )
    )
    group_size = config.train_env_manager.group_size
    num_tasks = config.train_env_manager.num_env_groups // len(config.train_env_manager.tags)
    num_held_out = 8 if bench.is_small else config.val_batch_size
    settings = {"device": bench.device}
    with envsdk.LocalEngine(
        folder, sequence_length=config.sequence_length, seed=seed, settings=settings
    ) as engine:
        before = success(config, engine, num_held_out)
        began, step, num_tokens = time.monotonic(), 0, 0
        for step in range(1, (2 if bench.is_small else NUM_STEPS) + 1):
            tasks = range((step - 1) * num_tasks, step * num_tasks)
            played = envsdk.rollout_sync(config, policy=engine, tasks=tasks, group_size=group_size)
            batch = prepare_batch(config.algorithm, step, learnable(list(played)), ModelScores()).batch
            num_tokens += sum(int(sequence.response_mask.sum()) for sequence in batch.sequences)
            if batch.sequences:
                trainer.train_step(batch)
            engine.publish(dict(trainer.device_weights()))
            if time.monotonic() > ends_at:
                break
        seconds = time.monotonic() - began
        after = success(config, engine, num_held_out)
    name = f"seed {seed}"
    yield Row(what=f"{name}: held-out success before", value=100 * before, unit="%")
    yield Row(
        what=f"{name}: held-out success after {step} steps",
        value=100 * after,
        unit="%",
        at_least=100 * (before + LEAST_GAIN) if step == NUM_STEPS else None,
        note="" if bench.is_small or step == NUM_STEPS else f"of {NUM_STEPS}: its time was over",
    )
    yield Row(what=f"{name}: seconds per step", value=seconds / step, unit="s")
    yield Row(what=f"{name}: sampled tokens", value=num_tokens / seconds, unit="tokens/s")


def run(bench: Bench) -> Iterator[Row]:
    seeds = SEEDS[:1] if bench.is_small else SEEDS
    for number, seed in enumerate(seeds):
        # What is left is shared by the seeds that are left, with some of it for the last evaluation.
        yield from learn(bench, seed, time.monotonic() + 0.85 * bench.left_s / (len(seeds) - number))
