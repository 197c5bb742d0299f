"""The embedded engine and the torch trainer mean the same distribution."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from envsdk.contracts.support import Support
from envsdk.contracts.trainer import TrainBatch, TrainSequence
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


@pytest.mark.parametrize(
    "shape",
    [{"top_p": 0.99, "top_k": 100}, {"top_p": 0.6}, {"min_p": 0.05, "temperature": 0.8}, {"top_k": 2}],
)
async def test_logprobs_of_truncated_sampling_agree_after_steps_on_such_samples(
    shape, model_folder, make_config, make_sequences
) -> None:
    """The ratio to the behavior policy is 1 before each step."""
    trainer = TorchTrainer.create(
        make_config(
            algorithm={"temperature": shape.get("temperature", 1.0)}, training_args={"learning_rate": 3e-3}
        )
    )
    engine = EmbeddedEngine.create(EngineConfig(model=model_folder, sequence_length=256))
    await engine.start()
    try:
        for version in (0, 1):
            prompts = [sequence.ids for sequence in make_sequences(6, seed=version)]
            results = await agreeing_replies(
                engine, trainer, prompts, version, atol=1e-5, max_new_tokens=30, support=True, **shape
            )
            batch = [learned(prompt, result) for prompt, result in zip(prompts, results, strict=True)]
            assert all(sequence.support is not None for sequence in batch)
            metrics = trainer.train_step(TrainBatch(step=version, sequences=batch))
            assert metrics["actor/logprob_gap_max"] < 1e-5
            await engine.load_weights(dict(trainer.weights()), version=version + 1)
    finally:
        await engine.close()


def learned(prompt, result) -> TrainSequence:
    """A prompt and its reply, with some advantage."""
    sampled = np.repeat(np.array([0, 1], np.int8), [len(prompt), len(result.token_ids)])
    return TrainSequence(
        ids=np.concatenate([prompt, result.token_ids]),
        response_mask=sampled,
        behavior_logprobs=np.concatenate([np.zeros(len(prompt), np.float32), result.logprobs]),
        advantages=sampled.astype(np.float32) * (-1.0) ** len(prompt),
        support=Support.joined([None, result.support], [len(prompt), len(result.token_ids)]),
    )


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
