"""Sampling by inverse CDF: one uniform number per token, taken from the request's own stream.

So a reply depends on its seed, prompt and weights alone, not on which requests share its batch.
B is the number of rows, V the vocabulary.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from envsdk.inference.sampling import SHAPE, SamplingParams

# Keeps u * total strictly below total in float32, so that no token without probability is drawn.
_BELOW_ONE = np.float32(1.0 - 2.0**-22)


def uniforms(seed: int, count: int) -> NDArray[np.float32]:
    """The first `count` numbers of the stream of `seed`, in [0, 1)."""
    return np.random.Generator(np.random.PCG64(seed % 2**64)).random(count, dtype=np.float32) * _BELOW_ONE


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingPlan:
    """What a batch's rows ask for; None where no row asks, so that the common case costs nothing."""

    inverse_temperature_B1: Tensor | None
    greedy_B: Tensor | None
    filtered_rows: Tensor | None
    """Rows that leave tokens out."""
    shape: Mapping[str, Tensor]
    """By parameter of `SamplingShape`, the values of these rows: `[num_filtered, 1]`."""

    @classmethod
    def of(cls, params: Sequence[SamplingParams], device: torch.device) -> SamplingPlan:
        temperatures = [p.temperature or 1.0 for p in params]
        greedy = [p.temperature == 0 for p in params]
        filtered = [row for row, p in enumerate(params) if p.is_truncated]
        return cls(
            inverse_temperature_B1=None
            if all(t == 1.0 for t in temperatures)
            else (1.0 / torch.tensor(temperatures, device=device)).unsqueeze(1),
            greedy_B=torch.tensor(greedy, device=device) if any(greedy) else None,
            filtered_rows=torch.tensor(filtered, device=device) if filtered else None,
            shape={
                name: torch.tensor([[getattr(params[row], name)] for row in filtered], device=device)
                for name in SHAPE
                if filtered
            },
        )


def sample(logits_BV: Tensor, uniforms_B: Tensor, plan: SamplingPlan) -> tuple[Tensor, Tensor]:
    """Token ids `[B]` and their log-probabilities `[B]` under the distribution they were drawn from."""
    if plan.inverse_temperature_B1 is not None:
        logits_BV = logits_BV * plan.inverse_temperature_B1
    if plan.filtered_rows is not None:
        kept = _filter(logits_BV[plan.filtered_rows], plan.shape)
        logits_BV = logits_BV.index_copy(0, plan.filtered_rows, kept)
    probabilities_BV = torch.softmax(logits_BV, -1)
    cumulative_BV = torch.cumsum(probabilities_BV, -1)
    target_B1 = cumulative_BV[:, -1:] * uniforms_B.unsqueeze(1)
    # right=True finds the first token whose cumulative probability exceeds the target.
    tokens_B1 = torch.searchsorted(cumulative_BV, target_B1, right=True)
    if plan.greedy_B is not None:
        best_B1 = probabilities_BV.argmax(-1, keepdim=True)
        tokens_B1 = torch.where(plan.greedy_B.unsqueeze(1), best_B1, tokens_B1)
    # Reached only when the logits are not numbers; the log-probability then says so.
    tokens_B1.clamp_(max=logits_BV.shape[1] - 1)
    return tokens_B1.squeeze(1), probabilities_BV.gather(1, tokens_B1).squeeze(1).log_().clamp_(max=0.0)


def _filter(logits: Tensor, shape: Mapping[str, Tensor]) -> Tensor:
    """-inf outside the `top_k` likeliest tokens, then outside the smallest set that holds `top_p`, then below
    `min_p` times the likeliest token's probability."""
    ordered, order = logits.sort(dim=-1, descending=True)
    top_k = shape["top_k"]
    last = torch.where(top_k == 0, logits.shape[1], top_k.clamp(max=logits.shape[1])) - 1
    ordered = ordered.masked_fill(ordered < ordered.gather(1, last), -torch.inf)
    probabilities = ordered.softmax(-1)
    before = probabilities.cumsum(-1) - probabilities
    outside = before >= shape["top_p"]
    outside |= ordered < ordered[:, :1] + shape["min_p"].log()
    outside[:, 0] = False
    ordered = ordered.masked_fill(outside, -torch.inf)
    return torch.empty_like(logits).scatter_(1, order, ordered)
