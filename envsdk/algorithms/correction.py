"""Train/inference correction: one factor per token in front of any policy loss. Pure.

Samples come from the behavior policy: an older version of the weights, in the arithmetic of an engine. The
factor is a function of proximal and behavior alone, has no gradient, and is computed before the loss; a
token it sets to 0 stays in the denominator of the aggregation. Shapes: N sampled tokens.

Source: importance weights and their truncation, IMPALA, arXiv:1802.01561 (V-trace); levels and filters as
in ROLL's section of this name. Its `segment` is the geometric mean over a reply too.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from envsdk.algorithms.args import CorrectionFilter, ISWeightArgs, RatioLevel, TrainInferCorrection
from envsdk.algorithms.losses import PolicyTokens
from envsdk.algorithms.ratios import at_level, bounded_exp, log_ratio


@dataclass(frozen=True, slots=True, kw_only=True)
class Correction:
    """What the correction does to each token; tensors are `[N]` and without gradient."""

    factor: Tensor
    """Times the policy loss: the weight, or 0 where a filter says so."""
    weight: Tensor | None
    """Importance weight after its bounds; None when there is none."""
    shares: Mapping[str, Tensor]
    """1 where something was done to a token, by the name of its metric."""


def correction(tokens: PolicyTokens, args: TrainInferCorrection, *, weighted: bool) -> Correction:
    """Weight, if `weighted`, and filters of `args`."""
    ratios = _Gap(tokens)
    factor = torch.ones_like(ratios.log_ratios)
    weight = None
    shares: dict[str, Tensor] = {}
    if weighted:
        weight, beyond = _bounded(ratios.ratio(args.is_weight.weight_type), args.is_weight)
        factor = weight
        masks = args.is_weight.beyond_bounds == "mask"
        shares["is_weight_masked" if masks else "is_weight_truncated"] = beyond
    stays = torch.ones_like(factor)
    for index, rule in enumerate(args.filters):
        if rule.enabled:
            passes = _passes(ratios, rule)
            shares[f"filter_{index}_{rule.agg_type}_masked"] = 1 - passes
            stays = stays * passes
    if args.active_filters:
        shares["filters_masked"] = 1 - stays
    return Correction(factor=factor * stays, weight=weight, shares=shares)


class _Gap:
    """Proximal against behavior, at any level."""

    def __init__(self, tokens: PolicyTokens) -> None:
        self._tokens = tokens
        proximal, behavior = tokens.proximal_logprobs.detach(), tokens.behavior_logprobs.detach()
        self.log_ratios = log_ratio(proximal, behavior)
        self._differences = proximal.exp() - behavior.exp()

    def ratio(self, level: RatioLevel) -> Tensor:
        return bounded_exp(self._at(level, self.log_ratios))

    def difference(self, level: RatioLevel) -> Tensor:
        return self._at(level, self._differences)

    def _at(self, level: RatioLevel, values: Tensor) -> Tensor:
        ids, segments = self._tokens.sequence_ids, self._tokens.segment_ids
        return at_level(level, values, sequence_ids=ids, segment_ids=segments)


def _bounded(ratio: Tensor, args: ISWeightArgs) -> tuple[Tensor, Tensor]:
    """The weight within its bounds, and 1 where it was beyond."""
    low = 0.0 if args.lower_bound is None else args.lower_bound
    inside = ratio.clamp(min=low, max=args.upper_bound)
    beyond = inside != ratio
    if args.beyond_bounds == "mask":
        inside = torch.where(beyond, 0.0, ratio)
    return inside, beyond.to(ratio.dtype)


def _passes(ratios: _Gap, rule: CorrectionFilter) -> Tensor:
    passes = torch.ones_like(ratios.log_ratios, dtype=torch.bool)
    if rule.ratio_enabled:
        ratio = ratios.ratio(rule.agg_type)
        passes &= (ratio >= rule.ratio_low) & (ratio <= rule.ratio_high)
    if rule.diff_enabled:
        difference = ratios.difference(rule.agg_type)
        passes &= (difference >= rule.diff_low) & (difference <= rule.diff_high)
    return passes.to(ratios.log_ratios.dtype)
