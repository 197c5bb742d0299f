"""The embedded engine and the torch trainer mean the same distribution."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest

from envsdk.inference.embedded import EmbeddedEngine
from envsdk.inference.engine import EngineConfig, GenerationRequest
from envsdk.inference.sampling import SamplingParams
from envsdk.trainer import TrainBatch
from envsdk.trainers.torch_trainer import TorchTrainer


@pytest.mark.parametrize("folder", ["model_folder", "untied_model_folder"])
@pytest.mark.parametrize("temperature", [1.0, 0.7])
async def test_logprobs_of_sampled_tokens_agree_before_and_after_a_weight_update(
    folder, temperature, make_config, make_sequences, request
) -> None:
    path = request.getfixturevalue(folder)
    trainer = TorchTrainer.create(
        make_config(model=path, algorithm={"temperature": temperature}, training_args={"learning_rate": 3e-3})
    )
    engine = EmbeddedEngine.create(EngineConfig(model=path, sequence_length=256))
    await engine.start()
    try:
        for version in (0, 1):
            prompts = [sequence.ids for sequence in make_sequences(6, seed=version)]
            results = await asyncio.gather(
                *[
                    engine.submit(
                        GenerationRequest(
                            request_id=f"{version}-{index}",
                            prompt_ids=prompt,
                            sampling=SamplingParams(max_new_tokens=40, temperature=temperature, seed=index),
                        )
                    )
                    for index, prompt in enumerate(prompts)
                ]
            )
            replies = [result.token_ids for result in results]
            whole = [np.concatenate(pair) for pair in zip(prompts, replies, strict=True)]
            for prompt, result, logprobs in zip(prompts, results, trainer.logprobs(whole), strict=True):
                assert {span.version for span in result.version_spans} == {version}
                np.testing.assert_allclose(logprobs[len(prompt) :], result.logprobs, atol=1e-4)
            trainer.train_step(TrainBatch(step=version, sequences=make_sequences(4)))
            await engine.load_weights(dict(trainer.weights()), version=version + 1)
    finally:
        await engine.close()
