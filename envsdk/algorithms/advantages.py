"""Estimators that `adv_estimator` names: from rewards to one advantage per token. Pure NumPy.

The formulas are in `estimators` and `rewards`, to be used alone. An estimator of one's own is a function
such as `grpo` below; see `advantage_estimator`.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import replace
from typing import ClassVar

import numpy as np
from numpy.typing import ArrayLike

from envsdk.algorithms.advantage_args import RewardGrouping
from envsdk.algorithms.advantage_sample import AdvantageSample, Floats, TokenAdvantages, steps_of
from envsdk.algorithms.args import AlgorithmArgs
from envsdk.algorithms.estimator_contract import EstimatorArgs, advantage_estimator
from envsdk.algorithms.estimators import (
    discounted_returns,
    gae,
    group_advantages,
    hgpo_advantages,
    members_of,
    reinforce_advantages,
    rloo_advantages,
    whiten,
)
from envsdk.algorithms.rewards import reward_statistics


class ComparedArgs(EstimatorArgs):
    """`rloo` takes no settings."""

    compares_groups: ClassVar[bool] = True
    reads_discount_level: ClassVar[bool] = False


class GRPOArgs(ComparedArgs):
    """`grpo`."""

    baseline_shift: float = 0.0
    """Added to the group's mean: below 0, average replies are imitated too, as in AsymRE."""


class GiGPOArgs(ComparedArgs):
    """`gigpo` takes no settings."""

    needs_state_hashes: ClassVar[bool] = True


class GAEArgs(EstimatorArgs):
    """`gae` takes no settings."""

    needs_values: ClassVar[bool] = True
    reads_discount_level: ClassVar[bool] = False


class ReturnsArgs(EstimatorArgs):
    """`reinforce`, `reinforce_plus_plus` take no settings."""


@advantage_estimator(GRPOArgs)
def grpo(samples: Sequence[AdvantageSample], args: AlgorithmArgs, own: GRPOArgs) -> list[TokenAdvantages]:
    """The trajectory's reward among its group's, on each of its tokens; see `group_advantages`."""
    return compared(samples, args, baseline_shift=own.baseline_shift)


def compared(
    samples: Sequence[AdvantageSample], args: AlgorithmArgs, *, baseline_shift: float = 0.0
) -> list[TokenAdvantages]:
    """`group_advantages` of the trajectories' rewards, on each of their tokens."""
    per_trajectory = group_advantages(
        [sample.total_reward for sample in samples],
        [sample.group_id for sample in samples],
        valid=[sample.valid for sample in samples],
        normalize_std=args.grpo_normalize_std,
    )
    per_trajectory = per_trajectory - baseline_shift * np.array([sample.valid for sample in samples])
    return [_constant(*pair) for pair in zip(samples, per_trajectory, strict=True)]


@advantage_estimator(ComparedArgs)
def rloo(samples: Sequence[AdvantageSample], args: AlgorithmArgs, own: ComparedArgs) -> list[TokenAdvantages]:
    """The trajectory's reward against the mean of the others in its group; see `rloo_advantages`."""
    per_trajectory = rloo_advantages(
        [sample.total_reward for sample in samples],
        [sample.group_id for sample in samples],
        valid=[sample.valid for sample in samples],
    )
    return [_constant(*pair) for pair in zip(samples, per_trajectory, strict=True)]


@advantage_estimator(ReturnsArgs)
def reinforce(
    samples: Sequence[AdvantageSample], args: AlgorithmArgs, own: ReturnsArgs
) -> list[TokenAdvantages]:
    """Discounted return from each step on, less the batch's mean; see `reinforce_advantages`."""
    steps = [steps_of(sample, args.discount_level or "turn") for sample in samples]
    rewards, gamma = [each.rewards_S for each in steps], args.gamma
    if args.reward_level == "return":
        # A return is its step's last reward: it holds the later ones already.
        rewards, gamma = _normalized_returns(samples, args, rewards), 0.0
    per_step = reinforce_advantages(
        rewards,
        gamma=gamma,
        baseline=args.reinforce_baseline == "batch",
        valid=[sample.valid for sample in samples],
    )
    return [
        TokenAdvantages(advantages=each.spread(values)) for each, values in zip(steps, per_step, strict=True)
    ]


@advantage_estimator(ReturnsArgs)
def reinforce_plus_plus(
    samples: Sequence[AdvantageSample], args: AlgorithmArgs, own: ReturnsArgs
) -> list[TokenAdvantages]:
    """Discounted returns, the KL penalty token by token, whitened over the batch.

        A_t = sum_{u >= t} gamma^(u - t) r_u        A'_t = (A_t - mean) / (std + 1e-6) over all sampled tokens

    Source: arXiv:2501.03262, eq. 8 and 10 (gamma 1 there).
    """
    level = args.discount_level or "token"
    returns = []
    for sample in samples:
        steps = steps_of(sample, level)
        returns.append(
            TokenAdvantages(advantages=steps.spread(discounted_returns(steps.rewards_S, args.gamma)))
        )
    return whitened(samples, returns)


@advantage_estimator(GiGPOArgs)
def gigpo(samples: Sequence[AdvantageSample], args: AlgorithmArgs, own: GiGPOArgs) -> list[TokenAdvantages]:
    """A = A^E + `gigpo_step_weight` A^S: the episode among its group, the action among equal states.

    Source: arXiv:2505.10978. Without a state met twice this is `grpo`.
    """
    return beside_episodes(samples, args, turn_credit(samples, args, "gigpo"), args.gigpo_step_weight)


