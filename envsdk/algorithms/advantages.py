"""From rewards to one advantage per token. Pure NumPy.

    turn rewards [- KL penalty] -> estimator (grpo | reinforce | gae) -> per token [-> whitened]

`token_advantages` does all of it for a batch; the estimators below it can be used alone.
Shapes: N trajectories, K turns, T tokens of one sequence, S steps of one episode (tokens or turns).
An invalid trajectory (its episode failed) has no outcome: it enters no mean and gets advantage 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from envsdk.algorithms.args import AlgorithmArgs
from envsdk.algorithms.kl import kl_estimate

STD_EPSILON = 1e-6
"""Added to standard deviations before dividing by them."""

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class AdvantageSample:
    """What the advantages of one trajectory are computed from."""

    group_id: int
    response_mask: NDArray[np.int8]
    """`[T]`, 1 where the policy sampled the token."""
    turn_rewards: Sequence[float]
    """`[K]`"""
    turn_spans: Sequence[tuple[int, int]]
    """`[K]`: first token of each reply and one past its last; equal when the reply is empty."""
    valid: bool = True
    """False when the episode failed."""
    logprobs: NDArray[np.float32] | None = None
    """`[T]` under the policy; needed for a KL penalty (`init_kl_coef`)."""
    reference_logprobs: NDArray[np.float32] | None = None
    """`[T]` under the frozen reference; needed for a KL penalty."""
    values: NDArray[np.float32] | None = None
    """`[T]`, as `Trainer.values` gives them: entry t is the value before token t. Needed for `gae`."""
    last_value: float = 0.0
    """Value after the last token, for an episode that was cut off rather than ended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenAdvantages:
    """The result for one trajectory."""

    advantages: NDArray[np.float32]
    """`[T]`, 0 where the mask is 0."""
    returns: NDArray[np.float32] | None
    """`[T]`, targets of the value head (`gae`), 0 where the mask is 0; otherwise None."""


def token_advantages(args: AlgorithmArgs, samples: Sequence[AdvantageSample]) -> list[TokenAdvantages]:
    """Advantages of a batch under `args`, in the order of `samples`.

    ValueError when a sample lacks what the estimator needs. Never returns NaN for finite input.
    """
    penalties = [_kl_penalty(args, sample) for sample in samples]
    if args.adv_estimator == "gae":
        results = [_gae_sample(args, *pair) for pair in zip(samples, penalties, strict=True)]
    elif args.adv_estimator == "reinforce":
        turns = [_turn_rewards(*pair) for pair in zip(samples, penalties, strict=True)]
        valid = [sample.valid for sample in samples]
        per_turn = reinforce_advantages(
            turns, gamma=args.gamma, baseline=args.reinforce_baseline == "batch", valid=valid
        )
        results = [
            TokenAdvantages(advantages=spread_turns(sample, values), returns=None)
            for sample, values in zip(samples, per_turn, strict=True)
        ]
    else:
        totals = [sum(s.turn_rewards) + float(p.sum()) for s, p in zip(samples, penalties, strict=True)]
        per_trajectory = group_advantages(
            totals,
            [sample.group_id for sample in samples],
            valid=[sample.valid for sample in samples],
            normalize_std=args.grpo_normalize_std,
        )
        results = [
            TokenAdvantages(advantages=(sample.response_mask * value).astype(np.float32), returns=None)
            for sample, value in zip(samples, per_trajectory, strict=True)
        ]
    if not args.whiten_advantages:
        return results
    masks = [sample.response_mask * np.int8(sample.valid) for sample in samples]
    whitened = whiten([result.advantages for result in results], masks)
    return [
        TokenAdvantages(advantages=advantages, returns=result.returns)
        for advantages, result in zip(whitened, results, strict=True)
    ]


