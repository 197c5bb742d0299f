"""The embedded engine and the torch trainer mean the same distribution."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from envsdk.contracts.trainer import TrainBatch
from envsdk.engines.embedded import EmbeddedEngine
from envsdk.engines.engine import EngineConfig, GenerationRequest
from envsdk.engines.sampling import SamplingParams
from envsdk.trainers.torch_trainer import TorchTrainer
from tests.trainers.engine_replies import agreeing_replies


@pytest.mark.parametrize("folder", ["model_folder", "untied_model_folder"])
@pytest.mark.parametrize(("temperature", "through_host"), [(1.0, True), (0.7, True), (1.0, False)])
async def test_logprobs_of_sampled_tokens_agree_before_and_after_a_weight_update(
    folder, temperature, through_host, make_config, make_sequences, request
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
            results = await agreeing_replies(
                engine, trainer, prompts, version, max_new_tokens=40, temperature=temperature
            )
            assert {span.version for result in results for span in result.version_spans} == {version}
            trainer.train_step(TrainBatch(step=version, sequences=make_sequences(4)))
            weights = trainer.weights() if through_host else trainer.device_weights()
            await engine.load_weights(dict(weights), version=version + 1)
    finally:
        await engine.close()


async def test_an_engine_given_the_trainers_own_tensors_keeps_them_when_the_trainer_goes_on(
    model_folder, make_config, make_sequences
) -> None:
    trainer = TorchTrainer.create(make_config(training_args={"learning_rate": 3e-2}))
    request = GenerationRequest(
        request_id="",
        prompt_ids=np.array([3, 1, 4], np.int32),
        sampling=SamplingParams(max_new_tokens=20, seed=0),
    )
    engine = EmbeddedEngine.create(EngineConfig(model=model_folder, sequence_length=256))
    await engine.start()
    try:
        await engine.load_weights(dict(trainer.device_weights()), version=1)
        before = await engine.submit(replace(request, request_id="before"))
        trainer.train_step(TrainBatch(step=0, sequences=make_sequences(4)))
        after = await engine.submit(replace(request, request_id="after"))
        np.testing.assert_array_equal(after.token_ids, before.token_ids)
        np.testing.assert_array_equal(after.logprobs, before.logprobs)
        await engine.load_weights(dict(trainer.device_weights()), version=2)
        learned = await engine.submit(replace(request, request_id="learned"))
        assert not np.array_equal(learned.logprobs, before.logprobs)
    finally:
        await engine.close()
