"""The training step that all trainers of a language-model policy share.

    batch -> rows (sequences that can matter) -> per epoch, per mini-batch:
        forward and backward of all rows -> one optimizer step

Within one `train_step` the proximal policy is the one before the first optimizer step. With a single
step its log-probabilities are the current ones, detached, at no cost; otherwise they are computed first.

With several ranks every rank is called with the same batch and makes the same plan; the subclass
divides the rows of an optimizer step among the ranks and adds up what they found.
"""

from __future__ import annotations

import math
import time
from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import replace
from enum import StrEnum
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel

from envsdk.algorithms.aggregation import sequence_weights, trajectory_numbers
from envsdk.algorithms.args import AlgorithmArgs
from envsdk.algorithms.loss_settings import own_args, uses_proximal
from envsdk.base.settings.validation import validated
from envsdk.contracts.failures import ConfigurationError, TrainerError
from envsdk.contracts.seeds import stable_seed
from envsdk.contracts.support import Support
from envsdk.contracts.trainer import TrainBatch, Trainer, TrainerConfig, TrainSequence
from envsdk.trainers.objective import Objective, TrainRow
from envsdk.trainers.packing import Row, make_row
from envsdk.trainers.step_metrics import StepMetrics
from envsdk.trainers.training_args import TrainingArgs

Found = TypeVar("Found")
Strategy = TypeVar("Strategy", bound=BaseModel)


def validated_settings(
    config: TrainerConfig, strategy: type[Strategy]
) -> tuple[AlgorithmArgs, TrainingArgs, Strategy]:
    """The three sections of a trainer's settings; ConfigurationError names a key that is wrong."""
    return (
        validated(AlgorithmArgs, config.algorithm, "algorithm"),
        validated(TrainingArgs, config.training_args, "training_args"),
        validated(strategy, config.strategy_config, "strategy_config"),
    )


class ScoreKind(StrEnum):
    """The scores that a trainer gives for the scored tokens of a row."""

    LOGPROBS = "logprobs"
    VALUES = "values"


