"""Estimators of KL(policy || reference) from one sampled token, and the controller of its weight.

Source: J. Schulman, "Approximating KL Divergence" (2020), http://joschu.net/blog/kl-approx.html.
With d = log pi(x) - log pi_ref(x) and x ~ pi:

    k1 = d                     unbiased, high variance, may be negative
    k2 = d^2 / 2               biased, low variance; its gradient is that of the true divergence
    k3 = exp(-d) - 1 + d       unbiased, low variance, never negative

The gradient of k3 is (1 - w) grad log pi(x) with w = exp(-d) = pi_ref(x) / pi(x), an importance weight. It
is truncated at `K3_MAX_WEIGHT`, like other such weights: below d = -log K3_MAX_WEIGHT k3 continues as its
tangent. A token far below the reference is pulled back as hard as one at the bound, neither without limit
nor, as where the estimate itself is clamped, not at all. There k3 is below the unbiased estimate.

Works on NumPy arrays and on torch tensors, and imports neither torch nor anything heavy.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from envsdk.algorithms.advantage_args import KLEstimator

if TYPE_CHECKING:
    import torch

    Array = TypeVar("Array", NDArray[Any], torch.Tensor)
else:
    Array = TypeVar("Array")

K3_MAX_WEIGHT = 20.0
"""Above 13.6, where k3 is 10 and verl, ROLL and OpenRLHF clamp it: below that all agree."""


def kl_estimate(logprobs: Array, reference_logprobs: Array, kind: KLEstimator) -> Array:
    """Per-token estimate `[...]` of KL(policy || reference); arguments `[...]` in nats.

    `k1` must not be minimized as a loss: its gradient is the score function, zero on average. The derivative
    of `k3` by `logprobs` is between 1 - `K3_MAX_WEIGHT` and 1.
    """
    difference: Array = logprobs - reference_logprobs
    if kind == "k1":
        return difference
    if kind == "k2":
        half_square: Array = difference * difference / 2
        return half_square
    if kind == "k3":
        held: Any = difference.clip(min=-math.log(K3_MAX_WEIGHT))
        weight_less_1: Any = np.expm1(-held) if isinstance(held, np.ndarray) else (-held).expm1()
        tangent = (K3_MAX_WEIGHT - 1) * (held - difference)
        estimate: Array = weight_less_1 + held + tangent
        return estimate
    raise ValueError(f"unknown KL estimator {kind!r}; known are k1, k2, k3")


def adapted_kl_coef(
    coef: float, mean_kl: float, *, target: float, horizon: int, num_trajectories: int
) -> float:
    """The weight of the KL penalty for the next batch, after one whose divergence was `mean_kl`.

        e = clip(mean_kl / target - 1, -0.2, 0.2)        coef' = coef (1 + e min(1, n / horizon))

    n trajectories in the batch; `mean_kl` and `target` in the same unit (here nats per sampled token).
    Source: Ziegler et al., arXiv:1909.08593, sec. 2.2, with K_beta = n / horizon as in their code in place
    of 0.1; the cap at 1 keeps a batch larger than the horizon from overshooting.
    """
    error = min(0.2, max(-0.2, mean_kl / target - 1))
    return coef * (1 + error * min(1.0, num_trajectories / horizon))
