"""Policy and value losses, per token. Pure: no masks, no reduction, no state.

Three policies meet in one token of an asynchronous run, and every loss takes their log-probabilities
by name:

    behavior   sampled the token; its log-probability came with the sample. Older by the staleness.
    proximal   the trainer's weights before the first optimizer step on this batch.
    current    the weights being optimized, with gradient; equal to proximal in the first step.

With one optimizer step per batch current / proximal is exactly 1: clipping that ratio says nothing about
staleness, which lives in proximal / behavior. Shapes: N sampled tokens, those of one sequence side by
side; callers pass sampled tokens only and reduce with `aggregation.sequence_weights`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from envsdk.algorithms.args import AlgorithmArgs
from envsdk.algorithms.kl import MAX_EXPONENT


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyTokens:
    """The sampled tokens of whole sequences, one sequence after the other; tensors are `[N]`.

    A sequence is never split: a loss may compare whole sequences or whole replies, and the result does
    not depend on which sequences share a micro-batch.
    """

    logprobs: Tensor
    """Under the current policy, the only one with gradient."""
    proximal_logprobs: Tensor
    behavior_logprobs: Tensor
    advantages: Tensor
    sequence_ids: Tensor
    """int64: 0, 0, ..., 1, 1, ...; the sequence each token is of."""
    segment_ids: Tensor
    """int64: counts replies through all sequences; a segment is an unbroken run of sampled tokens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyLoss:
    """What a policy loss returns; tensors are `[N]`, one number per token."""

    loss: Tensor
    """To be minimized, with gradient."""
    ratio: Tensor
    """Current policy over the policy it is compared with; detached."""
    clipped: Tensor
    """1 where clipping took the token's gradient away; detached."""
    behavior_weight: Tensor
    """Factor that corrects for staleness, after truncation; 1 where unused; detached."""


class PolicyLossFunction(Protocol):
    """A policy loss, found by its name in `POLICY_LOSSES`."""

    def __call__(self, tokens: PolicyTokens, args: AlgorithmArgs) -> PolicyLoss:
        """Loss of each token."""
        ...


POLICY_LOSSES: dict[str, PolicyLossFunction] = {}
"""Policy losses by the name that `pg_variant` takes."""


def register_policy_loss(name: str) -> Callable[[PolicyLossFunction], PolicyLossFunction]:
    """Decorator: make a policy loss available as `pg_variant: name`."""

    def register(function: PolicyLossFunction) -> PolicyLossFunction:
        if name in POLICY_LOSSES:
            raise ValueError(f"a policy loss named {name!r} is registered already")
        POLICY_LOSSES[name] = function
        return function

    return register


def policy_loss(name: str) -> PolicyLossFunction:
    """The policy loss registered under `name`; KeyError lists the known ones."""
    try:
        return POLICY_LOSSES[name]
    except KeyError:
        raise KeyError(f"unknown pg_variant {name!r}; known are {', '.join(sorted(POLICY_LOSSES))}") from None


def staleness_weight(proximal_logprobs: Tensor, behavior_logprobs: Tensor, args: AlgorithmArgs) -> Tensor:
    """min(pi_proximal / pi_behavior, `behavior_weight_cap`) per token `[...]`, detached.

    Ones with `behavior_weight: none`. The factor in front of the decoupled objective (Hilton et al.,
    arXiv:2110.00641; AReaL, arXiv:2505.24298), truncated as in IMPALA (arXiv:1802.01561,
    sec. 4.1), so that a token the old policy hardly ever wrote cannot dominate a batch.
    """
    if args.behavior_weight == "none":
        return torch.ones_like(proximal_logprobs)
    weight = _ratio(proximal_logprobs.detach(), behavior_logprobs.detach())
    return weight if args.behavior_weight_cap is None else weight.clamp(max=args.behavior_weight_cap)