def group_advantages(
    returns: ArrayLike,
    group_ids: ArrayLike,
    *,
    valid: ArrayLike | None = None,
    normalize_std: bool = True,
) -> Floats:
    """GRPO: each return against its group's mean. Arguments and result `[N]`.

        A_i = (R_i - mean_g) / (std_g + 1e-6)        without the denominator unless `normalize_std`

    Mean and sample standard deviation (n - 1) are over the valid members of i's group. Exactly 0 for
    invalid members, for a group of one and for a group whose valid returns are all equal.
    Source: DeepSeekMath, arXiv:2402.03300, sec. 4.1.2; without the denominator Dr. GRPO, arXiv:2503.20783.
    """
    returns_N = np.asarray(returns, np.float64)
    groups_N = np.asarray(group_ids)
    valid_N = np.ones(len(returns_N), bool) if valid is None else np.asarray(valid, bool)
    advantages_N = np.zeros_like(returns_N)
    for group in np.unique(groups_N):
        members = (groups_N == group) & valid_N
        scores = returns_N[members]
        if len(scores) < 2 or scores.min() == scores.max():
            continue
        centered = scores - scores.mean()
        advantages_N[members] = centered / (scores.std(ddof=1) + STD_EPSILON) if normalize_std else centered
    return advantages_N


def reinforce_advantages(
    turn_rewards: Sequence[ArrayLike],
    *,
    gamma: float = 1.0,
    baseline: bool = True,
    valid: Sequence[bool] | None = None,
) -> list[Floats]:
    """REINFORCE: the discounted return from each turn on, `[K_i]` per trajectory.

        G_k = r_k + gamma G_{k+1}        A_k = G_k - mean of G over all turns of valid trajectories

    Without `baseline` nothing is subtracted. Source: Williams (1992), "Simple statistical
    gradient-following algorithms for connectionist reinforcement learning".
    """
    alive = [True] * len(turn_rewards) if valid is None else list(valid)
    returns = [discounted_returns(rewards, gamma) for rewards in turn_rewards]
    counted = [values for values, is_valid in zip(returns, alive, strict=True) if is_valid and len(values)]
    mean = float(np.concatenate(counted).mean()) if baseline and counted else 0.0
    return [
        values - mean if is_valid else np.zeros_like(values)
        for values, is_valid in zip(returns, alive, strict=True)
    ]


def discounted_returns(rewards: ArrayLike, gamma: float) -> Floats:
    """G_s = r_s + gamma G_{s+1}, `[S]`."""
    returns_S = np.array(rewards, np.float64)
    for step in range(len(returns_S) - 2, -1, -1):
        returns_S[step] += gamma * returns_S[step + 1]
    return returns_S


def gae(
    rewards: ArrayLike, values: ArrayLike, *, gamma: float, lambd: float, last_value: float = 0.0
) -> tuple[Floats, Floats]:
    """Generalized advantage estimation over one episode: (advantages `[S]`, returns `[S]`).

        delta_s = r_s + gamma V_{s+1} - V_s        A_s = delta_s + gamma lambda A_{s+1}        R_s = A_s + V_s

    `values[s]` is the value of the state in which step s was taken; `last_value` follows the last step
    and is 0 for an episode that ended. Source: arXiv:1506.02438, eq. 16.
    """
    rewards_S = np.asarray(rewards, np.float64)
    values_S = np.asarray(values, np.float64)
    advantages_S = np.zeros_like(rewards_S)
    following_advantage, following_value = 0.0, last_value
    for step in range(len(rewards_S) - 1, -1, -1):
        delta = rewards_S[step] + gamma * following_value - values_S[step]
        following_advantage = delta + gamma * lambd * following_advantage
        following_value = values_S[step]
        advantages_S[step] = following_advantage
    return advantages_S, advantages_S + values_S


def whiten(
    advantages: Sequence[NDArray[np.float32]], masks: Sequence[NDArray[np.int8]]
) -> list[NDArray[np.float32]]:
    """Mean 0 and variance 1 over the masked tokens of the whole batch; `[T_i]` in, `[T_i]` out, 0 elsewhere.

        A' = (A - mean) / (std + 1e-6)        population standard deviation

    All zeros when fewer than two tokens are masked or all their advantages are equal.
    Source: "The 37 Implementation Details of PPO" (ICLR blog track 2022), detail 7.
    """
    if not masks:
        return []
    chosen = np.concatenate([a[m == 1] for a, m in zip(advantages, masks, strict=True)]).astype(np.float64)
    if len(chosen) < 2 or chosen.min() == chosen.max():
        return [np.zeros(len(values), np.float32) for values in advantages]
    mean, scale = chosen.mean(), chosen.std() + STD_EPSILON
    return [
        np.where(mask == 1, (values - mean) / scale, 0.0).astype(np.float32)
        for values, mask in zip(advantages, masks, strict=True)
    ]


