"""Losses without a trust region: a coefficient times -A log pi, so that every token has a gradient.

Below, A is a token's advantage, sg() takes the gradient away. Tensors are `[N]`.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from envsdk.algorithms.args import AlgorithmArgs
from envsdk.algorithms.losses import PolicyLoss, PolicyTokens, policy_loss
from envsdk.algorithms.policy_loss_args import CISPOArgs, RatioOver, RECArgs, TISArgs, TOPRArgs, VanillaArgs
from envsdk.algorithms.ratios import bounded_exp, log_ratio, sum_by


@policy_loss(VanillaArgs)
def vanilla(tokens: PolicyTokens, args: AlgorithmArgs, own: VanillaArgs) -> PolicyLoss:
    """REINFORCE.

        loss = -A log pi_current

    Compares no policies; without a weight from the correction it takes stale tokens for fresh ones.
    Source: Williams (1992), "Simple statistical gradient-following algorithms".
    """
    return _weighted(tokens, None, _ratio(tokens, "proximal"))


@policy_loss(TISArgs)
def tis(tokens: PolicyTokens, args: AlgorithmArgs, own: TISArgs) -> PolicyLoss:
    """Truncated importance sampling.

        loss = -sg(clip(r, lower_bound, upper_bound)) A log pi_current,    r = pi_current / pi_base per token

    Compares current with behavior, or with proximal. The bound of 1 is that of IMPALA's experiments and of
    ROLL's `tis`.
    Source: IMPALA, arXiv:1802.01561 (rho of V-trace); Ionides (2008), "Truncated importance sampling".
    """
    ratio = _ratio(tokens, own.ratio_over)
    return _weighted(tokens, ratio.clamp(min=own.lower_bound, max=own.upper_bound), ratio)


@policy_loss(CISPOArgs)
def cispo(tokens: PolicyTokens, args: AlgorithmArgs, own: CISPOArgs) -> PolicyLoss:
    """Clipped importance weights; no token loses its gradient.

        loss = -sg(clip(r, 1 - clip_low, 1 + clip_high)) A log pi_current,    r = pi_current / pi_base

    Compares current with behavior, or with proximal; the paper's pi_old is the policy that sampled. The
    paper's lower bound is out of effect and its upper one tuned; the default here bounds the weight at 2.
    With `masks_clipped` a token above the range with A > 0, or below it with A < 0, counts 0.

    Source: MiniMax-M1, arXiv:2506.13585, eq. 4 and 5; its mask, eq. 6 and 7.
    """
    ratio = _ratio(tokens, own.ratio_over)
    low, high = 0.0 if own.clip_low is None else 1 - own.clip_low, 1 + own.clip_high
    clipped = _weighted(tokens, ratio.clamp(min=low, max=high), ratio)
    if not own.masks_clipped:
        return clipped
    beyond = _beyond(ratio, tokens.advantages, low, high)
    return replace(clipped, loss=(1 - beyond) * clipped.loss, clipped=beyond)


@policy_loss(TOPRArgs)
def topr(tokens: PolicyTokens, args: AlgorithmArgs, own: TOPRArgs) -> PolicyLoss:
    """Tapered off-policy REINFORCE: what went well is imitated, what went badly is avoided only as far as
    the current policy would still do it.

        loss = -positive_weight A log pi_current                        for A >= 0
        loss = -negative_weight sg(min(r, 1)) A log pi_current          for A < 0
        r = pi_current(y) / pi_base(y) over the sequence y, or of the token (`level: token`)

    Compares current with behavior, or with proximal. The paper's sign is that of the trajectory's reward;
    here it is that of the token's advantage, the same thing where an outcome is compared with a baseline.
    ROLL's `topr` has the token's ratio, over proximal.

    Source: TOPR, arXiv:2503.14286, eq. 8.
    """
    log_ratios = log_ratio(tokens.frozen_logprobs, tokens.base_logprobs(own.ratio_over))
    if own.level == "sequence":
        log_ratios = sum_by(tokens.sequence_ids, log_ratios)
    ratio = bounded_exp(log_ratios)
    tapered = torch.where(
        tokens.advantages < 0, own.negative_weight * ratio.clamp(max=1.0), own.positive_weight
    )
    return _weighted(tokens, tapered, ratio)


@policy_loss(RECArgs)
def rec(tokens: PolicyTokens, args: AlgorithmArgs, own: RECArgs) -> PolicyLoss:
    """REINFORCE with clipping and without importance weights.

        loss = -A log pi_current for a token in range, else 0
        in range: r >= 1 - clip_low and r <= 1 + clip_high,    r = pi_current / pi_base per token

    With `sides: one` only the bound in the direction of A counts: the upper one for A > 0, the lower one for
    A < 0. Compares current with behavior, or with proximal. `sides: two` with `clip_low: 1 - 1 / (1 + e)` and
    `clip_high: e` has the gradient of sPPO, arXiv:2108.05828.

    Source: group-relative REINFORCE (REC) of Trinity-RFT, arXiv:2509.24203.
    """
    ratio = _ratio(tokens, own.ratio_over)
    low, high = 1 - own.clip_low, 1 + own.clip_high
    if own.sides == "one":
        beyond = _beyond(ratio, tokens.advantages, low, high)
    else:
        beyond = ((ratio > high) | (ratio < low)).to(ratio.dtype)
    return PolicyLoss(loss=-(1 - beyond) * tokens.advantages * tokens.logprobs, ratio=ratio, clipped=beyond)


def _ratio(tokens: PolicyTokens, over: RatioOver) -> Tensor:
    return bounded_exp(log_ratio(tokens.frozen_logprobs, tokens.base_logprobs(over)))


def _beyond(ratio: Tensor, advantages: Tensor, low: float, high: float) -> Tensor:
    """1 for tokens beyond the range in the direction of their advantage."""
    return (((ratio > high) & (advantages > 0)) | ((ratio < low) & (advantages < 0))).to(ratio.dtype)


def _weighted(tokens: PolicyTokens, weight: Tensor | None, ratio: Tensor) -> PolicyLoss:
    loss = -tokens.advantages * tokens.logprobs
    return PolicyLoss(
        loss=loss if weight is None else weight * loss,
        ratio=ratio,
        clipped=torch.zeros_like(ratio),
        weight=weight,
    )
