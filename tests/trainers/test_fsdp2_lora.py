"""Adapters under `fsdp2_train`: the torch trainer's, shared out over the ranks."""

from __future__ import annotations

import asyncio
import dataclasses
from pathlib import Path

import numpy as np
from plays import Call, assert_close, play, play_on
from ranks import run_ranks

from envsdk.contracts.trainer import TrainBatch, TrainerConfig, TrainerRank
from envsdk.engines.embedded import EmbeddedEngine
from envsdk.engines.engine import EngineConfig, GenerationRequest, GenerationResult
from envsdk.engines.sampling import SamplingParams
from envsdk.trainers.fsdp2_trainer import Fsdp2Trainer
from envsdk.weights.lora import A_SUFFIX

LORA = {"lora": {"rank": 4}}
TRAINING = {"learning_rate": 3e-2, "adam_epsilon": 1e-5, "max_tokens_per_microbatch": 100}


def test_steps_and_checkpoints_are_those_of_the_torch_trainer_and_a_saved_model_has_the_adapter_merged_in(
    make_config, make_sequences, tmp_path: Path
) -> None:
    """A step by torch, two on two ranks, and torch goes on."""
    strategy = LORA | {"gradient_checkpointing": True}
    config = make_config(strategy_config=strategy, training_args=TRAINING, with_value_head=True)
    steps = [("train_step", TrainBatch(step=n, sequences=make_sequences(8, seed=n))) for n in range(4)]
    looks: list[Call] = [("logprobs", [sequence.ids for sequence in make_sequences(5)]), ("weights",)]
    first, second, model = folders = [tmp_path / name for name in ("first", "second", "model")]
    for folder in folders:
        folder.mkdir()
    middle: list[Call] = [steps[1], *looks, steps[2], *looks]
    _, _, begun, *expected, last = play(
        "torch", config, [steps[0], ("save", first), ("weights",), *middle, steps[3], ("weights",)]
    )
    saving: list[Call] = [("save", second), ("save_pretrained", model)]
    loaded, *found, _, _ = play_on("fsdp2_train", 2, config, [("load", first), *middle, *saving])
    assert loaded is None
    assert_close(found, expected[:-1], tolerance=3e-5)
    weights = found[-1]
    moved = {name for name, weight in weights.items() if not np.array_equal(weight, begun[name])}
    assert moved
    assert all("proj" in name for name in moved)
    assert_close(play("torch", make_config(model=model), [("weights",)])[0], weights, tolerance=1e-7)
    assert_close(play("torch", config, [("load", second), steps[3], ("weights",)])[-1], last, tolerance=1e-4)
    size = sum(file.stat().st_size for file in second.glob("weights*.safetensors"))
    assert size < 0.5 * sum(weight.nbytes for weight in weights.values())


def train_and_read(
    rank: TrainerRank, config: TrainerConfig, batches: list[TrainBatch], prompts: list[np.ndarray]
) -> list[tuple[dict[str, np.ndarray], list[np.ndarray]]]:
    """After each batch: the adapter, and the gaps to an engine that samples with it after `prompts`."""
    trainer = Fsdp2Trainer.create(dataclasses.replace(config, rank=rank))
    assert trainer.has_adapter
    found = []
    for batch in batches:
        trainer.train_step(batch)
        adapter = dict(trainer.adapter())
        results = asyncio.run(replies(config.model, adapter, prompts))
        both = [np.concatenate([p, r.token_ids]) for p, r in zip(prompts, results, strict=True)]
        gaps = [
            logprobs[len(prompt) :] - result.logprobs
            for prompt, result, logprobs in zip(prompts, results, trainer.logprobs(both), strict=True)
        ]
        found.append((adapter, gaps))
    trainer.close()
    return found


async def replies(
    model: Path, adapter: dict[str, np.ndarray], prompts: list[np.ndarray]
) -> list[GenerationResult]:
    engine = EmbeddedEngine.create(EngineConfig(model=model, sequence_length=256))
    await engine.start()
    try:
        await engine.load_weights(adapter, 1)
        requests = [
            GenerationRequest(
                request_id=str(index),
                prompt_ids=prompt,
                sampling=SamplingParams(max_new_tokens=30, seed=index),
            )
            for index, prompt in enumerate(prompts)
        ]
        return list(await asyncio.gather(*map(engine.submit, requests)))
    finally:
        await engine.close()


def test_engine_and_ranks_mean_the_same_after_each_adapter(make_config, make_sequences) -> None:
    batches = [TrainBatch(step=n, sequences=make_sequences(4, seed=n)) for n in range(2)]
    prompts = [sequence.ids for sequence in make_sequences(4, seed=9)]
    config = make_config(strategy_config=LORA, training_args=TRAINING)
    first, second = run_ranks(2, train_and_read, config, batches, prompts)
    for (adapter, gaps), (other, _) in zip(first, second, strict=True):
        assert_close(adapter, other, tolerance=0.0)
        assert any(name.endswith(A_SUFFIX) for name in adapter)
        assert max(np.abs(gap).max() for gap in gaps) < 1e-4
    before, after = first[0][0], first[1][0]
    assert any(not np.array_equal(before[name], after[name]) for name in before)
