"""Weights of every family that the trainers train, sent to vLLM itself and computed by `transformers`."""

from __future__ import annotations

import asyncio
from pathlib import Path

import numpy as np
import pytest
from tiny_models import reference_logprobs
from vllm_models import EXACT, ON_A_GPU

from envsdk.contracts.failures import ConfigurationError
from envsdk.contracts.trainer import TrainerConfig
from envsdk.engines.engine import EngineConfig, GenerationRequest
from envsdk.engines.sampling import SamplingParams
from envsdk.engines.vllm.engine import VLLMEngine
from envsdk.engines.vllm.settings import why_not_renewed
from envsdk.trainers.torch_trainer import TorchTrainer
from tests.trainers.families import FAMILIES, VOCAB_SIZE, make_family

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(900)]

NOT_COMPUTED = () if ON_A_GPU else ("qwen3_5", "qwen3_5_moe", "glm4_moe_lite")
"""vLLM computes the first two on a CPU in bfloat16 alone, and refuses to compute the last one there."""
RUN = [name for name in FAMILIES if name not in NOT_COMPUTED and not why_not_renewed(name)]
SIZES = {"hidden_size": 64, "head_dim": 32, "intermediate_size": 64}
"""What vLLM computes with on a CPU."""


@pytest.mark.skipif(ON_A_GPU, reason="this is refused on a CPU")
def test_latent_attention_which_it_computes_otherwise_on_a_cpu_is_refused(tmp_path: Path) -> None:
    make_family("glm4_moe_lite", 0, **SIZES).save_pretrained(tmp_path)
    with pytest.raises(ConfigurationError, match="latent attention"):
        VLLMEngine.create(EngineConfig(model=tmp_path, sequence_length=64, max_running=4))


@pytest.mark.parametrize("name", RUN)
async def test_sent_weights_are_computed_with_as_transformers_does(name: str, tmp_path: Path) -> None:
    models = [make_family(name, seed, **SIZES) for seed in range(2)]
    for seed, model in enumerate(models):
        model.save_pretrained(tmp_path / str(seed))
    trainer = TorchTrainer.create(TrainerConfig(model=tmp_path / "1", sequence_length=64, seed=0))
    settings = EXACT | {"kv_cache_memory_bytes": 1 << 27}
    engine = VLLMEngine.create(
        EngineConfig(model=tmp_path / "0", sequence_length=64, max_running=4, strategy_config=settings)
    )
    await engine.start()
    try:
        for version, weights in enumerate([None, dict(trainer.weights()), tmp_path / "0"]):
            if weights is not None:
                await engine.load_weights(weights, version)
            draw = np.random.default_rng(version)
            prompts = [draw.integers(0, VOCAB_SIZE, 20).astype(np.int32) for _ in range(4)]
            requests = [
                GenerationRequest(
                    request_id=f"{version}-{number}",
                    prompt_ids=prompt,
                    sampling=SamplingParams(max_new_tokens=15, seed=number),
                )
                for number, prompt in enumerate(prompts)
            ]
            results = await asyncio.gather(*map(engine.submit, requests))
            for prompt, result in zip(prompts, results, strict=True):
                assert not result.error
                expected = reference_logprobs(models[version % 2], prompt, result.token_ids)
                np.testing.assert_allclose(result.logprobs, expected, atol=5e-3 if ON_A_GPU else 1e-4)
    finally:
        await engine.close()
