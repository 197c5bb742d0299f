"""Replies of an engine with a trainer's weights."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from envsdk.contracts.support import Support
from envsdk.contracts.trainer import Trainer
from envsdk.engines.embedded import EmbeddedEngine
from envsdk.engines.engine import Engine, EngineConfig, GenerationRequest, GenerationResult
from envsdk.engines.sampling import SamplingParams


async def agreeing_replies(
    engine: Engine,
    trainer: Trainer,
    prompts: Sequence[Any],
    version: int,
    *,
    atol: float = 1e-4,
    **sampling: Any,
) -> list[GenerationResult]:
    """A reply to each prompt; engine and trainer give its tokens the same log-probabilities."""
    results = await asyncio.gather(
        *[
            engine.submit(
                GenerationRequest(
                    request_id=f"{version}-{index}",
                    prompt_ids=prompt,
                    sampling=SamplingParams(seed=index, **sampling),
                )
            )
            for index, prompt in enumerate(prompts)
        ]
    )
    whole = [np.concatenate([p, r.token_ids]) for p, r in zip(prompts, results, strict=True)]
    if any(result.support is not None for result in results):
        parts = zip(prompts, results, strict=True)
        supports = [Support.joined([None, r.support], [len(p), len(r.token_ids)]) for p, r in parts]
        scored = trainer.logprobs(whole, supports=supports)
    else:
        scored = trainer.logprobs(whole)
    for prompt, result, logprobs in zip(prompts, results, scored, strict=True):
        np.testing.assert_allclose(logprobs[len(prompt) :], result.logprobs, atol=atol)
    return results


async def routed_replies(
    folder: Path, prompts: Sequence[Any], *, experts_from: int = 0, **settings: Any
) -> list[GenerationResult]:
    """A reply of the embedded engine to each prompt, of different lengths, with the experts it chose."""
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
