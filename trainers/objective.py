"""The loss of a micro-batch, from the model's outputs for its scored tokens.

One implementation for every trainer; a trainer only has to produce `TokenOutputs`.
Shapes: N scored tokens of complete sequences, one sequence after the other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from envsdk.algorithms.args import AlgorithmArgs
from envsdk.algorithms.correction import correction
from envsdk.algorithms.distillation import coarse_reverse_kl
from envsdk.algorithms.kl import kl_estimate
from envsdk.algorithms.loss_settings import own_args, weighs
from envsdk.algorithms.losses import PolicyTokens, load_policy_loss, value_loss
from envsdk.algorithms.ratios import log_ratio
from envsdk.contracts.trainer import TeacherScores, TrainSequence
from envsdk.trainers.packing import Row
from envsdk.trainers.step_metrics import StepMetrics


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenOutputs:
    """The model's outputs for scored tokens, with gradient; float32 `[N]`."""

    logprobs_N: Tensor
    """Log-probabilities of the tokens themselves, at `args.logprob_temperature`."""
    entropy_N: Tensor
    """Entropies of the distributions they come from; with gradient only if `Objective.entropy_gradient`."""
    values_N: Tensor | None = None
    """Value head's predictions, where there is one."""
    top_NK: Tensor | None = None
    """Log-probabilities of the teacher's likeliest tokens, where `teacher_tokens` gives some."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainRow:
    """One sequence that takes part in an optimizer step."""

    sequence: TrainSequence
    row: Row
    """Which of its tokens are scored."""
    weight: float = 0.0
    """Weight of each of its tokens, by `loss_agg_mode` over all sequences of the optimizer step."""


class Objective:
    """Policy loss, entropy bonus, KL and value loss of one micro-batch.

    The losses of all micro-batches of an optimizer step, over all ranks, add up to the step's loss: the
    weights of the rows are those of the optimizer step.
    """

    def __init__(self, args: AlgorithmArgs) -> None:
        self.args = args
        own = own_args(args)
        self._policy_loss = load_policy_loss(args)
        self._weighted = weighs(args, own)
        self._base = own.ratio or "proximal"

    @property
    def entropy_gradient(self) -> bool:
        """Whether the entropy is part of the loss."""
        return self.args.entropy_loss_coef != 0

    def __call__(self, rows: Sequence[TrainRow], outputs: TokenOutputs, tally: StepMetrics) -> Tensor:
        """The loss, a scalar; `tally` gets its terms, but not the loss itself."""
        args, logprobs_N = self.args, outputs.logprobs_N
        joined, sequences = _JoinedRows(rows, logprobs_N.device), [each.sequence for each in rows]
        weights_N = joined.repeated([row.weight for row in rows])
        behavior_N = joined.arrays([each.behavior_logprobs for each in sequences])
        proximal_N = joined.arrays_or([each.proximal_logprobs for each in sequences], logprobs_N.detach())
        tokens = PolicyTokens(
            logprobs=logprobs_N,
            proximal_logprobs=proximal_N,
            behavior_logprobs=behavior_N,
            advantages=joined.arrays([each.advantages for each in sequences]),
            sequence_ids=joined.sequence_ids(),
            segment_ids=joined.segment_ids(),
        )
        terms = {"pg_loss": (weights_N * self._corrected_policy_loss(tokens, tally)).sum()}
        if self.entropy_gradient:
            terms["entropy_loss"] = -args.entropy_loss_coef * (weights_N * outputs.entropy_N).sum()
        if args.kl_loss_coef > 0:
            reference_N = joined.arrays([each.reference_logprobs for each in sequences])
            kl_N = kl_estimate(logprobs_N, reference_N, args.kl_loss_type)
            terms["kl_loss"] = args.kl_loss_coef * (weights_N * kl_N).sum()
            tally.add("kl", kl_N.detach())
        if taught := _teachers(rows):
            coef_N = joined.repeated(
                [-1.0 if each.teacher is None else each.teacher.coef for each in sequences]
            )
            kl_M = _divergence(taught, outputs, coef_N >= 0)
            terms["distill_loss"] = ((coef_N * weights_N)[coef_N >= 0] * kl_M).sum()
            tally.add("distill_kl", kl_M.detach())
        if outputs.values_N is not None:
            returns_N, values_N = joined.arrays([each.returns for each in sequences]), outputs.values_N
            old_values_N = joined.arrays_or([each.old_values for each in sequences], values_N.detach())
            critic_N = value_loss(
                values=values_N, old_values=old_values_N, returns=returns_N, clip=args.value_clip
            )
            terms["value_loss"] = args.value_loss_coef * (weights_N * critic_N).sum()
            tally.add("critic_loss", critic_N.detach())
            tally.add("critic_value", values_N.detach())
            tally.add("critic_return", returns_N)
        for name, term in terms.items():
            tally.add_term(name, term.detach())
        gap_N = (proximal_N - behavior_N).abs()
        tally.add("entropy", outputs.entropy_N.detach())
        tally.add("off_policy_fraction", (gap_N > 0.01).to(gap_N.dtype))
        tally.add("logprob_gap", gap_N, with_max=True)
        return torch.stack(list(terms.values())).sum()

    def _corrected_policy_loss(self, tokens: PolicyTokens, tally: StepMetrics) -> Tensor:
        """Per token, times the correction's factor."""
        policy = self._policy_loss(tokens, self.args)
        corrected = correction(tokens, self.args.train_infer_correction, weighted=self._weighted)
        tally.add("clip_fraction", policy.clipped)
        tally.add("ratio", policy.ratio, with_max=True)
        # k3 from the base's side, of tokens: the loss's own ratio may be that of a sequence.
        moved_N = log_ratio(tokens.logprobs.detach(), tokens.base_logprobs(self._base))
        tally.add("approx_kl", moved_N.expm1() - moved_N)
        weights = [each for each in (corrected.weight, policy.weight) if each is not None]
        if weights:
            tally.add_weight("is_weight", torch.stack(weights).prod(0))
        for name, share_N in corrected.shares.items():
            tally.add(name, share_N)
        return corrected.factor * policy.loss


