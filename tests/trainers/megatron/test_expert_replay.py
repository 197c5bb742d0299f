"""Routing replay under Megatron: the loss of the recorded experts is the torch trainer's."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from engine_replies import routed_replies
from hf_models import write_model
from plays import TRAINING, Call, assert_close, play, play_on_megatron
from test_trainer import CP, EP, PP, SP, VPP, recomputed

from envsdk.contracts.trainer import TrainBatch, TrainerConfig, TrainSequence
from tests.by_day import by_day

Sequences = Callable[..., list[TrainSequence]]
REPLAY = {"train_infer_correction": {"routing_replay": True}}
LAYOUTS: dict[str, tuple[int, str, dict[str, Any]]] = {
    "1 rank": (1, "mixtral", {}),
    "EP": (2, "qwen3_moe", EP),
    "EP and TP with SP": (2, "qwen3_moe", {**EP, **SP, "expert_tensor_parallel_size": 1}),
    "CP": (2, "mixtral", CP),
    "PP, recomputed": (2, "glm4_moe", {**PP, "recompute_granularity": "full"}),
    "EP, experts recomputed": (2, "qwen3_moe", {**EP, **recomputed("moe")}),
    "VPP, recomputed": (2, "glm4_moe", {**VPP, "recompute_granularity": "full"}),
}


def config_of(folder: Path, **changes: Any) -> TrainerConfig:
    settings = {"model": folder, "sequence_length": 256, "seed": 3, "training_args": TRAINING}
    return TrainerConfig(**{**settings, "algorithm": REPLAY, **changes})


@pytest.mark.parametrize("layout", by_day(["EP and TP with SP", "PP, recomputed"], LAYOUTS))
def test_the_loss_is_that_of_the_replayed_experts(
    layout: str, make_sequences: Sequences, tmp_path: Path
) -> None:
    world_size, name, strategy = LAYOUTS[layout]
    model = write_model(tmp_path, name)
    rng = np.random.default_rng(0)
    num_layers = model.config.num_hidden_layers  # servers tell of every layer

    def chosen(length: int) -> np.ndarray:
        experts = rng.permuted(np.tile(np.arange(4, dtype=np.int16), (length, num_layers, 1)), axis=2)[
            ..., :2
        ]
        experts[::5] = -1
        return experts

    batches = [
        TrainBatch(step=step, sequences=[replace(s, experts=chosen(len(s.ids))) for s in sequences])
        for step, sequences in enumerate((make_sequences(6, seed=1), make_sequences(2, seed=2)))
    ]
    ids = [sequence.ids for sequence in make_sequences(4, seed=9)]
    experts = [chosen(len(each)) if number != 1 else None for number, each in enumerate(ids)]
    calls: list[Call] = [("logprobs", ids, experts), *(("train_step", batch) for batch in batches)]
    calls += [("weights",), ("logprobs", ids)]
    expected = play("torch", config_of(tmp_path), calls)
    found = play_on_megatron(world_size, config_of(tmp_path), strategy, calls)
    assert_close(found, expected, tolerance=3e-5)
    own = play("torch", config_of(tmp_path, algorithm={}), [("train_step", batches[0])])
    assert abs(own[0]["actor/loss"] - found[1]["actor/loss"]) > 1e-3


async def test_in_bfloat16_replay_takes_most_far_mismatches_with_the_engine_away(
    make_sequences: Sequences, tmp_path: Path
) -> None:
    write_model(tmp_path, "mixtral", initializer_range=0.1)
    prompts = [sequence.ids for sequence in make_sequences(12)]
    results = await routed_replies(tmp_path, prompts, dtype="bfloat16")
    ids = [np.concatenate([p, r.token_ids]) for p, r in zip(prompts, results, strict=True)]
    experts = [np.concatenate([r.experts, np.full_like(r.experts[:1], -1)]) for r in results]
    calls: list[Call] = [("logprobs", ids), ("logprobs", ids, experts)]
    played = await asyncio.to_thread(play_on_megatron, 2, config_of(tmp_path, sequence_length=128), EP, calls)
    before, after = (
        np.quantile(
            np.concatenate(
                [np.abs(f[len(p) :] - r.logprobs) for p, r, f in zip(prompts, results, logprobs, strict=True)]
            ),
            0.99,
        )
        for logprobs in played
    )
    print(f"99th percentile: {before:.4f} without, {after:.4f} with replay")
    assert after < 0.5 * before
