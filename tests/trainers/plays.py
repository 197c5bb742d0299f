"""The same calls to a trainer in one process and to one on several ranks, and what both answer."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
from ranks import run_ranks, run_ranks_on_gpus

from envsdk.base.plugins import load_plugin
from envsdk.contracts.failures import EnvsdkError
from envsdk.contracts.trainer import TrainerConfig, TrainerRank

Call = tuple[Any, ...]
"""Name of a trainer's method and its arguments."""
Played = list[Any]
"""What each call returned, or the text of its error."""

TRAINING = {
    "learning_rate": 1e-3,
    "weight_decay": 0.1,
    "max_grad_norm": 0.5,
    "max_tokens_per_microbatch": 100,
    # Where a gradient is almost 0, Adam would turn a rounding error into a whole step.
    "adam_epsilon": 1e-5,
}
MEGATRON_ON_CPU = "tests.trainers.megatron.cpu_trainer:MegatronOnCpu"
OWN_TO_A_LAYOUT = {"actor/num_computed_tokens", "actor/num_saved_tokens", "actor/padding_fraction"}
TIMES = {"actor/step_time_s", "sft/step_time_s"}


def play(strategy_name: str, config: TrainerConfig, calls: list[Call]) -> Played:
    """On a trainer in this process."""
    trainer = load_plugin("envsdk.trainers", strategy_name).create(config)
    played: Played = []
    for name, *args in calls:
        try:
            result = getattr(trainer, name)(*args)
        except EnvsdkError as error:
            result = f"{type(error).__name__}: {error}"
        if name in ("weights", "adapter"):
            result = dict(result)
        elif name == "device_weights":
            result = {key: tensor.cpu().numpy().copy() for key, tensor in result}
        elif isinstance(result, dict):
            result = {key: value for key, value in result.items() if key not in TIMES}
        played.append(result)
    trainer.close()
    return played


def play_rank(rank: TrainerRank, strategy_name: str, config: TrainerConfig, calls: list[Call]) -> Played:
    return play(strategy_name, dataclasses.replace(config, rank=rank), calls)


def play_on(
    strategy_name: str, world_size: int, config: TrainerConfig, calls: list[Call], *, gpus: bool = False
) -> Played:
    """What all ranks answered; they agree to the last bit."""
    run = run_ranks_on_gpus if gpus else run_ranks
    first, *others = run(world_size, play_rank, strategy_name, config, calls)
    for other in others:
        assert_close(first, other, tolerance=0.0)
    return first


def play_on_megatron(
    world_size: int,
    config: TrainerConfig,
    strategy: dict[str, Any],
    calls: list[Call],
    *,
    gpus: bool = False,
) -> Played:
    config = dataclasses.replace(config, strategy_config=strategy)
    return play_on("megatron_train" if gpus else MEGATRON_ON_CPU, world_size, config, calls, gpus=gpus)


def assert_close(one: Any, other: Any, *, tolerance: float, where: str = "") -> None:
    """Numbers within `tolerance`, relative above 1; the padding is each layout's own."""
    if isinstance(one, dict):
        assert one.keys() == other.keys(), where
        for key in one.keys() - (OWN_TO_A_LAYOUT if tolerance else set()):
            assert_close(one[key], other[key], tolerance=tolerance, where=f"{where} {key}")
    elif isinstance(one, list | tuple):
        assert len(one) == len(other), where
        for index, (left, right) in enumerate(zip(one, other, strict=True)):
            assert_close(left, right, tolerance=tolerance, where=f"{where} {index}")
    elif isinstance(one, str) or one is None:
        assert one == other, where
    else:
        np.testing.assert_allclose(one, other, rtol=tolerance, atol=tolerance, err_msg=where)
