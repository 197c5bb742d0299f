"""On-policy distillation: a teacher T scores the tokens that the policy pi sampled.

Minimized is KL(pi || T) = sum_v pi(v) (log pi(v) - log T(v)) at each place; what a token leads to counts not.

    advantage      A_t = c_R A^R_t + c (log T(x_t) - log pi_b(x_t))      x_t drawn from pi_b, the sampler
    loss           c (log pi(x_t) - log T(x_t))^2 / 2                    with KL's gradient where pi = pi_b
    loss, top k    c KL over the teacher's k likeliest tokens, and all others as one

Sources: the single-step part of MiniLLM, arXiv:2306.08543, sec. 2.2; GKD, arXiv:2306.13649; "On-Policy
Distillation", Thinking Machines Lab (2025), whose discount is 0, too. T is not truncated where pi is: log T
of the support is the same whatever is drawn.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from torch import Tensor

_LEAST_REST = 1e-6
"""Probability of all other tokens below which rounding decides it."""


def distilled_advantages(
    advantages_T: NDArray[np.float32],
    response_mask: NDArray[np.int8],
    policy_T: NDArray[np.float32],
    teacher_T: NDArray[np.float32],
    *,
    coef: float,
    reward_coef: float,
) -> NDArray[np.float32]:
    """The advantages of rewards, and the teacher's beside them, from log-probabilities of the tokens."""
    gained = np.where(response_mask == 1, teacher_T - policy_T, 0)
    return (reward_coef * advantages_T + coef * gained).astype(np.float32)


def coarse_reverse_kl(policy_NK: Tensor, teacher_NK: Tensor) -> Tensor:
    """`[N]`: KL(pi || T) over K tokens and all others as one, from the log-probabilities of the K.

    Never negative, at most that over the vocabulary, which it is when K is all of it; more tokens, more of it
    (data processing inequality).
    """
    inside_N = (policy_NK.exp() * (policy_NK - teacher_NK)).sum(-1)
    rest_N, of_teacher_N = (
        (1 - each.exp().sum(-1)).clamp(min=_LEAST_REST) for each in (policy_NK, teacher_NK)
    )
    return inside_N + rest_N * (rest_N.log() - of_teacher_N.log())
