"""Turn rollouts into a trainer's batch, with one advantage per token. Pure.

    turn rewards -> normalized -> clipped [- KL penalty] -> estimator -> per token
        [-> whitened -> weighted by difficulty and length -> clipped -> weighted for the loss]

`token_advantages` does these for a batch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from envsdk.algorithms.advantage_args import AdvantageUnit
from envsdk.algorithms.advantage_sample import AdvantageSample, TokenAdvantages
from envsdk.algorithms.advantages import clip_range, statistics, whitened
from envsdk.algorithms.args import AlgorithmArgs
from envsdk.algorithms.distillation import distilled_advantages
from envsdk.algorithms.estimator_contract import load_estimator
from envsdk.algorithms.kl import adapted_kl_coef
from envsdk.algorithms.masks import loss_weights, masked
from envsdk.algorithms.rewards import (
    difficulty_weights,
    kl_per_token,
    length_weights,
    mean_kl,
    normalized_turns,
    paid_at_the_end,
)
from envsdk.algorithms.units import in_parts
from envsdk.contracts.failures import TrainerError
from envsdk.contracts.segments import Segment, last_segment
from envsdk.contracts.support import Support
from envsdk.contracts.trainer import TeacherScores, TrainBatch, TrainSequence
from envsdk.contracts.trajectory import Trajectory


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelScores:
    """Scores that models give a batch's segments, where the algorithm asks for them; one array each."""

    logprobs: Sequence[NDArray[np.float32]] | None = None
    """`[num_tokens]` under the trainer's present weights: the proximal policy."""
    reference_logprobs: Sequence[NDArray[np.float32]] | None = None
    """`[num_tokens]`"""
    teacher: Sequence[TeacherScores | None] = ()
    """Those of each segment that a teacher scored; empty without teachers."""
    values: Sequence[NDArray[np.float32]] | None = None
    """`[num_tokens + 1]`: entry t is the value of the tokens before t, the last one that of them all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedBatch:
    """A batch ready to be trained, and the metrics of preparing it."""

    batch: TrainBatch
    metrics: dict[str, float]
    """`advantage/...` and, with a KL penalty, `kl_reward/...`."""
    kl_coef: float
    """Weight of the KL penalty for the next batch."""
    nothing_left: str = ""
    """Why no trajectory is learned from, where that is so: `batch` is empty then, and there is no step."""


def learnable(trajectories: Sequence[Trajectory], unit: AdvantageUnit | None = "episode") -> list[Trajectory]:
    """Trajectories with sampled tokens and an outcome; failed ones are masked out, never scored 0.

    They are in parts where `unit` says so. TrainerError when there is none.
    """
    found = [
        trajectory
        for trajectory in trajectories
        if trajectory.failure is None and trajectory.oldest_version is not None
    ]
    if not found:
        num_failed = sum(trajectory.failure is not None for trajectory in trajectories)
        raise TrainerError(
            f"there is nothing to learn from in a batch of {len(trajectories)} episodes: {num_failed} failed "
            "and in none of the others did the policy write a token; look at the replies in the batch's file"
        )
    return in_parts(found, unit)


def token_ids(trajectories: Sequence[Trajectory], *, with_end: bool = False) -> list[NDArray[np.int32]]:
    """Token ids that models score, `[num_tokens]` each: those of each segment.

    `with_end` appends one token, of any id: `Trainer.values` then also gives the value of all the others.
    """
    ids = [segment.tokens.ids for segment in segments_of(trajectories) if segment.tokens is not None]
    return [np.append(each, each[-1:]) for each in ids] if with_end else ids


def recorded_experts(trajectories: Sequence[Trajectory]) -> list[NDArray[np.int16] | None]:
    """Those of each segment of which `token_ids` gives the ids."""
    tokens = [segment.tokens for segment in segments_of(trajectories)]
    return [each.experts for each in tokens if each is not None]


def supports(trajectories: Sequence[Trajectory]) -> list[Support | None]:
    """Which tokens could be drawn, of each segment; empty where none tells."""
    found = [segment.tokens.support for segment in segments_of(trajectories) if segment.tokens is not None]
    return [] if all(each is None for each in found) else found


def segments_of(trajectories: Sequence[Trajectory]) -> list[Segment]:
    """The segments of all trajectories, in their order."""
    return [segment for trajectory in trajectories for segment in trajectory.segments()]


def prepare_batch(
    args: AlgorithmArgs,
    step: int,
    trajectories: Sequence[Trajectory],
    scores: ModelScores,
    *,
    kl_coef: float | None = None,
) -> PreparedBatch:
    """Advantages for `learnable` trajectories, in their order; `scores` are in the order of `segments_of`.

    Advantages are of a trajectory: the turns of all its segments count in the order of time.
    Trajectories that `max_len_mask` and the other masks leave out are not in the batch.
    `kl_coef` is the present weight of the KL penalty: `init_kl_coef` at the start of a run.
    """
    coef = args.init_kl_coef if kl_coef is None else kl_coef
    segments = [trajectory.segments() for trajectory in trajectories]
    starts = list(accumulate(map(len, segments), initial=0))
    samples, masks = masked(
        args,
        [
            AdvantageSample.of(
                trajectory,
                logprobs=_of_trajectory(scores.logprobs, start, trajectory, parts),
                reference_logprobs=_of_trajectory(scores.reference_logprobs, start, trajectory, parts),
                values=_of_trajectory(scores.values, start, trajectory, parts),
            )
            for trajectory, parts, start in zip(trajectories, segments, starts, strict=False)
        ],
    )
    results = token_advantages(args, samples, kl_coef=coef)
    metrics = _advantage_metrics(samples, results)
    if masks:
        shares = {f"masked_{name}": out_N for name, out_N in masks.items()}
        shares["masked"] = np.array([not sample.learns for sample in samples], bool)
        metrics |= {f"advantage/{name}": float(out_N.mean()) for name, out_N in shares.items()}
    next_coef = coef
    if args.init_kl_coef > 0:
        divergence = mean_kl(samples, args.kl_reward_type)
        metrics |= {"kl_reward/coef": coef, "kl_reward/kl_per_token": divergence}
        if args.target_kl is not None and samples:
            next_coef = adapted_kl_coef(
                coef,
                divergence,
                target=args.target_kl,
                horizon=args.kl_horizon,
                num_trajectories=len(samples),
            )
    sequences = [
        _sequence(trajectories[index], segment, result, scores, starts[index] + place)
        for index, result in enumerate(results)
        if samples[index].learns
        for place, segment in enumerate(segments[index])
        if segment.tokens is not None and segment.tokens.response_mask.any()
    ]
    metrics |= _distillation_metrics(sequences)
    batch = TrainBatch(
        step=step,
        sequences=[_distilled(args, sequence) for sequence in sequences],
        critic_only=args.needs_values and step < args.critic_warmup,
    )
    nothing_left = "" if batch.sequences else _nothing_left(masks, len(trajectories))
    return PreparedBatch(batch=batch, metrics=metrics, kl_coef=next_coef, nothing_left=nothing_left)


def token_advantages(
    args: AlgorithmArgs, samples: Sequence[AdvantageSample], *, kl_coef: float | None = None
) -> list[TokenAdvantages]:
    """Advantages of a batch under `args`, in the order of `samples`.

    `kl_coef` is the present weight of the KL penalty, `init_kl_coef` when absent. ValueError when a sample
    lacks what the estimator needs. Never returns NaN for finite input.
    """
    rewarded = final_rewards(args, samples, args.init_kl_coef if kl_coef is None else kl_coef)
    estimator = load_estimator(args.adv_estimator)
    results = estimator.function(rewarded, args, args.estimator_args)
    if args.whiten_advantages:
        results = whitened(samples, results, over_tags=args.whiten_over == "tag")
    return _weighted_and_clipped(args, samples, results)


def final_rewards(
    args: AlgorithmArgs, samples: Sequence[AdvantageSample], kl_coef: float
) -> list[AdvantageSample]:
    """The samples with normalized, clipped rewards and the KL penalty -kl_coef KL_t in `token_rewards`.

    The penalty is that of Ziegler et al., arXiv:1909.08593.
    """
    shift_N, scale_N = statistics(args, [sum(sample.turn_rewards) for sample in samples], samples)
    rewarded = []
    for sample, shift, scale in zip(samples, shift_N, scale_N, strict=True):
        rewards_K = np.array(sample.turn_rewards, np.float64)
        if args.reward_level != "return":
            rewards_K = normalized_turns(rewards_K, shift, scale)
            if args.reward_level == "trajectory":
                rewards_K = paid_at_the_end(rewards_K)
            rewards_K = rewards_K.clip(*clip_range(args.reward_clip))
        penalty_T = None
        if kl_coef and sample.valid:
            penalty_T = -kl_coef * kl_per_token(sample, args.kl_reward_type)
        rewarded.append(replace(sample, turn_rewards=rewards_K.tolist(), token_rewards=penalty_T))
    return rewarded


def _weighted_and_clipped(
    args: AlgorithmArgs, samples: Sequence[AdvantageSample], results: list[TokenAdvantages]
) -> list[TokenAdvantages]:
    valid = [sample.valid for sample in samples]
    weights_N = difficulty_weights(
        args.difficulty_weight,
        [sample.success for sample in samples],
        [sample.group_id for sample in samples],
        valid=valid,
    ) * length_weights(
        args.length_weight, [int(sample.response_mask.sum()) for sample in samples], valid=valid
    )
    counted_N = np.array([sample.valid and sample.learns for sample in samples], bool)
    last_weights_N = np.where(counted_N, loss_weights(args, samples), 0.0)
    clip = clip_range(args.advantage_clip)
    return [
        replace(
            result,
            advantages=(result.advantages * np.float32(weight)).clip(*clip) * np.float32(last_weight),
        )
        for result, weight, last_weight in zip(results, weights_N, last_weights_N, strict=True)
    ]


def _nothing_left(masks: Mapping[str, NDArray[np.bool_]], num_trajectories: int) -> str:
    keys = {"max_len": "max_len_mask", "difficulty": "difficulty_mask", "error_max_len": "error_max_len_clip"}
    counts = ", ".join(f"{keys[name]} {int(out_N.sum())}" for name, out_N in masks.items())
    return (
        f"masks leave out all {num_trajectories} trajectories of the batch ({counts}): the policy stays as "
        "it is in this step"
    )


def _sequence(
    trajectory: Trajectory, segment: Segment, result: TokenAdvantages, scores: ModelScores, index: int
) -> TrainSequence:
    tokens = segment.tokens
    assert tokens is not None, "not learnable"
    values = _at(scores.values, index)
    return TrainSequence(
        ids=tokens.ids,
        response_mask=tokens.response_mask,
        behavior_logprobs=tokens.behavior_logprobs,
        advantages=segment.take(result.advantages),
        returns=None if result.returns is None else segment.take(result.returns),
        proximal_logprobs=_at(scores.logprobs, index),
        reference_logprobs=_at(scores.reference_logprobs, index),
        old_values=None if values is None else values[:-1],
        experts=tokens.experts,
        trajectory_id=trajectory.trajectory_id,
        support=tokens.support,
        teacher=scores.teacher[index] if scores.teacher else None,
    )


def _distilled(args: AlgorithmArgs, sequence: TrainSequence) -> TrainSequence:
    if (teacher := sequence.teacher) is None:
        return sequence
    as_advantage = args.distill_as == "advantage"
    advantages = distilled_advantages(
        sequence.advantages,
        sequence.response_mask,
        sequence.behavior_logprobs,
        teacher.logprobs,
        coef=teacher.coef if as_advantage else 0.0,
        reward_coef=args.distill_reward_coef,
    )
    return replace(sequence, advantages=advantages, teacher=None if as_advantage else teacher)


def _distillation_metrics(sequences: Sequence[TrainSequence]) -> dict[str, float]:
    """Over the sampled tokens that a teacher scored."""
    found = [
        (each.behavior_logprobs - each.teacher.logprobs)[each.response_mask == 1]
        for each in sequences
        if each.teacher is not None
    ]
    return {"distill/kl_per_token": float(np.concatenate(found).mean())} if found else {}


def _advantage_metrics(
    samples: Sequence[AdvantageSample], results: Sequence[TokenAdvantages]
) -> dict[str, float]:
    """Over the sampled tokens that are learned from."""
    found = [
        result.advantages[sample.response_mask == 1]
        for sample, result in zip(samples, results, strict=True)
        if sample.learns
    ]
    tokens = np.concatenate(found) if found else np.zeros(0, np.float32)
    if not len(tokens):
        return {}
    return {
        "advantage/mean": float(tokens.mean()),
        "advantage/std": float(tokens.std()),
        "advantage/min": float(tokens.min()),
        "advantage/max": float(tokens.max()),
        "advantage/zero_share": float((tokens == 0).mean()),
    }


def _of_trajectory(
    arrays: Sequence[NDArray[np.float32]] | None, start: int, trajectory: Trajectory, parts: Sequence[Segment]
) -> NDArray[np.float32] | None:
    """The scores of a trajectory's tokens, each on its own path, from those of its segments.

    Where there is one for the end, it is that of the segment with the last reply.
    """
    if arrays is None or trajectory.tokens is None or len(parts) == 1:
        return _at(arrays, start)
    num_tokens, last = len(trajectory.tokens), last_segment(parts)
    after_end = arrays[start + parts.index(last)][len(last.tokens or ()) :]
    flat = np.zeros(num_tokens + len(after_end), np.float32)
    for place, segment in enumerate(parts):
        if segment.positions is not None:
            flat[segment.positions] = arrays[start + place][: len(segment.positions)]
    flat[num_tokens:] = after_end
    return flat


def _at(arrays: Sequence[NDArray[np.float32]] | None, index: int) -> NDArray[np.float32] | None:
    return None if arrays is None else arrays[index]
