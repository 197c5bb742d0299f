"""Routing replay: the trainer's routers choose what the engine's chose."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import numpy as np
import pytest

from envsdk.contracts.failures import ConfigurationError, TrainerError
from envsdk.contracts.trainer import TrainBatch
from envsdk.engines.embedded import EmbeddedEngine
from envsdk.engines.engine import EngineConfig, GenerationRequest
from envsdk.engines.sampling import SamplingParams
from envsdk.trainers.torch_trainer import TorchTrainer
from tests.trainers.families import MIXTURES, make_family, save_family, shaken

REPLAY = {"train_infer_correction": {"routing_replay": True}}
EXACT = 1e-5
"""Nats, as for dense models in float32."""


async def sampled(folder, prompts, experts_from=0, **settings):
    engine = EmbeddedEngine.create(
        EngineConfig(model=folder, sequence_length=128, max_running=3, strategy_config=settings)
    )
    await engine.start()
    try:
        return await asyncio.gather(
            *(
                engine.submit(
                    GenerationRequest(
                        request_id=str(number),
                        prompt_ids=prompt,
                        sampling=SamplingParams(max_new_tokens=6 + 4 * number, seed=number),
                        experts_from=experts_from,
                    )
                )
                for number, prompt in enumerate(prompts)
            )
        )
    finally:
        await engine.close()


def whole(experts: np.ndarray) -> np.ndarray:
    """With a row for the last token, which was no input."""
    return np.concatenate([experts, np.full_like(experts[:1], -1)])


@pytest.mark.parametrize("name", MIXTURES)
async def test_the_experts_of_every_input_are_told_and_replayed(name, make_config, make_sequences, tmp_path):
    folder = save_family(name, tmp_path / "engine")
    prompts = [sequence.ids for sequence in make_sequences(5)]
    results = await sampled(folder, prompts)
    ids = [np.concatenate([p, r.token_ids]) for p, r in zip(prompts, results, strict=True)]
    experts = [whole(result.experts) for result in results]
    assert [len(each) for each in experts] == [len(each) for each in ids]

    def gap(trainer, *given):
        found = trainer.logprobs(ids, *given)
        pairs = zip(prompts, results, found, strict=True)
        return max(np.abs(f[len(p) :] - r.logprobs).max() for p, r, f in pairs)

    same = TorchTrainer.create(make_config(model=folder, algorithm=REPLAY))
    assert gap(same, experts) < EXACT
    assert gap(same) < EXACT
    # Another choice of experts is another policy: replayed choices are the ones that count.
    others = [np.where(each < 0, each, (each + 1) % 4).astype(np.int16) for each in experts]
    assert gap(same, others) > 100 * EXACT
