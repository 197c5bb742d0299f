"""How per-token losses of a ragged batch become one number.

Every mode is a weighted sum over tokens whose weights depend on response lengths alone:

    loss = sum_i w_i sum_t loss_it          L_i response tokens in sequence i, M sequences with any

    token-mean            w_i = 1 / sum_j L_j   each token counts the same (DAPO, arXiv:2503.14476, eq. 8)
    seq-mean-token-sum    w_i = 1 / M           no length bias (Dr. GRPO, arXiv:2503.20783, sec. 3)
    seq-mean-token-mean   w_i = 1 / (M L_i)     each sequence counts the same (GRPO, arXiv:2402.03300, eq. 3)

The weights are computed once over the whole optimizer step, so the split into micro-batches, the order
of the rows and the padding cannot change the result.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from envsdk.algorithms.args import LossAggregation


def sequence_weights(mode: LossAggregation, num_response_tokens: Sequence[int]) -> NDArray[np.float64]:
    """Weight `[num_sequences]` of every response token of each sequence of one optimizer step.

    Sequences without response tokens weigh 0 and count nowhere; a batch of only such is all zeros.
    """
    lengths = np.asarray(num_response_tokens, np.float64)
    filled = lengths > 0
    if not filled.any():
        return np.zeros_like(lengths)
    weights: NDArray[np.float64]
    if mode == "token-mean":
        weights = filled / lengths.sum()
    elif mode == "seq-mean-token-sum":
        weights = filled / filled.sum()
    elif mode == "seq-mean-token-mean":
        weights = filled / (filled.sum() * np.where(filled, lengths, 1.0))
    else:
        raise ValueError(
            f"unknown loss_agg_mode {mode!r}; known are token-mean, seq-mean-token-sum, seq-mean-token-mean"
        )
    return weights