def teacher_tokens(rows: Sequence[TrainRow], args: AlgorithmArgs) -> NDArray[np.int32] | None:
    """`[N, K]`: tokens whose log-probabilities the loss needs beside those of the rows' own."""
    if not args.distill_top_k or all(each.sequence.teacher is None for each in rows):
        return None
    ids = [
        np.zeros((len(each.row.scored), args.distill_top_k), np.int32)
        if (teacher := each.sequence.teacher) is None or teacher.top_ids is None
        else teacher.top_ids[each.row.scored]
        for each in rows
    ]
    return np.concatenate(ids)


def _teachers(rows: Sequence[TrainRow]) -> list[TeacherScores]:
    """The teachers' scores of the scored tokens."""
    return [teacher.take(each.row.scored) for each in rows if (teacher := each.sequence.teacher) is not None]


def _divergence(taught: Sequence[TeacherScores], outputs: TokenOutputs, is_taught_N: Tensor) -> Tensor:
    """The divergence from the teachers, of the M tokens that they scored."""
    if outputs.top_NK is None:
        logprobs_M = torch.from_numpy(np.concatenate([each.logprobs for each in taught]))
        return kl_estimate(outputs.logprobs_N[is_taught_N], logprobs_M.to(outputs.logprobs_N), "k2")
    tops = [each.top_logprobs for each in taught if each.top_logprobs is not None]
    teacher_MK = torch.from_numpy(np.concatenate(tops)).to(outputs.top_NK)
    return coarse_reverse_kl(outputs.top_NK[is_taught_N], teacher_MK)


class _JoinedRows:
    """The arrays of some rows, one after the other, as tensors `[N]`."""

    def __init__(self, rows: Sequence[TrainRow], device: torch.device) -> None:
        self._rows = rows
        self._device = device
        self._lengths = [len(row.row.scored) for row in rows]

    def arrays(self, per_row: Sequence[NDArray[np.float32] | None]) -> Tensor:
        """One array of each row's sequence; `check_sequences` made sure that none is missing."""
        found = zip(per_row, self._rows, strict=True)
        return self._tensor(
            np.concatenate([array[each.row.scored] for array, each in found if array is not None])
        )

    def arrays_or(self, per_row: Sequence[NDArray[np.float32] | None], default_N: Tensor) -> Tensor:
        """One array of each row's sequence, or the default's entries for a row without it."""
        parts = torch.split(default_N, self._lengths)
        return torch.cat(
            [
                part if array is None else self._tensor(array[each.row.scored])
                for array, each, part in zip(per_row, self._rows, parts, strict=True)
            ]
        )

    def repeated(self, per_row: Sequence[float]) -> Tensor:
        return self._tensor(np.repeat(np.asarray(per_row), self._lengths))

    def sequence_ids(self) -> Tensor:
        return torch.from_numpy(np.repeat(np.arange(len(self._rows)), self._lengths)).to(self._device)

    def segment_ids(self) -> Tensor:
        begins_N = np.concatenate(
            [np.diff(row.row.scored, prepend=row.row.scored[0] - 2) > 1 for row in self._rows]
        )
        return torch.from_numpy(np.cumsum(begins_N) - 1).to(self._device)

    def _tensor(self, values: NDArray[np.floating]) -> Tensor:
        return torch.from_numpy(np.asarray(values, np.float32)).to(self._device)