def spread_turns(sample: AdvantageSample, per_turn: ArrayLike) -> NDArray[np.float32]:
    """Give every sampled token of turn k the number `per_turn[k]`: `[K]` to `[T]`, 0 elsewhere."""
    tokens_T = np.zeros(len(sample.response_mask), np.float32)
    for (start, end), value in zip(sample.turn_spans, np.asarray(per_turn), strict=True):
        tokens_T[start:end] = value
    return tokens_T * sample.response_mask


def _kl_penalty(args: AlgorithmArgs, sample: AdvantageSample) -> Floats:
    """-`init_kl_coef` x KL estimate per sampled token `[T]`; Ziegler et al., arXiv:1909.08593, eq. 2."""
    if args.init_kl_coef == 0 or not sample.valid:
        return np.zeros(len(sample.response_mask))
    if sample.logprobs is None or sample.reference_logprobs is None:
        raise ValueError("init_kl_coef needs the log-probabilities of the policy and of the reference")
    policy_T, reference_T = (np.asarray(a, np.float64) for a in (sample.logprobs, sample.reference_logprobs))
    divergence_T = kl_estimate(policy_T, reference_T, args.kl_reward_type)
    return np.where(sample.response_mask == 1, -args.init_kl_coef * divergence_T, 0.0)


def _turn_rewards(sample: AdvantageSample, penalties_T: Floats) -> Floats:
    """Rewards per turn `[K]`, less the KL penalties of the turn's tokens."""
    penalties = [penalties_T[start:end].sum() for start, end in sample.turn_spans]
    return np.asarray(sample.turn_rewards, np.float64) + np.asarray(penalties, np.float64)


def _gae_sample(args: AlgorithmArgs, sample: AdvantageSample, penalties_T: Floats) -> TokenAdvantages:
    num_tokens = len(sample.response_mask)
    advantages_T, returns_T = np.zeros(num_tokens, np.float32), np.zeros(num_tokens, np.float32)
    result = TokenAdvantages(advantages=advantages_T, returns=returns_T)
    tokens = np.flatnonzero(sample.response_mask)
    if not sample.valid or not len(tokens):
        return result
    if sample.values is None:
        raise ValueError("gae needs the value head's predictions")
    settings = {"gamma": args.gamma, "lambd": args.lambd, "last_value": sample.last_value}
    if args.gae_level == "token":
        rewards_T = penalties_T.copy()
        for reward, (_, end) in zip(sample.turn_rewards, sample.turn_spans, strict=True):
            # On the reply's last token; a reply without tokens falls to the token sampled before it.
            rewards_T[tokens[max(0, int(np.searchsorted(tokens, end)) - 1)]] += reward
        advantages_T[tokens], returns_T[tokens] = gae(rewards_T[tokens], sample.values[tokens], **settings)
        return result
    spoken = [turn for turn, (start, end) in enumerate(sample.turn_spans) if end > start]
    rewards_K = _turn_rewards(sample, penalties_T)
    step_of_turn = np.maximum(0, np.searchsorted(spoken, np.arange(len(rewards_K)), side="right") - 1)
    rewards_S = np.bincount(step_of_turn, weights=rewards_K, minlength=len(spoken))
    starts = [sample.turn_spans[turn][0] for turn in spoken]
    advantages_S, returns_S = gae(rewards_S, sample.values[starts], **settings)
    for turn, advantage, target in zip(spoken, advantages_S, returns_S, strict=True):
        start, end = sample.turn_spans[turn]
        advantages_T[start:end], returns_T[start:end] = advantage, target
    return result
