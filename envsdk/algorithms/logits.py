"""Log-probabilities and entropy of the sampling distribution.

Shapes: N tokens, V vocabulary, H hidden size.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from envsdk.base.settings.memory import LOGITS_AT_ONCE

_ROWS_AT_ONCE = 8192
"""Rows of the output embedding whose gradient is computed at once."""


def token_logprobs_and_entropy(
    logits_NV: Tensor, ids_N: Tensor, *, temperature: float = 1.0, entropy_gradient: bool = False
) -> tuple[Tensor, Tensor]:
    """Log-probability `[N]` of each id and entropy `[N]`, nats, of softmax(logits / temperature).

        z = logits / temperature    log p(id) = z_id - logsumexp(z)    H = logsumexp(z) - sum_v p_v z_v

    Computed in float32. The entropy is detached unless `entropy_gradient`. `top_p` and `top_k` are not
    applied: with them on, these are not the sampler's log-probabilities.
    """
    scaled_NV = logits_NV.float() / temperature
    normalizer_N = torch.logsumexp(scaled_NV, dim=-1)
    logprobs_N = scaled_NV.gather(-1, ids_N.unsqueeze(-1)).squeeze(-1) - normalizer_N
    with torch.set_grad_enabled(entropy_gradient and torch.is_grad_enabled()):
        entropy_N = normalizer_N - (torch.softmax(scaled_NV, dim=-1) * scaled_NV).sum(-1)
    return logprobs_N, entropy_N


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


def projected_tokens(
    hidden_NH: Tensor,
    weight_VH: Tensor,
    ids_N: Tensor,
    *,
    dtype: torch.dtype,
    temperature: float = 1.0,
    entropy_gradient: bool = False,
    transform: LogitTransform = AS_THEY_ARE,
) -> ProjectedTokens:
    """`token_logprobs_and_entropy` of logits = transform(hidden @ weight.T), which are never all in memory.

    They are computed for a few tokens at a time, with operands of `dtype`, and again in the backward pass.
    """
    return ProjectedTokens(
        *_Projection.apply(hidden_NH, weight_VH, ids_N, dtype, temperature, entropy_gradient, transform)  # type: ignore[no-untyped-call]
    )


class _Projection(torch.autograd.Function):
    """The gradient of log p(id) by the logits is onehot(id) - p, that of H is -p (log p + H)."""

    @staticmethod
    def forward(ctx: Any, hidden_NH: Tensor, weight_VH: Tensor, ids_N: Tensor, *settings: Any) -> Any:
        dtype, temperature, entropy_gradient, transform = settings
        weight = weight_VH.to(dtype)
        parts = []
        for hidden, ids in _chunks(len(weight), hidden_NH.to(dtype), ids_N):
            logits = transform((hidden @ weight.t()).float()).div_(temperature)
            tops = logits.amax(-1)
            probabilities = (logits - tops[:, None]).exp_()
            totals = probabilities.sum(-1)
            normalizers = tops + totals.log()
            chosen = logits.gather(-1, ids[:, None])[:, 0]
            entropies = normalizers - logits.mul_(probabilities).sum(-1) / totals
            parts.append((chosen - normalizers, entropies, tops - normalizers, normalizers))
        logprobs_N, entropy_N, tops_N, normalizers_N = map(torch.cat, zip(*parts, strict=True))
        ctx.save_for_backward(hidden_NH, weight_VH, ids_N, normalizers_N, entropy_N)
        ctx.dtype, ctx.temperature, ctx.entropy_gradient, ctx.transform = settings
        ctx.mark_non_differentiable(tops_N, *(() if entropy_gradient else (entropy_N,)))
        return logprobs_N, entropy_N, tops_N

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        hidden_NH, weight_VH, ids_N, normalizers_N, entropy_N = ctx.saved_tensors
        weight = weight_VH.to(ctx.dtype)
        by_weight_VH = torch.zeros_like(weight_VH, dtype=torch.float32) if ctx.needs_input_grad[1] else None
        parts = []
        for hidden, ids, normalizers, entropies, by_logprob, by_entropy in _chunks(
            len(weight), hidden_NH.to(ctx.dtype), ids_N, normalizers_N, entropy_N, *gradients[:2]
        ):
            logits = ctx.transform((hidden @ weight.t()).float())
            capped = None if ctx.transform.softcap is None else (logits / ctx.transform.softcap).square_()
            surprisals = logits.div_(-ctx.temperature).add_(normalizers[:, None])
            by_logits = surprisals.neg().exp_()
            factors = by_logprob[:, None]
            if ctx.entropy_gradient:
                factors = (entropies[:, None] - surprisals).mul_(by_entropy[:, None]).add_(factors)
            by_logits.mul_(factors).neg_().scatter_add_(1, ids[:, None], by_logprob[:, None])
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
        return torch.cat(parts).to(hidden_NH.dtype), by_weight, None, None, None, None, None


def _chunks(vocab_size: int, *tensors_N: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """The tensors in pieces for whose tokens there is room for logits."""
    size = max(1, LOGITS_AT_ONCE // vocab_size)
    return zip(*(torch.split(tensor, size) for tensor in tensors_N), strict=True)
