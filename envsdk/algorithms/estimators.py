"""Formulas of advantages over plain arrays. Pure NumPy.

Shapes: N trajectories, K turns, T tokens of one sequence, S steps of one episode.
An invalid trajectory (its episode failed) has no outcome: it enters no mean and gets advantage 0.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from envsdk.algorithms.advantage_sample import Floats

STD_EPSILON = 1e-6
"""Added to standard deviations before dividing by them."""


def members_of(group_ids: Sequence[Hashable], valid_N: NDArray[np.bool_]) -> Iterator[NDArray[np.int64]]:
    """The valid members of each group that has any, as indices; groups in the order they first appear."""
    members: dict[Hashable, list[int]] = {}
    for index in np.flatnonzero(valid_N).tolist():
        members.setdefault(group_ids[index], []).append(index)
    for indices in members.values():
        yield np.array(indices)


def group_advantages(
    returns: ArrayLike,
    group_ids: Sequence[Hashable],
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
    advantages_N = np.zeros_like(returns_N)
    for members in members_of(group_ids, _all_or(valid, len(returns_N))):
        scores = returns_N[members]
        if len(scores) < 2 or scores.min() == scores.max():
            continue
        centered = scores - scores.mean()
        advantages_N[members] = centered / (scores.std(ddof=1) + STD_EPSILON) if normalize_std else centered
    return advantages_N


def rloo_advantages(
    returns: ArrayLike, group_ids: Sequence[Hashable], *, valid: ArrayLike | None = None
) -> Floats:
    """RLOO: each return against the mean of the *others* in its group. Arguments and result `[N]`.

        A_i = R_i - 1 / (n - 1) sum_{j != i} R_j = n / (n - 1) (R_i - mean_g)

    n valid members; exactly 0 for invalid members, for a group of one and for equal returns.
    Source: arXiv:2402.14740; Kool et al. (2019).
    """
    returns_N = np.asarray(returns, np.float64)
    advantages_N = np.zeros_like(returns_N)
    for members in members_of(group_ids, _all_or(valid, len(returns_N))):
        scores = returns_N[members]
        if len(scores) >= 2 and scores.min() != scores.max():
            advantages_N[members] = scores - (scores.sum() - scores) / (len(scores) - 1)
    return advantages_N


def reinforce_advantages(
    step_rewards: Sequence[ArrayLike],
    *,
    gamma: float = 1.0,
    baseline: bool = True,
    valid: Sequence[bool] | None = None,
) -> list[Floats]:
    """REINFORCE: the discounted return from each step on, `[S_i]` per trajectory.

        G_s = r_s + gamma G_{s+1}        A_s = G_s - mean of G over all steps of valid trajectories

    Without `baseline` nothing is subtracted. Source: Williams (1992), "Simple statistical
    gradient-following algorithms for connectionist reinforcement learning".
    """
    alive = [True] * len(step_rewards) if valid is None else list(valid)
    returns = [discounted_returns(rewards, gamma) for rewards in step_rewards]
    counted = [values for values, is_valid in zip(returns, alive, strict=True) if is_valid and len(values)]
    mean = float(np.concatenate(counted).mean()) if baseline and counted else 0.0
    return [
        values - mean if is_valid else np.zeros_like(values)
        for values, is_valid in zip(returns, alive, strict=True)
    ]


def hgpo_advantages(
    step_returns: Sequence[ArrayLike],
    state_hashes: Sequence[Sequence[Hashable]],
    group_ids: Sequence[Hashable],
    *,
    valid: Sequence[bool],
    history_length: int = 0,
    alpha: float = 1.0,
    normalize_std: bool = True,
) -> list[Floats]:
    """HGPO: the return from each turn among those with the same state and k states before it, `[K_i]` each.

    Without history it is GiGPO's step level, arXiv:2505.10978. A state that is met twice counts twice.

        A_k = (G - mean) / (std + 1e-6)        A = sum_k w_k A_k / sum_k w_k        w_k = (k + 1)^alpha

    Over k from 0 to `history_length`; a turn has no A_k where fewer than k turns were before it, and both
    sums leave out what is 0: groups of one, and equal returns. Source: arXiv:2602.22817, eq. 3 to 7.
    """
    lengths = [len(hashes) for hashes in state_hashes]
    flat = np.concatenate([np.zeros(0), *(np.asarray(each, np.float64) for each in step_returns)])
    alive = np.repeat(np.asarray(valid, bool), lengths)
    turn_n = np.concatenate([np.zeros(0, np.int64), *map(np.arange, lengths)])
    total_n, weights_n = np.zeros_like(flat), np.zeros_like(flat)
    for depth in range(history_length + 1):
        contexts = [
            (group, tuple(hashes[max(0, turn - depth) : turn + 1]))
            for group, hashes in zip(group_ids, state_hashes, strict=True)
            for turn in range(len(hashes))
        ]
        level_n = group_advantages(
            flat, contexts, valid=alive & (turn_n >= depth), normalize_std=normalize_std
        )
        weight_n = (depth + 1) ** alpha * (level_n != 0)
        total_n += weight_n * level_n
        weights_n += weight_n
    per_turn = np.split(total_n / np.where(weights_n > 0, weights_n, 1), np.cumsum(lengths, dtype=np.int64))
    return per_turn[: len(lengths)]


def discounted_returns(rewards: ArrayLike, gamma: float) -> Floats:
    """G_s = r_s + gamma G_{s+1}, `[S]`."""
    returns_S = np.array(rewards, np.float64)
    # Sums over the next 1, 2, 4, ... steps, each from two of the one before: no loop over steps.
    span = 1
    while span < len(returns_S):
        returns_S[:-span] += gamma**span * returns_S[span:]
        span *= 2
    return returns_S


def gae(
    rewards: ArrayLike, values: ArrayLike, *, gamma: float, lambd: float, last_value: float = 0.0
) -> tuple[Floats, Floats]:
    """Generalized advantage estimation over one episode: (advantages `[S]`, returns `[S]`).

        delta_s = r_s + gamma V_{s+1} - V_s        A_s = delta_s + gamma lambda A_{s+1}        R_s = A_s + V_s

    `values[s]` is the value of the state in which step s was taken; `last_value` follows the last step
    and is 0 for an episode that ended. One that was cut off by a limit had a future, whose value belongs
    in there (arXiv:1712.00378). Source: arXiv:1506.02438, eq. 16.
    """
    values_S = np.asarray(values, np.float64)
    following_values_S = np.append(values_S, last_value)[1:]
    deltas_S = np.asarray(rewards, np.float64) + gamma * following_values_S - values_S
    advantages_S = discounted_returns(deltas_S, gamma * lambd)
    return advantages_S, advantages_S + values_S


def whiten(
    advantages: Sequence[NDArray[np.float32]], masks: Sequence[NDArray[np.int8]]
) -> list[NDArray[np.float32]]:
    """Mean 0 and variance 1 over the masked tokens of the batch; `[T_i]` in, `[T_i]` out, 0 elsewhere.

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


def _all_or(valid: ArrayLike | None, count: int) -> NDArray[np.bool_]:
    return np.ones(count, bool) if valid is None else np.asarray(valid, bool)
