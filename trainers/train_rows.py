"""Turn a batch into the rows of each optimizer step. Pure, and the same on every rank."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from envsdk.algorithms.aggregation import sequence_weights, trajectory_numbers
from envsdk.algorithms.args import AlgorithmArgs
from envsdk.algorithms.loss_settings import own_args
from envsdk.contracts.failures import TrainerError
from envsdk.contracts.seeds import stable_seed
from envsdk.contracts.trainer import TeacherScores, TrainBatch, TrainSequence
from envsdk.trainers.packing import Row, make_row


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenFields:
    """What the loss needs of each scored token besides the model's outputs; arrays are `[num_scored]`."""

    advantages: NDArray[np.float32]
    behavior: NDArray[np.float32]
    """Log-probabilities under the policy that sampled the tokens."""
    proximal: NDArray[np.float32] | None = None
    """Log-probabilities under the policy before the first optimizer step; None: the current ones."""
    reference: NDArray[np.float32] | None = None
    """Log-probabilities under the reference policy, where the loss has a KL term."""
    returns: NDArray[np.float32] | None = None
    """Targets of the value head, where there is one."""
    old_values: NDArray[np.float32] | None = None
    """Values before the step; None: the current ones."""
    teacher: TeacherScores | None = None
    """Its scores of these tokens, where the loss distills."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainRow:
    """One sequence that takes part in an optimizer step; arrays are `[num_scored]`."""

    row: Row
    weight: float
    """Weight of each of its tokens, by `loss_agg_mode` over all sequences of the optimizer step."""
    fields: TokenFields


class BatchRows:
    """The sequences of one batch as rows, and which of them each optimizer step takes.

    Sequences whose every advantage is 0 (a group without variance) are left out of the forward pass
    when no other term of the loss needs them: their gradient is exactly 0. They still count in the
    aggregation's denominators.
    """

    def __init__(self, batch: TrainBatch, args: AlgorithmArgs, *, seed: int, with_values: bool) -> None:
        self._args = args
        replays = args.train_infer_correction.routing_replay
        self.rows = [
            make_row(each.ids, each.response_mask, each.experts if replays else None, each.support)
            for each in batch.sequences
        ]
        all_needed = (
            with_values
            or args.kl_loss_coef > 0
            or args.entropy_loss_coef != 0
            or own_args(args).moves_without_advantage
        )
        self._fields = [
            _fields(sequence, row, args, with_values)
            if row is not None
            and (all_needed or sequence.teacher is not None or np.any(sequence.advantages[row.scored]))
            else None
            for sequence, row in zip(batch.sequences, self.rows, strict=True)
        ]
        """None: the sequence takes part in no forward pass."""
        self._sequences = batch.sequences
        self.plan = optimizer_steps(batch, args, seed)
        """Which sequences each optimizer step takes, in order."""

    def without_proximal(self) -> list[int]:
        """Sequences that learn and whose proximal log-probabilities are not known yet."""
        return [
            index
            for index, fields in enumerate(self._fields)
            if fields is not None and fields.proximal is None
        ]

    def add_proximal(self, index: int, logprobs: NDArray[np.float32]) -> None:
        """`logprobs` `[num_scored]` of sequence `index`."""
        fields = self._fields[index]
        assert fields is not None, "only asked for sequences that learn"
        self._fields[index] = replace(fields, proximal=logprobs)

    def step_rows(self, members: Sequence[int]) -> list[TrainRow]:
        """The rows of an optimizer step over the sequences `members`."""
        lengths = [0 if (row := self.rows[index]) is None else len(row.scored) for index in members]
        weights = sequence_weights(
            self._args.loss_agg_mode,
            lengths,
            trajectories=[self._sequences[index].trajectory_id for index in members],
            length=self._args.loss_agg_length,
        )
        return [
            TrainRow(row=row, weight=float(weight), fields=fields)
            for index, weight in zip(members, weights, strict=True)
            if (row := self.rows[index]) is not None and (fields := self._fields[index]) is not None
        ]

    def num_left_out_tokens(self, members: Sequence[int]) -> int:
        """Sampled tokens of the sequences among `members` that `step_rows` leaves out."""
        return sum(
            len(row.scored)
            for index in members
            if (row := self.rows[index]) is not None and self._fields[index] is None
        )

    def metrics(self) -> dict[str, float]:
        """Numbers of tokens and sequences, and the entropy of all sampled tokens."""
        filled = [row for row in self.rows if row is not None]
        surprisals = [
            -sequence.behavior_logprobs[row.scored]
            for sequence, row in zip(self._sequences, self.rows, strict=True)
            if row is not None
        ]
        entropy = {"actor/behavior_entropy": float(np.concatenate(surprisals).mean())} if filled else {}
        return entropy | {
            "actor/num_tokens": float(sum(len(row.scored) for row in filled)),
            "actor/num_sequences": float(len(filled)),
            "actor/num_sequences_without_gradient": float(
                len(filled) - sum(fields is not None for fields in self._fields)
            ),
        }


def optimizer_steps(batch: TrainBatch, args: AlgorithmArgs, seed: int) -> list[list[int]]:
    """Sequences of each optimizer step: `ppo_epochs` passes in mini-batches; a pass's last may be smaller.

    `ppo_mini_batch_size` counts trajectories, whose segments stay together. The order is a hash of
    (seed, step, epoch), so a resumed run repeats it.
    """
    segments: dict[int, list[int]] = {}
    for index, number in enumerate(trajectory_numbers([each.trajectory_id for each in batch.sequences])):
        segments.setdefault(int(number), []).append(index)
    count = len(segments)
    size = args.ppo_mini_batch_size or count
    steps: list[list[int]] = []
    for epoch in range(args.ppo_epochs):
        generator = np.random.default_rng(stable_seed(seed, "minibatch", batch.step, epoch))
        order = generator.permutation(count) if size < count else np.arange(count)
        steps.extend(
            [index for number in order[start : start + size].tolist() for index in segments[number]]
            for start in range(0, count, size)
        )
    return steps


def check_sequences(
    sequences: Sequence[TrainSequence],
    args: AlgorithmArgs,
    *,
    vocab_size: int,
    sequence_length: int,
    with_values: bool,
) -> None:
    """TrainerError for input that would fail silently or far from its cause."""
    for index, sequence in enumerate(sequences):
        length = len(sequence.ids)
        if length > sequence_length:
            raise TrainerError(
                f"sequence {index} has {length} tokens, more than sequence_length: {sequence_length}"
            )
        if length and not 0 <= int(sequence.ids.min()) <= int(sequence.ids.max()) < vocab_size:
            raise TrainerError(f"sequence {index} has a token id outside the vocabulary [0, {vocab_size})")
        required: dict[str, NDArray[Any] | None] = {
            "response_mask": sequence.response_mask,
            "behavior_logprobs": sequence.behavior_logprobs,
            "advantages": sequence.advantages,
        }
        if args.kl_loss_coef > 0:
            required["reference_logprobs"] = sequence.reference_logprobs
        if with_values:
            required["returns"] = sequence.returns
        if args.train_infer_correction.routing_replay:
            if sequence.experts is None:
                raise TrainerError(
                    f"sequence {index} of trajectory {sequence.trajectory_id} has no recorded experts, which "
                    "train_infer_correction.routing_replay needs: its engine or its agent told of none; play "
                    "with those that do, or set routing_replay: false"
                )
            required["experts"] = sequence.experts
        for name, values in required.items():
            if values is None:
                raise TrainerError(f"sequence {index} has no {name}, which the loss needs")
            if len(values) != length:
                raise TrainerError(f"sequence {index} has {length} tokens but {len(values)} {name}")


def _fields(sequence: TrainSequence, row: Row, args: AlgorithmArgs, with_values: bool) -> TokenFields:
    def scored(values: NDArray[np.float32] | None) -> NDArray[np.float32] | None:
        return None if values is None else values[row.scored]

    return TokenFields(
        advantages=sequence.advantages[row.scored],
        behavior=sequence.behavior_logprobs[row.scored],
        proximal=scored(sequence.proximal_logprobs),
        reference=scored(sequence.reference_logprobs) if args.kl_loss_coef > 0 else None,
        returns=scored(sequence.returns) if with_values else None,
        old_values=scored(sequence.old_values) if with_values else None,
        teacher=None if sequence.teacher is None else sequence.teacher.take(row.scored),
    )
