"""Supervised learning of replies (behavior cloning) with the torch trainer's packing and optimizer."""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from envsdk.trainers.packing import MicroBatch, make_row
from envsdk.trainers.step_metrics import StepMetrics
from envsdk.trainers.torch_trainer import TorchTrainer


class SftTrainer(TorchTrainer):
    """A torch trainer that also takes supervised steps.

    trainer = SftTrainer.create(TrainerConfig(model=folder, sequence_length=1024, seed=0))
    metrics = trainer.sft_step([(ids, mask)])
    """

    def sft_step(self, sequences: Sequence[tuple[NDArray[np.int32], NDArray[np.int8]]]) -> dict[str, float]:
        """One optimizer step on the mean cross entropy of the tokens with mask 1.

        `sequences` are (ids `[num_tokens]`, mask `[num_tokens]`). Returns `sft/...`: `loss, accuracy,
        grad_norm, lr, num_tokens, step_time_s`.
        """
        started = time.perf_counter()
        rows = [row for ids, mask in sequences if (row := make_row(ids, mask)) is not None]
        num_tokens = sum(len(row.scored) for row in rows)

        def imitate(micro: MicroBatch, tally: StepMetrics) -> Tensor:
            scores, _ = self.model.scores(micro)
            tally.add("accuracy", (scores.logprobs_N.detach() >= scores.top_logprobs_N).float())
            weight = 0.0 if micro.is_filler else 1.0 / num_tokens
            weights_N = self._tensor(np.full(len(micro.targets_N), weight, np.float32))
            return -(weights_N * scores.logprobs_N).sum()

        tally = StepMetrics()
        self._accumulate_with(imitate, rows, tally)
        tally = StepMetrics.merge(self._all_gather(tally))
        norm, learning_rate = self._optimizer_step()
        return {
            "sft/loss": tally.loss,
            "sft/accuracy": tally.mean("accuracy"),
            "sft/grad_norm": norm,
            "sft/lr": learning_rate,
            "sft/num_tokens": float(num_tokens),
            "sft/step_time_s": time.perf_counter() - started,
        }
