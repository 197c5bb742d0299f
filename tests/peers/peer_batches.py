"""Random batches in the padded form that other packages take, and our losses of them.

Shapes: B rows, T positions, N sampled tokens.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from torch import Tensor

from envsdk.algorithms.aggregation import sequence_weights
from envsdk.algorithms.args import AlgorithmArgs
from envsdk.algorithms.correction import correction
from envsdk.algorithms.kl import kl_estimate
from envsdk.algorithms.loss_settings import own_args, weighs
from envsdk.algorithms.losses import PolicyTokens, load_policy_loss
from envsdk.algorithms.ratios import bounded_exp, log_ratio

EMPTY_ROW = 3
"""Nothing of it is sampled."""
IDLE_ROW = 5
"""Its advantage is 0."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PaddedBatch:
    """float64 `[B, T]`; sampled tokens in several replies per row, with gaps between."""

    mask_BT: Tensor
    behavior_BT: Tensor
    proximal_BT: Tensor
    current_BT: Tensor
    reference_BT: Tensor
    advantages_BT: Tensor

    @property
    def is_sampled_BT(self) -> Tensor:
        return self.mask_BT.bool()

    def without_row(self, row: int) -> PaddedBatch:
        rows = [index for index in range(len(self.mask_BT)) if index != row]
        return PaddedBatch(**{each.name: getattr(self, each.name)[rows] for each in fields(self)})


def padded_batch(
    *, spread: float = 0.3, advantage_per: str = "row", one_reply: bool = False, seed: int = 1
) -> PaddedBatch:
    """12 rows of 40 positions. `spread` is the standard deviation of the log-ratio of policies next to one
    another; `advantage_per` row or token."""
    num_rows, length = 12, 40
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    def integer(low: int, high: int) -> int:
        return int(torch.randint(low, high, (1,), generator=generator))

    mask_BT = torch.zeros(num_rows, length, dtype=torch.float64)
    for row in range(num_rows):
        start = integer(0, 4)
        while start < length and not (one_reply and mask_BT[row].any()):
            end = start + integer(1, 9)
            mask_BT[row, start:end] = 1
            start = end + integer(1, 6)
    mask_BT[EMPTY_ROW] = 0
    behavior_BT = -4 * torch.rand(num_rows, length, generator=generator, dtype=torch.float64) - 0.05
    # Probabilities stay below 1.
    proximal_BT, current_BT, reference_BT = (behavior_BT.clone() for _ in range(3))
    proximal_BT = (behavior_BT + spread * normal(num_rows, length)).clamp(max=-1e-3)
    current_BT = (proximal_BT + spread * normal(num_rows, length)).clamp(max=-1e-3)
    reference_BT = (current_BT + spread * normal(num_rows, length)).clamp(max=-1e-3)
    advantages_BT = normal(num_rows, length if advantage_per == "token" else 1).expand(-1, length).clone()
    advantages_BT[IDLE_ROW] = 0
    return PaddedBatch(
        mask_BT=mask_BT,
        behavior_BT=behavior_BT,
        proximal_BT=proximal_BT,
        current_BT=current_BT,
        reference_BT=reference_BT,
        advantages_BT=advantages_BT,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    loss: float
    gradient_BT: Tensor
    """By the current log-probabilities."""
    acted: float = 0.0
    """Share of tokens that were clipped, whose weight was bounded, or that were filtered."""


def theirs(batch: PaddedBatch, loss_of: Callable[[PaddedBatch, Tensor], Tensor]) -> Result:
    current_BT = batch.current_BT.clone().requires_grad_()
    loss = loss_of(batch, current_BT)
    [gradient_BT] = torch.autograd.grad(loss, current_BT)
    return Result(loss=float(loss.detach()), gradient_BT=gradient_BT)


def ours(batch: PaddedBatch, **keys: Any) -> Result:
    """`keys` as at the top level of the YAML. Without a section the correction is off."""
    off = {"is_weight": {"enabled": False}}
    args = AlgorithmArgs(**{"train_infer_correction": off} | keys)
    current_BT = batch.current_BT.clone().requires_grad_()
    tokens = packed(replace(batch, current_BT=current_BT))
    policy = load_policy_loss(args)(tokens, args)
    corrected = correction(tokens, args.train_infer_correction, weighted=weighs(args, own_args(args)))
    weights_B = torch.tensor(
        sequence_weights(args.loss_agg_mode, batch.mask_BT.sum(1).tolist(), length=args.loss_agg_length)
    )
    weights_N = weights_B[:, None].expand_as(batch.mask_BT)[batch.is_sampled_BT]
    kl_N = kl_estimate(tokens.logprobs, batch.reference_BT[batch.is_sampled_BT], args.kl_loss_type)
    loss = (weights_N * (corrected.factor * policy.loss + args.kl_loss_coef * kl_N)).sum()
    [gradient_BT] = torch.autograd.grad(loss, current_BT)
    acted_N = policy.clipped.bool()
    if policy.weight is not None:
        correcting_N = bounded_exp(log_ratio(tokens.proximal_logprobs, tokens.behavior_logprobs))
        acted_N = acted_N | (policy.weight != policy.ratio) & (policy.weight != correcting_N)
    for share_N in corrected.shares.values():
        acted_N = acted_N | share_N.bool()
    return Result(loss=float(loss.detach()), gradient_BT=gradient_BT, acted=float(acted_N.double().mean()))


def packed(batch: PaddedBatch) -> PolicyTokens:
    """The sampled tokens of all rows, one row after the other."""
    is_sampled_BT = batch.is_sampled_BT
    rows_N, places_N = torch.where(is_sampled_BT)
    sequence_ids = torch.unique(rows_N, return_inverse=True)[1]
    begins_N = torch.ones_like(rows_N, dtype=torch.bool)
    begins_N[1:] = (rows_N.diff() != 0) | (places_N.diff() != 1)
    return PolicyTokens(
        logprobs=batch.current_BT[is_sampled_BT],
        proximal_logprobs=batch.proximal_BT[is_sampled_BT],
        behavior_logprobs=batch.behavior_BT[is_sampled_BT],
        advantages=batch.advantages_BT[is_sampled_BT],
        sequence_ids=sequence_ids,
        segment_ids=begins_N.cumsum(0) - 1,
    )
