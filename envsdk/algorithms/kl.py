"""Estimators of KL(policy || reference) from one sampled token, and the controller of its weight.

Source: J. Schulman, "Approximating KL Divergence" (2020), http://joschu.net/blog/kl-approx.html.
With d = log pi(x) - log pi_ref(x) and x ~ pi:

    k1 = d                     unbiased, high variance, may be negative
    k2 = d^2 / 2               biased, low variance; its gradient is that of the true divergence
    k3 = exp(-d) - 1 + d       unbiased, low variance, never negative

Works on NumPy arrays and torch tensors alike and imports neither torch nor anything heavy.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from envsdk.algorithms.advantage_args import KLEstimator

if TYPE_CHECKING:
    import torch

    Array = TypeVar("Array", NDArray[Any], torch.Tensor)
else:
    Array = TypeVar("Array")

MAX_EXPONENT = 20.0
"""Log-ratios are held to +- this before `exp`, so that no single token overflows float32."""


def kl_estimate(logprobs: Array, reference_logprobs: Array, kind: KLEstimator) -> Array:
    """Per-token estimate `[...]` of KL(policy || reference); arguments `[...]` in nats.

    `k1` must not be minimized as a loss: its gradient is the score function, zero on average. Below
    d = -`MAX_EXPONENT` `k3` is constant, so that such a token has no gradient instead of one without end.
    """
    difference: Array = logprobs - reference_logprobs
    if kind == "k1":
        return difference
    if kind == "k2":
        half_square: Array = difference * difference / 2
        return half_square
    if kind == "k3":
        # In both terms: in the exponent alone it would leave the other one, which points away.
        held: Any = difference.clip(min=-MAX_EXPONENT)
        inverse_ratio: Any = np.exp(-held) if isinstance(held, np.ndarray) else (-held).exp()
        estimate: Array = inverse_ratio - 1 + held
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
