"""Log-probabilities and entropy of the sampling distribution.

Shapes: N tokens, V vocabulary, H hidden size, K further tokens in the place of each.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from envsdk.base.settings.memory import LOGITS_AT_ONCE
from envsdk.contracts.support import Support

_NEVER = -1e30
"""Logit of a token that could not be drawn: finite, so that its probability, 0, times it is 0."""
_ROWS_AT_ONCE = 8192
"""Rows of the output embedding whose gradient is computed at once."""


def token_logprobs_and_entropy(
    logits_NV: Tensor,
    ids_N: Tensor,
    *,
    temperature: float = 1.0,
    entropy_gradient: bool = False,
    support: Support | None = None,
) -> tuple[Tensor, Tensor]:
    """Log-probability of each id, in the shape of `ids_N`: `[N]` or `[N, K]`, and entropy `[N]`, nats.

        z = logits / temperature    log p(id) = z_id - logsumexp(z)    H = logsumexp(z) - sum_v p_v z_v

    Sums go over `support` where it is given, else over the vocabulary. Computed in float32. The entropy is
    detached unless `entropy_gradient`.
    """
    scaled_NV = held_to(logits_NV.float() / temperature, support)
    normalizer_N = torch.logsumexp(scaled_NV, dim=-1)
    ids_NK = ids_N.reshape(len(ids_N), -1)
    logprobs_N = (scaled_NV.gather(-1, ids_NK) - normalizer_N.unsqueeze(-1)).reshape(ids_N.shape)
    with torch.set_grad_enabled(entropy_gradient and torch.is_grad_enabled()):
        entropy_N = normalizer_N - (torch.softmax(scaled_NV, dim=-1) * scaled_NV).sum(-1)
    return logprobs_N, entropy_N


def held_to(logits_NV: Tensor, support: Support | None, *, first: int = 0) -> Tensor:
    """The logits, in place: tokens outside `support` get one that leaves them no probability.

    The columns are the ids from `first` on.
    """
    if support is None:
        return logits_NV
    counts_N = torch.from_numpy(support.counts.astype(np.int64)).to(logits_NV.device)
    columns = torch.from_numpy(support.ids.astype(np.int64)).to(logits_NV.device) - first
    rows = torch.arange(len(counts_N), device=logits_NV.device).repeat_interleave(counts_N)
    is_here = (columns >= 0) & (columns < logits_NV.shape[-1])
    is_out_NV = (counts_N > 0).unsqueeze(-1).repeat(1, logits_NV.shape[-1])
    is_out_NV[rows[is_here], columns[is_here]] = False
    return logits_NV.masked_fill_(is_out_NV, _NEVER)


class LogitTransform(NamedTuple):
    """How logits are made of z = hidden @ weight.T: scale * z, or softcap * tanh(scale * z / softcap)."""

    scale: float = 1.0
    softcap: float | None = None

    def __call__(self, products: Tensor) -> Tensor:
        """In place."""
        if self.scale != 1:
            products.mul_(self.scale)
        return products if self.softcap is None else products.div_(self.softcap).tanh_().mul_(self.softcap)


AS_THEY_ARE = LogitTransform()


class ProjectedTokens(NamedTuple):
    """Scores of tokens, float32 `[N]`."""

    logprobs_N: Tensor
    entropy_N: Tensor
    top_logprobs_N: Tensor
    """Log-probabilities of the likeliest tokens, detached."""
    further_NK: Tensor
    """Log-probabilities of the further tokens that are asked for, `[N, K]`."""


def projected_tokens(
    hidden_NH: Tensor,
    weight_VH: Tensor,
    ids_N: Tensor,
    *,
    dtype: torch.dtype,
    temperature: float = 1.0,
    entropy_gradient: bool = False,
    transform: LogitTransform = AS_THEY_ARE,
    support: Support | None = None,
    further_NK: Tensor | None = None,
) -> ProjectedTokens:
    """`token_logprobs_and_entropy` of logits = transform(hidden @ weight.T), which are never all in memory.

    They are computed for a few tokens at a time, with operands of `dtype`, and again in the backward pass.
    `further_NK`: ids of more tokens in the place of each.
    """
    ids_NK = ids_N[:, None] if further_NK is None else torch.cat([ids_N[:, None], further_NK], -1)
    settings = (dtype, temperature, entropy_gradient, transform, support)
    logprobs_NK, entropy_N, tops_N = _Projection.apply(hidden_NH, weight_VH, ids_NK, *settings)  # type: ignore[no-untyped-call]
    return ProjectedTokens(logprobs_NK[:, 0], entropy_N, tops_N, logprobs_NK[:, 1:])


class _Projection(torch.autograd.Function):
    """The gradient of log p(id) by the logits is onehot(id) - p, that of H is -p (log p + H)."""

    @staticmethod
    def forward(ctx: Any, hidden_NH: Tensor, weight_VH: Tensor, ids_NK: Tensor, *settings: Any) -> Any:
        dtype, temperature, entropy_gradient, transform, support = settings
        weight = weight_VH.to(dtype)
        parts = []
        for held, hidden, ids in _chunks(len(weight), support, hidden_NH.to(dtype), ids_NK):
            logits = held_to(transform((hidden @ weight.t()).float()).div_(temperature), held)
            tops = logits.amax(-1)
            probabilities = (logits - tops[:, None]).exp_()
            totals = probabilities.sum(-1)
            normalizers = tops + totals.log()
            chosen = logits.gather(-1, ids)
            entropies = normalizers - logits.mul_(probabilities).sum(-1) / totals
            parts.append((chosen - normalizers[:, None], entropies, tops - normalizers, normalizers))
        logprobs_NK, entropy_N, tops_N, normalizers_N = map(torch.cat, zip(*parts, strict=True))
        ctx.save_for_backward(hidden_NH, weight_VH, ids_NK, normalizers_N, entropy_N)
        ctx.dtype, ctx.temperature, ctx.entropy_gradient, ctx.transform, ctx.support = settings
        ctx.mark_non_differentiable(tops_N, *(() if entropy_gradient else (entropy_N,)))
        return logprobs_NK, entropy_N, tops_N

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        hidden_NH, weight_VH, ids_NK, normalizers_N, entropy_N = ctx.saved_tensors
        weight = weight_VH.to(ctx.dtype)
        by_weight_VH = torch.zeros_like(weight_VH, dtype=torch.float32) if ctx.needs_input_grad[1] else None
        parts = []
        of_tokens = (hidden_NH.to(ctx.dtype), ids_NK, normalizers_N, entropy_N, *gradients[:2])
        for held, hidden, ids, normalizers, entropies, by_logprobs, by_entropy in _chunks(
            len(weight), ctx.support, *of_tokens
        ):
            logits = ctx.transform((hidden @ weight.t()).float())
            capped = None if ctx.transform.softcap is None else (logits / ctx.transform.softcap).square_()
            surprisals = held_to(logits, held).div_(-ctx.temperature).add_(normalizers[:, None])
            by_logits = surprisals.neg().exp_()
            factors = by_logprobs.sum(-1, keepdim=True)
            if ctx.entropy_gradient:
                factors = (entropies[:, None] - surprisals).mul_(by_entropy[:, None]).add_(factors)
            by_logits.mul_(factors).neg_().scatter_add_(1, ids, by_logprobs)
            if capped is not None:
                by_logits.mul_(capped.neg_().add_(1))
            by_logits = by_logits.div_(ctx.temperature / ctx.transform.scale).to(ctx.dtype)
            parts.append(by_logits @ weight)
            if by_weight_VH is not None:
                # In parts: the product is in `dtype`, and adding it makes a float32 copy.
                for start in range(0, len(weight), _ROWS_AT_ONCE):
                    rows = slice(start, start + _ROWS_AT_ONCE)
                    by_weight_VH[rows] += by_logits[:, rows].t() @ hidden
        by_weight = None if by_weight_VH is None else by_weight_VH.to(weight_VH.dtype)
        return torch.cat(parts).to(hidden_NH.dtype), by_weight, None, None, None, None, None, None


def _chunks(vocab_size: int, support: Support | None, *tensors_N: Tensor) -> Iterator[tuple[Any, ...]]:
    """The support and the tensors in pieces for whose tokens there is room for logits."""
    size = max(1, LOGITS_AT_ONCE // vocab_size)
    pieces = [torch.split(tensor, size) for tensor in tensors_N]
    places = [slice(number * size, (number + 1) * size) for number in range(len(pieces[0]))]
    return zip((support and support.take(each) for each in places), *pieces, strict=True)
