"""Rewards before advantages, and weights after them. Pure NumPy.

    rewards -> normalized -> clipped -> less the KL penalty -> (estimator) -> weighted

Shapes: N trajectories, K turns, T tokens of one sequence. What an invalid trajectory (its episode failed)
would have earned enters no statistic.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from envsdk.algorithms.advantage_args import DifficultyWeight, KLEstimator
from envsdk.algorithms.advantage_sample import AdvantageSample, Floats
from envsdk.algorithms.estimators import STD_EPSILON, members_of
from envsdk.algorithms.kl import kl_estimate

Labels = Sequence[Hashable]


def reward_statistics(
    rewards: ArrayLike,
    *,
    mean_over: Labels | None,
    std_over: Labels | None,
    valid: ArrayLike | None = None,
) -> tuple[Floats, Floats]:
    """(shift `[N]`, scale `[N]`) that normalize each trajectory's reward: R' = (R - shift) / scale.

        shift_i = mean of R over the valid trajectories with i's label in `mean_over`
        scale_i = std of R over the valid trajectories with i's label in `std_over`, + 1e-6

    The two groupings are independent: REINFORCE++ with baseline centers by group and scales by batch
    (arXiv:2501.03262). None leaves that part out (0, or 1). Sample standard deviation (n - 1);
    where it is not defined or 0 the scale is 1, since there is no measure for a difference.
    """
    rewards_N = np.asarray(rewards, np.float64)
    valid_N = np.ones(len(rewards_N), bool) if valid is None else np.asarray(valid, bool)
    shift_N, scale_N = np.zeros_like(rewards_N), np.ones_like(rewards_N)
    if mean_over is not None:
        for members in members_of(mean_over, valid_N):
            shift_N[members] = rewards_N[members].mean()
    if std_over is not None:
        for members in members_of(std_over, valid_N):
            scores = rewards_N[members]
            if scores.min() != scores.max():
                scale_N[members] = scores.std(ddof=1) + STD_EPSILON
    return shift_N, scale_N


def normalized_turns(turn_rewards: ArrayLike, shift: float, scale: float) -> Floats:
    """Turn rewards `[K]` whose sum is (sum before - shift) / scale: all scaled, the last one shifted too.

    The shift is about the outcome, so it is where an outcome is paid; every return of the trajectory that
    reaches its end is moved by the same amount when nothing is discounted.
    """
    rewards_K = np.array(turn_rewards, np.float64)
    if len(rewards_K):
        rewards_K[-1] -= shift
    return rewards_K / scale


def paid_at_the_end(turn_rewards: ArrayLike) -> Floats:
    """Turn rewards `[K]` with the same sum, all of it at the last turn."""
    rewards_K = np.asarray(turn_rewards, np.float64)
    paid_K = np.zeros_like(rewards_K)
    paid_K[-1:] = rewards_K.sum()
    return paid_K


def kl_per_token(sample: AdvantageSample, kind: KLEstimator) -> Floats:
    """Estimate of KL(policy || reference) at each sampled token `[T]`, nats; 0 elsewhere.

    ValueError when the sample lacks log-probabilities.
    """
    if sample.logprobs is None or sample.reference_logprobs is None:
        raise ValueError("init_kl_coef needs the log-probabilities of the policy and of the reference")
    policy_T, reference_T = (np.asarray(a, np.float64) for a in (sample.logprobs, sample.reference_logprobs))
    return np.where(sample.response_mask == 1, kl_estimate(policy_T, reference_T, kind), 0.0)


def mean_kl(samples: Sequence[AdvantageSample], kind: KLEstimator) -> float:
    """Mean of that estimate over the sampled tokens of valid trajectories, nats per token."""
    counted = [sample for sample in samples if sample.valid]
    num_tokens = sum(int(sample.response_mask.sum()) for sample in counted)
    return float(sum(kl_per_token(sample, kind).sum() for sample in counted)) / max(1, num_tokens)


def difficulty_weights(
    kind: DifficultyWeight, successes: ArrayLike, group_ids: Labels, *, valid: ArrayLike | None = None
) -> Floats:
    """Weight `[N]` of each trajectory by p, the share of its group's valid members that succeeded.

        learnability   4 p (1 - p)    most for tasks solved half of the time: the variance of success, as
                                      in sampling for learnability, arXiv:2502.12272
        hard           1 - p          most for tasks hardly ever solved; the direction of the reweighting
                                      of GRPO-LEAD, arXiv:2504.09696, in its simplest form

    1 for `none` and for invalid members.
    """
    succeeded_N = np.asarray(successes, np.float64)
    valid_N = np.ones(len(succeeded_N), bool) if valid is None else np.asarray(valid, bool)
    weights_N = np.ones_like(succeeded_N)
    if kind == "none":
        return weights_N
    for members in members_of(group_ids, valid_N):
        rate = succeeded_N[members].mean()
        weights_N[members] = 4 * rate * (1 - rate) if kind == "learnability" else 1 - rate
    return weights_N


def length_weights(power: float, lengths: ArrayLike, *, valid: ArrayLike | None = None) -> Floats:
    """Weight `[N]` of each trajectory by its number of sampled tokens: w_i = (mean length / L_i)^power.

    The mean is over valid trajectories with tokens. With power 1 and a loss that sums the tokens of a
    sequence every trajectory pulls the same, as under the 1 / L_i of GRPO (arXiv:2402.03300, eq. 3);
    powers between 0 and 1 lie between the two. 1 for invalid and for empty trajectories.
    """
    lengths_N = np.asarray(lengths, np.float64)
    counted: NDArray[np.bool_] = lengths_N > 0
    if valid is not None:
        counted = counted & np.asarray(valid, bool)
    weights_N = np.ones_like(lengths_N)
    if power and counted.any():
        weights_N[counted] = (lengths_N[counted].mean() / lengths_N[counted]) ** power
    return weights_N
