"""From rollouts to what a trainer consumes. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from envsdk.algorithms.advantages import AdvantageSample, token_advantages
from envsdk.algorithms.args import AlgorithmArgs
from envsdk.training import TrainBatch, TrainSequence
from envsdk.trajectory import Trajectory


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelScores:
    """What models say of a batch's sequences, where the algorithm asks for it; one array each."""

    logprobs: Sequence[NDArray[np.float32]] | None = None
    """Under the trainer's present weights: the proximal policy."""
    reference_logprobs: Sequence[NDArray[np.float32]] | None = None
    values: Sequence[NDArray[np.float32]] | None = None


def learnable(trajectories: Sequence[Trajectory]) -> list[Trajectory]:
    """Trajectories with sampled tokens and an outcome; failed ones are masked out, never scored 0."""
    return [
        trajectory
        for trajectory in trajectories
        if trajectory.failure is None and trajectory.oldest_version is not None
    ]


def train_batch(
    args: AlgorithmArgs, step: int, trajectories: Sequence[Trajectory], scores: ModelScores
) -> TrainBatch:
    """Advantages for `learnable` trajectories, in their order; `scores` are in the same order."""
    samples = [_sample(trajectory, scores, index) for index, trajectory in enumerate(trajectories)]
    advantages = token_advantages(args, samples)
    sequences: list[TrainSequence] = []
    for index, (trajectory, result) in enumerate(zip(trajectories, advantages, strict=True)):
        tokens = trajectory.tokens
        assert tokens is not None, "not learnable"
        sequences.append(
            TrainSequence(
                ids=tokens.ids,
                response_mask=tokens.response_mask,
                behavior_logprobs=tokens.behavior_logprobs,
                advantages=result.advantages,
                returns=result.returns,
                proximal_logprobs=_at(scores.logprobs, index),
                reference_logprobs=_at(scores.reference_logprobs, index),
                old_values=_at(scores.values, index),
            )
        )
    return TrainBatch(step=step, sequences=sequences)


def _sample(trajectory: Trajectory, scores: ModelScores, index: int) -> AdvantageSample:
    tokens = trajectory.tokens
    assert tokens is not None, "not learnable"
    return AdvantageSample(
        group_id=trajectory.group_id,
        response_mask=tokens.response_mask,
        turn_rewards=[turn.reward for turn in trajectory.turns],
        turn_spans=[(turn.response_start, turn.response_end) for turn in trajectory.turns],
        logprobs=_at(scores.logprobs, index),
        reference_logprobs=_at(scores.reference_logprobs, index),
        values=_at(scores.values, index),
    )


def _at(arrays: Sequence[NDArray[np.float32]] | None, index: int) -> NDArray[np.float32] | None:
    return None if arrays is None else arrays[index]
