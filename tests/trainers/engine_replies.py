"""Replies of an engine with a trainer's weights."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import numpy as np

from envsdk.contracts.trainer import Trainer
from envsdk.engines.engine import Engine, GenerationRequest, GenerationResult
from envsdk.engines.sampling import SamplingParams


async def agreeing_replies(
    engine: Engine, trainer: Trainer, prompts: Sequence[Any], version: int, **sampling: Any
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
    for prompt, result, logprobs in zip(prompts, results, trainer.logprobs(whole), strict=True):
        np.testing.assert_allclose(logprobs[len(prompt) :], result.logprobs, atol=1e-4)
    return results
