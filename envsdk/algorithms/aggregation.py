"""How per-token losses of a ragged batch become one number.

Every mode is a weighted sum over tokens whose weights depend on response lengths, and on which sequences
are segments of one trajectory, alone. A trajectory counts once, however many segments it has:

    loss = sum_i w_i sum_t loss_it          L_i response tokens in the trajectory of sequence i,
                                            M trajectories with any

    token-mean                 w_i = 1 / (number of all response tokens)      each token counts the same
    seq-mean-token-sum         w_i = 1 / M            no length bias
    seq-mean-token-sum-norm    w_i = 1 / (M C)        the same, in units of C = loss_agg_length tokens
    seq-mean-token-mean        w_i = 1 / (M L_i)      each trajectory counts the same

`trajectory-mean-token-sum` and `trajectory-mean-token-mean` are other names of the second and the fourth.

Sources: DAPO, arXiv:2503.14476, eq. 8 (token-mean); Dr. GRPO, arXiv:2503.20783 (token-sum, and
its constant norm); GRPO, arXiv:2402.03300, eq. 3 (seq-mean-token-mean).

The weights are computed once over the optimizer step, so the split into micro-batches or ranks, the
order of the rows and the padding cannot change the result.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import get_args

import numpy as np
from numpy.typing import NDArray

from envsdk.algorithms.args import LossAggregation


def sequence_weights(
    mode: LossAggregation,
    num_response_tokens: Sequence[int],
    *,
    trajectories: Sequence[str | None] | None = None,
    length: int | None = None,
) -> NDArray[np.float64]:
    """Weight `[num_sequences]` of every response token of each sequence of one optimizer step.

    `trajectories` says which sequences belong together; None among them, or for all of them, is a
    trajectory of its own. `length` is the C of `seq-mean-token-sum-norm`. Sequences without response
    tokens weigh 0 and count nowhere; a batch of only such is all zeros.
    """
    if mode not in get_args(LossAggregation):
        raise ValueError(f"unknown loss_agg_mode {mode!r}; known are {', '.join(get_args(LossAggregation))}")
    lengths = np.asarray(num_response_tokens, np.float64)
    filled = lengths > 0
    if not filled.any():
        return np.zeros_like(lengths)
    if mode == "token-mean":
        return np.asarray(filled / lengths.sum(), np.float64)
    how = mode.partition("-mean-")[2]
    units = trajectory_numbers(trajectories or [None] * len(lengths))
    denominators = np.ones_like(lengths)
    if how == "token-mean":
        denominators = np.bincount(units, weights=lengths)[units].astype(np.float64)
    elif how == "token-sum-norm":
        if length is None:
            raise ValueError("seq-mean-token-sum-norm needs loss_agg_length")
        denominators = np.full_like(lengths, length)
    num_units = len(np.unique(units[filled]))
    weights: NDArray[np.float64] = filled / (num_units * np.where(filled, denominators, 1.0))
    return weights


def trajectory_numbers(trajectories: Sequence[str | None]) -> NDArray[np.int64]:
    """0, 1, ...: the trajectory of each sequence."""
    numbers: dict[str | int, int] = {}
    keys = [index if name is None else name for index, name in enumerate(trajectories)]
    return np.array([numbers.setdefault(key, len(numbers)) for key in keys], np.int64)
