"""A real model of 0.5 to 1.5 billion parameters learns three tasks to stated scores, in an hour of one GPU.

    export ENVSDK_RECIPE_MODEL=models/Qwen2.5-0.5B-Instruct
    python -m benchmarks.gpu --out DIR --only recipe --minutes 60

Tasks: FrozenLake, Sokoban, and word problems like GSM8K's, from a generated file. At small sizes the tiny
policy takes the model's place, for two steps each: a rehearsal of everything but the score.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from benchmarks.gpu_parts.bench import Bench, Row, Skipped
from benchmarks.gpu_parts.learning import Lesson, learn
from benchmarks.gpu_parts.learning import recipe as quickstart
from benchmarks.gpu_parts.speed import forget_memory, memory_gib
from envsdk.config.loading import load_config
from envsdk.trainers.warm_start.prepare import prepare_policy

MODEL = "ENVSDK_RECIPE_MODEL"
NUM_STEPS = 150
SHARE = 0.9
"""Of a task's time, before its last evaluation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """One task."""

    name: str
    file: str
    overrides: tuple[str, ...]
    least: float
    """Held-out success that it has to reach. A goal, not a measurement."""


_TRAINING = (
    "actor_train.training_args={learning_rate: 2.0e-6, warmup_steps: 5, max_tokens_per_microbatch: 16384}"
)
_GAMES = (
    "rollout_batch_size=128",
    "val_batch_size=256",
    "sequence_length=2048",
    "ppo_mini_batch_size=64",
    "train_env_manager={num_env_groups: 16, group_size: 8, max_env_num_per_worker: 128}",
    _TRAINING,
)
RECIPES = (
    Recipe(
        name="FrozenLake",
        file="agentic_smollm2.yaml",
        overrides=(*_GAMES, "train_env_manager.tags=[FrozenLake]", "val_env_manager.tags=[FrozenLake]"),
        least=0.7,
    ),
    Recipe(
        name="Sokoban",
        file="agentic_smollm2.yaml",
        overrides=(*_GAMES, "train_env_manager.tags=[SimpleSokoban]", "val_env_manager.tags=[SimpleSokoban]"),
        least=0.3,
    ),
    Recipe(
        name="word problems",
        file="rlvr_smollm2.yaml",
        overrides=(
            "response_length=256",
            "rollout_batch_size=32",
            "val_batch_size=256",
            _TRAINING,
        ),
        least=0.8,
    ),
)
_SMALL = ("rollout_batch_size=2", "ppo_mini_batch_size=2", "train_env_manager.num_env_groups=1")
_SMALL_PROMPTS = ("rollout_batch_size=1", "num_return_sequences_in_group=2", "response_length=16")


def _small(recipe: Recipe) -> tuple[str, ...]:
    if recipe.file.startswith("rlvr"):
        return _SMALL_PROMPTS
    return (*_SMALL, "train_env_manager.group_size=2", "sequence_length=512")


def run(bench: Bench) -> Iterator[Row]:
    if bench.is_small:
        folder = prepare_policy(quickstart(42, is_small=True), device=bench.device)
    elif (given := os.environ.get(MODEL)) is None:
        raise Skipped(f"{MODEL} does not name a model's folder, such as that of Qwen2.5-0.5B-Instruct")
    else:
        folder = Path(given)
    for number, recipe in enumerate(RECIPES):
        overrides = [f"pretrain={folder}", *recipe.overrides, *(_small(recipe) if bench.is_small else ())]
        if not bench.is_small:
            overrides.append("actor_train.strategy_args.strategy_config={dtype: bfloat16}")
        forget_memory(bench)
        lesson = Lesson(
            name=recipe.name,
            config=load_config(recipe.file, overrides).config,
            folder=folder,
            num_steps=2 if bench.is_small else NUM_STEPS,
            ends_at=time.monotonic() + SHARE * bench.left_s / (len(RECIPES) - number),
            least=recipe.least,
        )
        yield from learn(bench, lesson)
        if (peak := memory_gib(bench)) is not None:
            yield Row(what=f"{recipe.name}: memory of engine and trainer together", value=peak, unit="GiB")