@register_policy_loss("ppo")
def ppo_loss(tokens: PolicyTokens, args: AlgorithmArgs) -> PolicyLoss:
    """Clipped surrogate, with asymmetric and dual clip, decoupled from the behavior policy.

        r = pi_current / pi_center,   w = staleness weight

        loss = -w min(r A, clip(r, 1 - low, 1 + high) A)                         for A >= 0
        loss = -w max(min(r A, clip(r, 1 - low, 1 + high) A), dual_clip A)       for A < 0

    `pg_ratio: proximal` (the default): center = proximal, w = min(proximal / behavior, cap). The trust
    region lies around the newest policy known to be good, and the weight corrects for who sampled. At
    the first step the gradient is the truncated importance-weighted policy gradient at any staleness.

    `pg_ratio: behavior`: center = behavior, w = 1, standard PPO on stale data. Clipping then does act on
    staleness, but holds the policy near an *old* one, and tokens that earlier batches already moved
    beyond the clip range give no gradient at all.

    Source: PPO, arXiv:1707.06347, eq. 7; decoupled PPO, arXiv:2110.00641; dual clip,
    arXiv:1912.09729; asymmetric clip range, DAPO, arXiv:2503.14476, eq. 10.
    """
    if args.pg_ratio == "behavior":
        ratio = _ratio(tokens.logprobs, tokens.behavior_logprobs)
        weight = torch.ones_like(tokens.behavior_logprobs)
    else:
        ratio = _ratio(tokens.logprobs, tokens.proximal_logprobs)
        weight = staleness_weight(tokens.proximal_logprobs, tokens.behavior_logprobs, args)
    clipped_ratio = ratio.clamp(1 - args.pg_clip_low, 1 + args.pg_clip_high)
    surrogate = torch.minimum(ratio * tokens.advantages, clipped_ratio * tokens.advantages)
    clipped = clipped_ratio * tokens.advantages < ratio * tokens.advantages
    if args.dual_clip is not None:
        floor = args.dual_clip * tokens.advantages
        clipped = clipped | ((tokens.advantages < 0) & (surrogate < floor))
        surrogate = torch.where(tokens.advantages < 0, torch.maximum(surrogate, floor), surrogate)
    return PolicyLoss(
        loss=-weight * surrogate,
        ratio=ratio.detach(),
        clipped=clipped.to(ratio.dtype),
        behavior_weight=weight,
    )


@register_policy_loss("vanilla")
def vanilla_loss(tokens: PolicyTokens, args: AlgorithmArgs) -> PolicyLoss:
    """Policy gradient without a trust region.

        loss = -w A log pi_current        w = min(pi_proximal / pi_behavior, cap), or 1

    `behavior_weight: none` gives plain REINFORCE, which takes stale tokens for fresh ones. Source:
    Williams (1992), "Simple statistical gradient-following algorithms"; weight as in `ppo`.
    The ratio reported is current / proximal; it is not part of the loss.
    """
    weight = staleness_weight(tokens.proximal_logprobs, tokens.behavior_logprobs, args)
    return PolicyLoss(
        loss=-weight * tokens.advantages * tokens.logprobs,
        ratio=_ratio(tokens.logprobs.detach(), tokens.proximal_logprobs),
        clipped=torch.zeros_like(weight),
        behavior_weight=weight,
    )


def value_loss(*, values: Tensor, old_values: Tensor | None, returns: Tensor, clip: float | None) -> Tensor:
    """Squared error of the value head per token `[...]`, clipped around the old predictions.

        loss = 1/2 max((V - R)^2, (clip(V, V_old - c, V_old + c) - R)^2)

    Plain 1/2 (V - R)^2 when `clip` or `old_values` is None. Source: the PPO code of OpenAI baselines;
    see "The 37 Implementation Details of PPO" (ICLR blog track 2022), detail 9.
    """
    error = (values - returns).square()
    if clip is not None and old_values is not None:
        near = old_values + (values - old_values).clamp(-clip, clip)
        error = torch.maximum(error, (near - returns).square())
    return error / 2


def policy_gradient_uses_proximal(args: AlgorithmArgs) -> bool:
    """Whether the loss reads the proximal log-probabilities once they differ from the current ones."""
    return not (args.pg_variant == "ppo" and args.pg_ratio == "behavior")


def _ratio(logprobs: Tensor, base_logprobs: Tensor) -> Tensor:
    return (logprobs - base_logprobs).clamp(-MAX_EXPONENT, MAX_EXPONENT).exp()
