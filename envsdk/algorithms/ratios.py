"""Ratios of two policies on sampled tokens: of each token, of its reply, of its sequence. Pure.

Shapes: N tokens. Means and sums over replies and sequences are scattered and gathered by id, so their
cost does not depend on how many there are.
"""

from __future__ import annotations

import torch
from torch import Tensor

from envsdk.algorithms.args import RatioLevel

MAX_EXPONENT = 20.0
"""Log-ratios are held to +- this before `exp`, so that no single token overflows float32."""


def log_ratio(logprobs: Tensor, base_logprobs: Tensor) -> Tensor:
    """log(pi / pi_base) of each token `[N]`, held to +-`MAX_EXPONENT` so that no token overflows."""
    return (logprobs - base_logprobs).clamp(-MAX_EXPONENT, MAX_EXPONENT)


def bounded_exp(exponents: Tensor) -> Tensor:
    """exp `[N]`, of exponents held to +-`MAX_EXPONENT`."""
    return exponents.clamp(-MAX_EXPONENT, MAX_EXPONENT).exp()


def sum_by(ids: Tensor, values: Tensor) -> Tensor:
    """For each token the sum of `values` `[N]` over the tokens with its id; ids `[N]` are below N."""
    # N slots are always enough, and asking for the largest id would wait for the accelerator. On CUDA the
    # order of the additions is open unless torch.use_deterministic_algorithms is on.
    return torch.zeros_like(values).index_add(0, ids, values)[ids]


def mean_by(ids: Tensor, values: Tensor) -> Tensor:
    """For each token the mean of `values` `[N]` over the tokens with its id."""
    return sum_by(ids, values) / sum_by(ids, torch.ones_like(values))


def at_level(level: RatioLevel, values: Tensor, *, sequence_ids: Tensor, segment_ids: Tensor) -> Tensor:
    """Per-token log-ratios or differences `[N]`, as `level` sees them; each token gets its group's.

    `token` as they are; `segment` and `geometric` the mean over the reply and over the sequence;
    `sequence` the sum over the sequence.
    """
    if level == "segment":
        return mean_by(segment_ids, values)
    if level == "geometric":
        return mean_by(sequence_ids, values)
    if level == "sequence":
        return sum_by(sequence_ids, values)
    return values
