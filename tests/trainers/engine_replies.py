"""Replies of an engine with a trainer's weights."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import numpy as np

from envsdk.contracts.support import Support
from envsdk.contracts.trainer import Trainer
from envsdk.engines.engine import Engine, GenerationRequest, GenerationResult
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