def turn_credit(
    samples: Sequence[AdvantageSample],
    args: AlgorithmArgs,
    estimator: str,
    *,
    history_length: int = 0,
    alpha: float = 1.0,
) -> list[Floats]:
    """`hgpo_advantages` of the samples' turns."""
    return hgpo_advantages(
        [discounted_returns(steps_of(sample, "turn").rewards_S, args.gamma) for sample in samples],
        state_hashes_of(samples, estimator),
        [sample.group_id for sample in samples],
        valid=[sample.valid for sample in samples],
        normalize_std=args.grpo_normalize_std,
        history_length=history_length,
        alpha=alpha,
    )


def beside_episodes(
    samples: Sequence[AdvantageSample], args: AlgorithmArgs, per_turn: Sequence[Floats], weight: float
) -> list[TokenAdvantages]:
    """Advantages of turns, times `weight`, added to those of the episodes."""
    return [
        TokenAdvantages(
            advantages=episode.advantages + np.float32(weight) * steps_of(sample, "turn").spread(values)
        )
        for sample, episode, values in zip(samples, compared(samples, args), per_turn, strict=True)
    ]


def state_hashes_of(samples: Sequence[AdvantageSample], estimator: str) -> list[Sequence[Hashable]]:
    """The hashes of the states of all turns; ValueError where an episode has none."""
    hashes: list[Sequence[Hashable]] = []
    for sample in samples:
        if sample.state_hashes is None:
            raise ValueError(f"{estimator} needs the hash of the state that each turn was played in")
        hashes.append(sample.state_hashes)
    return hashes


@advantage_estimator(GAEArgs)
def gae_estimator(
    samples: Sequence[AdvantageSample], args: AlgorithmArgs, own: GAEArgs
) -> list[TokenAdvantages]:
    """Generalized advantage estimation with the value head's predictions; see `gae`."""
    return [_gae_sample(sample, args) for sample in samples]


def _gae_sample(sample: AdvantageSample, args: AlgorithmArgs) -> TokenAdvantages:
    steps = steps_of(sample, "token" if args.gae_level == "token" else "reply")
    if not sample.valid or not len(steps.tokens_n):
        zeros_T = np.zeros(steps.num_tokens, np.float32)
        return TokenAdvantages(advantages=zeros_T, returns=zeros_T)
    if sample.values is None:
        raise ValueError("gae needs the value head's predictions")
    advantages_S, returns_S = gae(
        steps.rewards_S,
        sample.values[steps.first_tokens_S],
        gamma=args.gamma,
        lambd=args.lambd,
        last_value=sample.last_value,
    )
    return TokenAdvantages(advantages=steps.spread(advantages_S), returns=steps.spread(returns_S))


def _constant(sample: AdvantageSample, value: float) -> TokenAdvantages:
    return TokenAdvantages(advantages=(sample.response_mask * value).astype(np.float32))


def _normalized_returns(
    samples: Sequence[AdvantageSample], args: AlgorithmArgs, rewards: Sequence[Floats]
) -> list[Floats]:
    """The discounted return of each step `[S_i]`, normalized among steps and clipped."""
    returns = [discounted_returns(each, args.gamma) for each in rewards]
    owners = [sample for sample, each in zip(samples, returns, strict=True) for _ in each]
    flat = np.concatenate([*returns, np.zeros(0)])
    shift, scale = statistics(args, flat, owners)
    clipped = ((flat - shift) / scale).clip(*clip_range(args.reward_clip))
    return np.split(clipped, np.cumsum([len(each) for each in returns], dtype=np.int64))[: len(returns)]


def statistics(
    args: AlgorithmArgs, rewards: ArrayLike, owners: Sequence[AdvantageSample]
) -> tuple[Floats, Floats]:
    """Shift and scale of each reward, by the groups, tags and failures of the samples that earned them."""
    return reward_statistics(
        rewards,
        mean_over=_labels(args.reward_normalize_mean, owners),
        std_over=_labels(args.reward_normalize_std, owners),
        valid=[sample.valid for sample in owners],
    )


def clip_range(clip: float | None) -> tuple[float, float]:
    return (-np.inf, np.inf) if clip is None else (-clip, clip)


def _labels(grouping: RewardGrouping, samples: Sequence[AdvantageSample]) -> list[Hashable] | None:
    if grouping == "none":
        return None
    if grouping == "group":
        return [sample.group_id for sample in samples]
    return [sample.tag if grouping == "tag" else "" for sample in samples]


def whitened(
    samples: Sequence[AdvantageSample], results: list[TokenAdvantages], *, over_tags: bool = False
) -> list[TokenAdvantages]:
    masks = [sample.response_mask * np.int8(sample.valid and sample.learns) for sample in samples]
    found = list(results)
    tags = [sample.tag if over_tags else "" for sample in samples]
    for members in members_of(tags, np.ones(len(tags), bool)):
        whitened = whiten([results[i].advantages for i in members], [masks[i] for i in members])
        for index, advantages_T in zip(members, whitened, strict=True):
            found[index] = replace(results[index], advantages=advantages_T)
    return found