class PolicyTrainer(Trainer):
    """The algorithm of a step. A subclass carries the model: the abstract methods below, each of which all
    ranks call.

    Draws no random number outside the mini-batch order, which is a hash of (seed, step, epoch): a
    resumed run repeats the original bit for bit, where the device's kernels add in a fixed order (CPUs').
    """

    def __init__(self, config: TrainerConfig, algorithm: AlgorithmArgs) -> None:
        self.config = config
        self.algorithm = algorithm
        self.objective = Objective(algorithm)

    @property
    @abstractmethod
    def vocab_size(self) -> int:
        """Token ids are below it."""

    @abstractmethod
    def _accumulate(self, rows: Sequence[TrainRow], tally: StepMetrics) -> None:
        """Add the gradient of `self.objective` over all rows; `tally` gets this rank's metrics."""

    @abstractmethod
    def _optimizer_step(self) -> tuple[float, float]:
        """Clip, step, clear the gradient; returns (gradient norm before clipping, learning rate).

        TrainerError, weights and moments untouched and gradient cleared, when the norm is not finite.
        """

    @abstractmethod
    def _zero_grad(self) -> None:
        """Clear the gradient."""

    @abstractmethod
    def _snapshot(self) -> Callable[[], None]:
        """Copy weights and optimizer; the result puts the copy back."""

    @abstractmethod
    def _score(self, rows: Sequence[Row], kind: ScoreKind) -> list[NDArray[np.float32]]:
        """One number per scored token of each row, in the order of the rows; all of them on every rank."""

    def _value_head_step(self) -> tuple[float, float]:
        """`_optimizer_step` of the value head alone: all other weights and moments stay as they are."""
        raise ConfigurationError(
            f"critic_warmup: {type(self).__name__} cannot train the value head alone; set it to 0"
        )

    def _all_gather(self, found: Found) -> list[Found]:
        """The values of all ranks, in their order, on every rank."""
        return [found]

    def train_step(self, batch: TrainBatch) -> dict[str, float]:
        """One batch: `ppo_epochs` passes in mini-batches of `ppo_mini_batch_size` trajectories."""
        started = time.perf_counter()
        with_values = self.config.with_value_head
        check_sequences(
            batch.sequences,
            self.algorithm,
            vocab_size=self.vocab_size,
            sequence_length=self.config.sequence_length,
            with_values=with_values,
        )
        rows = BatchRows(batch, self.algorithm, seed=self.config.seed, with_values=with_values)
        if len(rows.plan) > 1 and uses_proximal(self.algorithm):
            self._add_proximal_logprobs(rows)
        # A step that fails half-way must leave the weights from before the first one.
        restore = self._snapshot() if len(rows.plan) > 1 else None

        tallies: list[StepMetrics] = []
        try:
            for members in rows.plan:
                tally = self._learn(rows.step_rows(members), critic_only=batch.critic_only)
                tally.leave_out(rows.num_left_out_tokens(members))
                tallies.append(tally)
        except TrainerError as error:
            if restore is not None:
                restore()
            raise TrainerError(
                f"step {batch.step}: {error}. The weights are those from before the step; look at the "
                "learning rate, the advantages and the log-probabilities of this batch"
            ) from error

        metrics = StepMetrics.merge(tallies).metrics() | rows.metrics()
        metrics["actor/step_time_s"] = time.perf_counter() - started
        return metrics

    def _learn(self, rows: Sequence[TrainRow], *, critic_only: bool) -> StepMetrics:
        """One optimizer step."""
        tally = StepMetrics()
        self._accumulate(rows, tally)
        tally = StepMetrics.merge(self._all_gather(tally))
        if not math.isfinite(tally.loss):
            self._zero_grad()
            raise TrainerError(f"the loss is {tally.loss}")
        tally.add_step(*(self._value_head_step() if critic_only else self._optimizer_step()))
        return tally

    def logprobs(
        self,
        sequences: Sequence[NDArray[np.int32]],
        experts: Sequence[NDArray[np.int16] | None] = (),
        supports: Sequence[Support | None] = (),
    ) -> list[NDArray[np.float32]]:
        return self._score_all_tokens(sequences, ScoreKind.LOGPROBS, experts, supports)

    def values(self, sequences: Sequence[NDArray[np.int32]]) -> list[NDArray[np.float32]]:
        """Aligned with `logprobs`: entry t is the value of the tokens before t, the state in which token t
        was chosen; the first is 0. ConfigurationError without a value head.
        """
        return self._score_all_tokens(sequences, ScoreKind.VALUES)

    def _add_proximal_logprobs(self, rows: BatchRows) -> None:
        missing = rows.without_proximal()
        scored = self._score(
            [row for index in missing if (row := rows.rows[index]) is not None], ScoreKind.LOGPROBS
        )
        for index, logprobs in zip(missing, scored, strict=True):
            rows.add_proximal(index, logprobs)

    def _of_all_ranks(self, scores: dict[int, NDArray[np.float32]]) -> list[NDArray[np.float32]]:
        """The scores of all rows in their order, of which each rank has some, by the row's number."""
        whole = {number: found for part in self._all_gather(scores) for number, found in part.items()}
        return [whole[number] for number in range(len(whole))]

    def _score_all_tokens(
        self,
        sequences: Sequence[NDArray[np.int32]],
        kind: ScoreKind,
        experts: Sequence[NDArray[np.int16] | None] = (),
        supports: Sequence[Support | None] = (),
    ) -> list[NDArray[np.float32]]:
        absent = [None] * len(sequences)
        rows = [
            make_row(ids, np.ones(len(ids), np.int8), routed, support)
            for ids, routed, support in zip(sequences, experts or absent, supports or absent, strict=True)
        ]
        results = [np.zeros(len(ids), np.float32) for ids in sequences]
        filled = [index for index, row in enumerate(rows) if row is not None]
        scores = self._score([row for row in rows if row is not None], kind)
        for index, values in zip(filled, scores, strict=True):
            results[index][1:] = values
        return results


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
        self._learned = [
            TrainRow(sequence=sequence, row=row)
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
            for index, each in enumerate(self._learned)
            if each is not None and each.sequence.proximal_logprobs is None
        ]

    def add_proximal(self, index: int, logprobs: NDArray[np.float32]) -> None:
        """`logprobs` `[num_scored]` of sequence `index`."""
        learned = self._learned[index]
        assert learned is not None, "only asked for sequences that learn"
        proximal = np.zeros(len(learned.sequence.ids), np.float32)
        proximal[learned.row.scored] = logprobs
        sequence = replace(learned.sequence, proximal_logprobs=proximal)
        self._learned[index] = replace(learned, sequence=sequence)

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
            replace(learned, weight=float(weight))
            for index, weight in zip(members, weights, strict=True)
            if (learned := self._learned[index]) is not None
        ]

    def num_left_out_tokens(self, members: Sequence[int]) -> int:
        """Sampled tokens of the sequences among `members` that `step_rows` leaves out."""
        return sum(
            len(row.scored)
            for index in members
            if (row := self.rows[index]) is not None and self._learned[index] is None
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
                len(filled) - sum(row is not None for row in self._learned)
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
