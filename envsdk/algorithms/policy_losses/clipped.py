"""Losses with a trust region: beyond it, in the direction of the advantage, a token gives no gradient.

Below, A is a token's advantage and clip(x) = clip(x, 1 - low, 1 + high). Tensors are `[N]`.
"""

from __future__ import annotations

import torch
from torch import Tensor

from envsdk.algorithms.args import AlgorithmArgs
from envsdk.algorithms.losses import PolicyLoss, PolicyTokens, policy_loss
from envsdk.algorithms.policy_loss_args import DAPOArgs, DecoupledPPOArgs, GSPOArgs, OverProximal, PPOArgs
from envsdk.algorithms.ratios import bounded_exp, log_ratio, mean_by


@policy_loss(PPOArgs)
def ppo(tokens: PolicyTokens, args: AlgorithmArgs, own: PPOArgs) -> PolicyLoss:
    """Clipped surrogate, with asymmetric and dual clip.

        r = pi_current / pi_base                    per token

        loss = -min(r A, clip(r) A)                        for A >= 0
        loss = -max(min(r A, clip(r) A), dual_clip A)      for A < 0

    Compares current with proximal (`ratio_over: proximal`): the trust region lies around the newest policy
    known to be good, and who sampled is the correction's business. With `ratio_over: behavior` it is
    standard PPO on stale data: clipping then does act on staleness, but holds the policy near an *old*
    one, and tokens that earlier batches already moved out of the range give no gradient at all.

    Source: PPO, arXiv:1707.06347, eq. 7; dual clip, arXiv:1912.09729; two bounds, arXiv:2503.14476.
    """
    ratio = bounded_exp(log_ratio(tokens.logprobs, tokens.base_logprobs(own.ratio_over)))
    return _clipped(ratio, tokens, *own.clip_range(args))


@policy_loss(DAPOArgs)
def dapo(tokens: PolicyTokens, args: AlgorithmArgs, own: DAPOArgs) -> PolicyLoss:
    """DAPO's policy loss: that of `ppo` without dual clip, the upper bound higher than the lower.

        loss = -min(r A, clip(r) A),    r = pi_current / pi_base per token

    Compares current with proximal, or with behavior. The rest of DAPO is set elsewhere: the mean over
    tokens by `loss_agg_mode: token-mean`, dynamic sampling by `group_filters: [zero_variance]`; its penalty
    for overlong replies is the environment's business.

    Source: DAPO, arXiv:2503.14476, eq. 8 and 10; its clip range is the default.
    """
    ratio = bounded_exp(log_ratio(tokens.logprobs, tokens.base_logprobs(own.ratio_over)))
    return _clipped(ratio, tokens, *own.clip_range(args))


@policy_loss(DecoupledPPOArgs)
def decoupled_ppo(tokens: PolicyTokens, args: AlgorithmArgs, own: DecoupledPPOArgs) -> PolicyLoss:
    """PPO whose trust region and whose correction have a policy each.

        loss = w L,    L that of `ppo` with r = pi_current / pi_proximal,    w = pi_proximal / pi_behavior

    Compares current with proximal, and proximal with behavior in w. A token whose w is above `weight_cap` is
    left out (`beyond_cap: mask`), as in AReaL's code; the paper of Hilton et al. has no cap. It stays in
    the denominator of the aggregation. With `beyond_cap: truncate` it equals `ppo` under
    `train_infer_correction.is_weight`.

    Source: Hilton et al., arXiv:2110.00641, sec. 2; AReaL, arXiv:2505.24298, eq. 5.
    """
    weight = bounded_exp(log_ratio(tokens.proximal_logprobs, tokens.behavior_logprobs))
    if own.weight_cap is not None:
        beyond = torch.zeros_like(weight) if own.beyond_cap == "mask" else own.weight_cap
        weight = torch.where(weight > own.weight_cap, beyond, weight)
    ratio = bounded_exp(log_ratio(tokens.logprobs, tokens.proximal_logprobs))
    inner = _clipped(ratio, tokens, *own.clip_range(args))
    return PolicyLoss(loss=weight * inner.loss, ratio=inner.ratio, clipped=inner.clipped, weight=weight)


@policy_loss(GSPOArgs)
def gspo(tokens: PolicyTokens, args: AlgorithmArgs, own: GSPOArgs) -> PolicyLoss:
    """Clipping of sequences by their length-normalized likelihood ratio.

        s = (pi_current(y) / pi_base(y))^(1 / |y|) = exp(mean over y of log r)
        loss = -min(s_t A, clip(s_t) A),     s_t = sg(s) pi_current / sg(pi_current)

    Compares current with proximal, or with behavior. This is the token form, GSPO-token, in which each
    token has an advantage of its own; where they are the same over a sequence, value and gradient are
    GSPO's.

    Source: GSPO, arXiv:2507.18071, eq. 5 to 7 and 13 to 14; its clip range is the default.
    """
    return _clipped(_group_ratio(tokens, own, tokens.sequence_ids), tokens, *own.clip_range(args))


@policy_loss(PPOArgs)
def segment_ppo(tokens: PolicyTokens, args: AlgorithmArgs, own: PPOArgs) -> PolicyLoss:
    """Clipping of replies: `gspo` with the reply, not the trajectory, in place of the sequence.

        s = exp(mean of log r over the reply);   then as in `gspo`, with the clip range of `ppo`

    Compares current with proximal, or with behavior. In a trajectory of many turns one reply that went
    far is clipped and the others still learn. The token form, as in `gspo`: a token's gradient has its own
    advantage, where ROLL's, through the mean in s, has the mean advantage of the reply. The two are the
    same where a reply has one advantage; where it has several, the mean would undo the differences between
    tokens.

    Source: the segment ratio of ROLL's agentic pipeline; no paper.
    """
    return _clipped(_group_ratio(tokens, own, tokens.segment_ids), tokens, *own.clip_range(args))


def _group_ratio(tokens: PolicyTokens, own: OverProximal, group_ids: Tensor) -> Tensor:
    """The mean ratio of each token's group, with the gradient of the token's own."""
    mean = mean_by(group_ids, log_ratio(tokens.frozen_logprobs, tokens.base_logprobs(own.ratio_over)))
    return bounded_exp(mean) * bounded_exp(tokens.logprobs - tokens.frozen_logprobs)


def _clipped(ratio: Tensor, tokens: PolicyTokens, low: float, high: float, dual: float | None) -> PolicyLoss:
    advantages = tokens.advantages
    clipped_ratio = ratio.clamp(1 - low, 1 + high)
    surrogate = torch.minimum(ratio * advantages, clipped_ratio * advantages)
    clipped = clipped_ratio * advantages < ratio * advantages
    if dual is not None:
        floor = dual * advantages
        clipped = clipped | ((advantages < 0) & (surrogate < floor))
        surrogate = torch.where(advantages < 0, torch.maximum(surrogate, floor), surrogate)
    return PolicyLoss(loss=-surrogate, ratio=ratio.detach(), clipped=clipped.to(ratio.dtype))
