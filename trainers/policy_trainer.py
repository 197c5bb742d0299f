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
from enum import StrEnum
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel

from envsdk.algorithms.args import AlgorithmArgs
from envsdk.algorithms.loss_settings import uses_proximal
from envsdk.base.settings.validation import validated
from envsdk.contracts.failures import ConfigurationError, TrainerError
from envsdk.contracts.support import Support
from envsdk.contracts.trainer import TrainBatch, Trainer, TrainerConfig
from envsdk.trainers.objective import Objective
from envsdk.trainers.packing import Row, make_row
from envsdk.trainers.step_metrics import StepMetrics
from envsdk.trainers.train_rows import BatchRows, TrainRow, check_sequences
from envsdk.trainers.training_args import TrainingArgs

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

    def _merged(self, tally: StepMetrics) -> StepMetrics:
        """The tally over all ranks."""
        return tally

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
        tally = self._merged(tally)
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
