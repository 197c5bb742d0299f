"""Estimators of KL(policy || reference) from one sampled token.

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

    `k1` must not be minimized as a loss: its gradient is the score function, zero on average.
    """
    difference: Array = logprobs - reference_logprobs
    if kind == "k1":
        return difference
    if kind == "k2":
        half_square: Array = difference * difference / 2
        return half_square
    if kind == "k3":
        inverse: Any = (-difference).clip(-MAX_EXPONENT, MAX_EXPONENT)
        inverse_ratio: Any = np.exp(inverse) if isinstance(inverse, np.ndarray) else inverse.exp()
        estimate: Array = inverse_ratio - 1 + difference
        return estimate
    raise ValueError(f"unknown KL estimator {kind!r}; known are k1, k2, k3")
