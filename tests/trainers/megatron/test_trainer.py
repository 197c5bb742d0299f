"""`megatron_train` against the torch trainer on the same batches, under every kind of layout."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hf_models import write_model
from plays import (
    TRAINING,
    Played,
    assert_close,
    play,
    play_on_megatron,
    steps_and_what_they_change,
)

from envsdk.trainers.torch_trainer import TorchTrainer
from envsdk.training import TrainBatch, TrainerConfig, TrainSequence

TOLERANCE = 3e-5
"""Of log-probabilities, values, metrics and weights after three steps: absolute, relative above 1."""

TP, PP, CP, EP = (
    {f"{kind}_parallel_size": 2} for kind in ("tensor_model", "pipeline_model", "context", "expert_model")
)
SP = {**TP, "sequence_parallel": True}
VPP = {**PP, "virtual_pipeline_model_parallel_size": 2}
WHOLE_LOSS = {
    "ppo_epochs": 2,
    "ppo_mini_batch_size": 5,
    "entropy_loss_coef": 0.02,
    "kl_loss_coef": 0.1,
    "temperature": 0.8,
}
LAYOUTS: dict[str, tuple[int, str, dict[str, Any]]] = {
    "1 rank": (1, "qwen3 tied", {}),
    "TP": (2, "qwen3 tied", TP),
    "TP, untied": (2, "qwen2", TP),
    "TP with SP": (2, "llama tied", SP),
    "PP": (2, "qwen3 tied", PP),
    "VPP": (2, "qwen2 tied", VPP),
    "PP, recomputed": (2, "llama", {**PP, "recompute_granularity": "full"}),
    "TP with SP, recomputed": (2, "qwen3", {**SP, "recompute_granularity": "selective"}),
    "CP": (2, "qwen3", CP),
    "DP": (2, "qwen3 tied", {}),
    "DP, whole optimizers": (2, "qwen3 tied", {"use_distributed_optimizer": False}),
    "DP, overlapped": (2, "qwen2", {"overlap_grad_reduce": True, "overlap_param_gather": True}),
    "EP": (2, "qwen3_moe", EP),
    "EP, whole optimizers": (2, "qwen3_moe tied", {**EP, "use_distributed_optimizer": False}),
    "TP and PP": (4, "qwen3 tied", {**TP, **PP}),
    "TP and DP": (4, "qwen2 tied", TP),
    "TP with SP, and CP": (4, "qwen3", {**SP, **CP}),
    "PP and CP": (4, "llama", {**PP, **CP}),
    "PP and DP": (4, "qwen3 tied", PP),
    "VPP and DP": (4, "qwen3", VPP),
    "CP and DP": (4, "qwen2 tied", CP),
    "EP and PP": (4, "qwen3_moe tied", {**EP, **PP}),
    "EP and CP": (4, "qwen3_moe", {**EP, **CP}),
    "EP and TP with SP": (4, "qwen3_moe", {**EP, **SP}),
    "EP and DP": (4, "qwen3_moe", EP),
    "DP of 4": (4, "llama tied", {}),
}

Reference = Callable[..., tuple[TrainerConfig, Any, Played]]


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Reference:
    """Of a model and an algorithm: the configuration, the calls, and what the torch trainer answers."""
    root = tmp_path_factory.mktemp("models")

    @functools.cache
    def folder_of(name: str) -> Path:
        folder = root / name.replace(" ", "-")
        write_model(folder, name)
        return folder

    @functools.cache
    def answer(name: str, algorithm: tuple[tuple[str, Any], ...], with_values: bool) -> Any:
        config = TrainerConfig(
            model=folder_of(name),
            sequence_length=256,
            seed=3,
            algorithm=dict(algorithm),
            training_args=TRAINING,
            with_value_head=with_values,
        )
        lengths = [37, 12, 100, 3, 29, 21, 60, 17]
        batches = [TrainBatch(step=step, sequences=sequences(lengths, seed=step)) for step in range(2)]
        # Fewer sequences than ranks.
        batches.append(TrainBatch(step=2, sequences=sequences([25], seed=2)))
        ids = [sequence.ids for sequence in sequences([40, 2, 9, 63, 11], seed=7)]
        calls = steps_and_what_they_change(batches, ids, values=with_values)
        return config, calls, play(TorchTrainer, config, calls)

    def of(name: str, algorithm: dict[str, Any], *, with_values: bool = False) -> Any:
        return answer(name, tuple(algorithm.items()), with_values)

    return of


def sequences(lengths: list[int], seed: int) -> list[TrainSequence]:
    """A fifth of the tokens sampled, half a nat off policy; of every fourth sequence nothing is learned."""
    rng = np.random.default_rng(seed)
    drawn = []
    for index, length in enumerate(lengths):
        mask = (rng.random(length) < 0.2).astype(np.int8)
        mask[0], mask[length // 2] = 0, 1
        logprobs = rng.normal(-4.1, 0.5, (2, length)) * mask
        advantages, returns = rng.normal(0, 1, (2, length)) * mask
        drawn.append(
            TrainSequence(
                ids=rng.integers(0, 61, length).astype(np.int32),
                response_mask=mask,
                behavior_logprobs=logprobs[0].astype(np.float32),
                reference_logprobs=logprobs[1].astype(np.float32),
                advantages=(advantages * (index % 4 != 3)).astype(np.float32),
                returns=returns.astype(np.float32),
            )
        )
    return drawn


@pytest.mark.parametrize("layout", LAYOUTS)
def test_three_steps_are_those_of_the_torch_trainer(layout: str, reference: Reference) -> None:
    world_size, name, strategy = LAYOUTS[layout]
    config, calls, expected = reference(name, {"entropy_loss_coef": 0.02})
    found = play_on_megatron(world_size, config, strategy, calls)
    weights = found[-2]
    assert weights.keys() == expected[-2].keys()
    assert_close(found, expected, tolerance=TOLERANCE)
    assert max(np.abs(found[-1][0] - found[0][0])) > 1e-2


@pytest.mark.parametrize("layout", ["TP with SP", "PP", "VPP", "CP", "DP, overlapped", "EP"])
def test_the_whole_loss_with_epochs_and_a_value_head_is_that_of_the_torch_trainer(
    layout: str, reference: Reference
) -> None:
    world_size, name, strategy = LAYOUTS[layout]
    config, calls, expected = reference(name, WHOLE_LOSS, with_values=True)
    found = play_on_megatron(world_size, config, strategy, calls)
    assert_close(found, expected, tolerance=TOLERANCE)
    assert max(np.abs(found[-1][0])) > 1e-3
