"""Which trajectories of a batch are left out of the loss, and weights of those that are not. Pure NumPy.

    trajectory -> asked by every mask that is on -> learned from, or left out

A trajectory that a mask leaves out is an outcome all the same: its reward counts in the statistics of its
group. It has no advantage, is in no mean over tokens and in no denominator of the loss. The names and
formulas are those of ROLL's RLVR pipeline (August 2026; `get_sample_level_mask`, `compute_sample_weights`).

Shapes: N trajectories. R is a trajectory's reward as the environment gave it, before normalization.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from envsdk.algorithms.advantage_sample import AdvantageSample, Floats
from envsdk.algorithms.estimators import members_of
from envsdk.contracts.trajectory import FinishReason

if TYPE_CHECKING:
    from envsdk.algorithms.advantage_args import AdvantageKeys

DIFFICULTY = "difficulty"
"""Name among a turn's metrics of the difficulty, 0 to 1, that the data gives a task."""


def left_out(args: AdvantageKeys, samples: Sequence[AdvantageSample]) -> dict[str, NDArray[np.bool_]]:
    """For each mask that is on, which samples it leaves out, `[N]`; no mask leaves out an invalid one.

    max_len         a reply of it ended at its length limit
    difficulty      mean of R over its group <= low or >= high; a group of one is kept
    error_max_len   R is neither 1, nor 0 with fewer sampled tokens than `error_max_len_threshold`
    """
    valid_N = np.array([sample.valid for sample in samples], bool)
    rewards_N = np.array([sum(sample.turn_rewards) for sample in samples], np.float64)
    found: dict[str, NDArray[np.bool_]] = {}
    if args.max_len_mask:
        found["max_len"] = np.array([was_cut(sample) for sample in samples], bool)
    if args.difficulty_mask:
        is_outside_N = np.zeros(len(samples), bool)
        for members in members_of([sample.group_id for sample in samples], valid_N):
            mean = rewards_N[members].mean()
            inside = args.difficulty_low_threshold < mean < args.difficulty_high_threshold
            is_outside_N[members] = len(members) > 1 and not inside
        found["difficulty"] = is_outside_N
    if args.error_max_len_clip:
        limit = np.inf if args.error_max_len_threshold is None else args.error_max_len_threshold
        short_N = np.array([sample.response_mask.sum() for sample in samples], np.int64) < limit
        found["error_max_len"] = ~((rewards_N == 1) | ((rewards_N == 0) & short_N))
    return {name: out_N & valid_N for name, out_N in found.items()}


def masked(
    args: AdvantageKeys, samples: Sequence[AdvantageSample]
) -> tuple[list[AdvantageSample], dict[str, NDArray[np.bool_]]]:
    """The samples with `learns` False where any mask leaves them out, and what `left_out` says."""
    masks = left_out(args, samples)
    is_masked_N = np.zeros(len(samples), bool)
    for out_N in masks.values():
        is_masked_N |= out_N
    return [replace(each, learns=not out) for each, out in zip(samples, is_masked_N, strict=True)], masks


def was_cut(sample: AdvantageSample) -> bool:
    """Whether a reply ended at its length limit rather than at a stop token."""
    return any(turn.finish_reason is FinishReason.LENGTH for turn in sample.turns)


def loss_weights(args: AdvantageKeys, samples: Sequence[AdvantageSample]) -> Floats:
    """Weight `[N]` of each sample in the policy loss, 1 on average over those that are learned from.

        difficulty_loss_weight    0.5 + 1.5 clip(d, 0, 1), d the task's difficulty in the data; 1 without one
        length_loss_weight        1.5 - (L - min L) / (max L - min L), L sampled tokens

    The product, divided by its mean. Minimum, maximum and mean are over the samples of the batch that are
    learned from; ROLL takes them over a micro-batch, where one sequence alone always weighs 1.
    """
    weights_N = np.ones(len(samples))
    counted_N = np.array([sample.valid and sample.learns for sample in samples], bool)
    if not counted_N.any() or not (args.difficulty_loss_weight or args.length_loss_weight):
        return weights_N
    if args.difficulty_loss_weight:
        given = [_difficulty(sample) for sample in samples]
        weights_N *= [1.0 if d is None else 0.5 + 1.5 * min(1.0, max(0.0, d)) for d in given]
    if args.length_loss_weight:
        lengths_N = np.array([sample.response_mask.sum() for sample in samples], np.float64)
        shortest, longest = lengths_N[counted_N].min(), lengths_N[counted_N].max()
        if longest > shortest:
            weights_N *= 1.5 - (lengths_N.clip(shortest, longest) - shortest) / (longest - shortest)
    weights_N[~counted_N] = 1.0
    weights_N[counted_N] /= weights_N[counted_N].mean()
    return weights_N


def _difficulty(sample: AdvantageSample) -> float | None:
    return next((turn.metrics[DIFFICULTY] for turn in sample.turns if DIFFICULTY in turn.metrics), None)
