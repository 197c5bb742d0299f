"""`megatron_train` against the torch trainer on the same batches, under every kind of layout."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hf_models import write_model
from plays import TRAINING, Call, Played, assert_close, play, play_on_megatron
from ranks import need_gpus

from envsdk.contracts.trainer import TrainBatch, TrainerConfig, TrainSequence
from tests.by_day import by_day

TOLERANCE = {"cpu": 3e-5, "cuda:0": 1e-4}
"""Of log-probabilities, values, metrics and weights after three steps: absolute, relative above 1. Measured
on the CPU, guessed for GPUs."""
BFLOAT16_TOLERANCE = 4e-2
"""Of log-probabilities and metrics, between a run in bfloat16 and one in float32."""
DEVICES = ["cpu", pytest.param("cuda:0", marks=pytest.mark.gpu)]
"""Of the torch trainer; Megatron's ranks are on CPUs or each on its GPU accordingly."""

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


def recomputed(*modules: str) -> dict[str, Any]:
    return {"recompute_granularity": "selective", "recompute_modules": list(modules)}


LAYOUTS: dict[str, tuple[int, str, dict[str, Any]]] = {
    "1 rank": (1, "qwen3 tied", {}),
    "TP": (2, "qwen3 tied", TP),
    "TP, untied": (2, "qwen2", TP),
    "TP with SP": (2, "llama tied", SP),
    "PP": (2, "qwen3 tied", PP),
    "VPP": (2, "qwen2 tied", VPP),
    "PP, recomputed": (2, "llama", {**PP, "recompute_granularity": "full"}),
    "TP with SP, recomputed": (2, "qwen3", {**SP, "recompute_granularity": "selective"}),
    "PP, feed-forward recomputed": (2, "llama", {**PP, **recomputed("mlp", "core_attn")}),
    "EP, experts recomputed": (2, "qwen3_moe", {**EP, **recomputed("moe")}),
    "PP, shared experts recomputed": (2, "glm4_moe", {**PP, **recomputed("shared_experts")}),
    "CP": (2, "qwen3", CP),
    "DP": (2, "qwen3 tied", {}),
    "DP, whole optimizers": (2, "qwen3 tied", {"use_distributed_optimizer": False}),
    "DP, overlapped": (2, "qwen2", {"overlap_grad_reduce": True, "overlap_param_gather": True}),
    "EP": (2, "qwen3_moe", EP),
    "EP, whole optimizers": (2, "qwen3_moe tied", {**EP, "use_distributed_optimizer": False}),
    "EP, Mixtral": (2, "mixtral", EP),
    "EP and TP with SP, Mixtral": (2, "mixtral", {**EP, **SP, "expert_tensor_parallel_size": 1}),
    "PP, GLM-4.5": (2, "glm4_moe", PP),
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

LOSSES: dict[str, tuple[list[str], dict[str, Any]]] = {
    "gspo": (
        ["CP", "PP", "DP"],
        {
            "pg_variant": "gspo",
            "pg_args": {"clip_low": 0.05, "clip_high": 0.05},
            "loss_agg_mode": "seq-mean-token-mean",
        },
    ),
    "segment_ppo": (["CP", "TP with SP"], {"pg_variant": "segment_ppo"}),
    "topr": (["CP", "DP"], {"pg_variant": "topr"}),
    "kimi15": (["CP", "VPP"], {"pg_variant": "kimi15"}),
    "cispo": (["TP with SP"], {"pg_variant": "cispo", "pg_args": {"clip_high": 0.3}}),
    "weights of sequences, by their means": (
        ["CP"],
        {
            "train_infer_correction": {
                "is_weight": {"weight_type": "geometric", "upper_bound": 0.7, "lower_bound": 0.3},
                "filters": [{"agg_type": "sequence", "ratio_low": 1e-4, "ratio_high": 1e4}],
            }
        },
    ),
    "weights of sequences, masked": (
        ["DP"],
        {
            "train_infer_correction": {
                "is_weight": {"weight_type": "sequence", "upper_bound": 3.0, "beyond_bounds": "mask"},
                "filters": [
                    {"agg_type": "geometric", "ratio_low": 0.3, "ratio_high": 3.0},
                    {"agg_type": "segment", "ratio_enabled": False, "diff_enabled": True, "diff_low": -0.03},
                ],
            }
        },
    ),
}
"""Each under layouts that part the tokens of a sequence, the layers they go through, or the sequences."""

Reference = Callable[..., tuple[TrainerConfig, list[Call], Played]]


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Reference:
    """Of a model and an algorithm: the configuration, the calls, and what the torch trainer answers."""

    @functools.cache
    def folder_of(name: str, **changes: Any) -> Path:
        folder = tmp_path_factory.mktemp("model")
        write_model(folder, name, **changes)
        return folder

    @functools.cache
    def answer(name: str, algorithm: str, with_values: bool, device: str, **changes: Any) -> Any:
        config = TrainerConfig(
            model=folder_of(name, **changes),
            sequence_length=256,
            seed=3,
            algorithm=json.loads(algorithm),
            training_args=TRAINING,
            strategy_config={"device": device},
            with_value_head=with_values,
        )
        lengths = [37, 12, 100, 3, 29, 21, 60, 17]
        batches = [TrainBatch(step=step, sequences=sequences(lengths, seed=step)) for step in range(2)]
        # Fewer sequences than ranks.
        batches.append(TrainBatch(step=2, sequences=sequences([25], seed=2)))
        ids = [sequence.ids for sequence in sequences([40, 2, 9, 63, 11], seed=7)]
        calls: list[Call] = [("logprobs", ids), *(("train_step", batch) for batch in batches)]
        calls += [("weights",), ("logprobs", ids)]
        calls += [("values", ids)] if with_values else []
        return config, calls, play("torch", config, calls)

    def of(
        name: str, algorithm: dict[str, Any], *, with_values: bool = False, device: str, **changes: Any
    ) -> Any:
        # Settings of an algorithm are nested: their text can be a key.
        return answer(name, json.dumps(algorithm), with_values, device, **changes)

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


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("layout", by_day(["EP", "TP and PP"], LAYOUTS))
def test_three_steps_are_those_of_the_torch_trainer(layout: str, device: str, reference: Reference) -> None:
    found, expected = both(layout, device, reference, {"entropy_loss_coef": 0.02})
    assert_close(found, expected, tolerance=TOLERANCE[device])
    assert max(np.abs(found[-1][0] - found[0][0])) > 1e-2


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(
    "layout", by_day(["TP with SP", "VPP"], ["TP with SP", "PP", "VPP", "CP", "DP, overlapped", "EP"])
)
def test_the_whole_loss_with_epochs_and_a_value_head_is_that_of_the_torch_trainer(
    layout: str, device: str, reference: Reference
) -> None:
    found, expected = both(layout, device, reference, WHOLE_LOSS, with_values=True)
    assert_close(found, expected, tolerance=TOLERANCE[device])
    assert max(np.abs(found[-1][0])) > 1e-3


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(
    ("loss", "layout"),
    by_day(
        [("gspo", "CP"), ("weights of sequences, masked", "DP")],
        [(loss, layout) for loss, (layouts, _) in LOSSES.items() for layout in layouts],
    ),
)
def test_losses_over_sequences_and_segments_are_those_of_the_torch_trainer(
    loss: str, layout: str, device: str, reference: Reference
) -> None:
    _, settings = LOSSES[loss]
    algorithm = {"ppo_epochs": 2, "ppo_mini_batch_size": 5, **settings}
    found, expected = both(layout, device, reference, algorithm)
    assert_close(found, expected, tolerance=TOLERANCE[device])
    metrics = found[1]
    assert metrics["actor/ratio_max"] > 1.1
    assert (metrics["actor/measured_share"] < 1) == (loss != "kimi15")
    assert metrics["actor/pg_loss"] == pytest.approx(metrics["actor/loss"], rel=1e-5, abs=1e-6)
    if "train_infer_correction" in settings:
        assert 0.1 < metrics["actor/filters_masked"] < 0.9
        assert metrics["actor/is_weight_min"] < metrics["actor/is_weight_max"]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("layout", by_day(["TP"], ["TP", "DP"]))
def test_three_steps_in_bfloat16_are_near_those_of_the_torch_trainer_in_float32(
    layout: str, device: str, reference: Reference
) -> None:
    found, expected = both(layout, device, reference, {}, dtype="bfloat16", initializer_range=0.05)
    *found, weights, after = found
    *expected, expected_weights, expected_after = expected
    assert_close([found, after], [expected, expected_after], tolerance=BFLOAT16_TOLERANCE)
    assert max(np.abs(after[0] - found[0][0])) > 5 * BFLOAT16_TOLERANCE
    for name, weight in expected_weights.items():
        # On average: Adam may turn a single weight around, its gradient almost 0. Matrices move by 1.6e-3.
        rounding = 2.0**-8 * np.abs(weight).mean()
        assert np.abs(weights[name] - weight).mean() < 1e-4 + rounding, name


def both(
    layout: str,
    device: str,
    reference: Reference,
    algorithm: dict[str, Any],
    *,
    dtype: str = "float32",
    **changes: Any,
) -> tuple[Played, Played]:
    """What Megatron answers under `layout`, and the torch trainer on one device in float32."""
    world_size, name, strategy = LAYOUTS[layout]
    on_gpus = device != "cpu"
    if on_gpus:
        need_gpus(world_size)
    config, calls, expected = reference(name, algorithm, device=device, **changes)
    strategy = {**strategy, "dtype": dtype}
    return play_on_megatron(world_size, config, strategy, calls, gpus=on_gpus), expected
