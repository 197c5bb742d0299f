"""What the trainer benchmarks train on: a batch of sequences.

Shaped like agentic data: sequences of unequal length of which the policy wrote a part, in short replies.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from envsdk.contracts.trainer import TrainBatch, TrainSequence

if TYPE_CHECKING:
    from benchmarks.model_shapes import ModelShape


def make_batch(
    vocab_size: int, *, num_sequences: int, mean_length: int, reply_length: int = 8, reply_every: int = 48
) -> TrainBatch:
    """Sequences of half to one and a half times `mean_length` tokens, with advantages of both signs.

    Every `reply_every` tokens the policy wrote `reply_length` of them, slightly off-policy.
    """
    rng = np.random.default_rng(0)
    sequences = []
    for index in range(num_sequences):
        length = int(rng.integers(mean_length // 2, mean_length * 3 // 2 + 1))
        mask = (np.arange(length) % reply_every >= reply_every - reply_length).astype(np.int8)
        behavior = np.log(1.0 / vocab_size) + rng.normal(0.0, 0.2, length)
        sequences.append(
            TrainSequence(
                ids=rng.integers(0, vocab_size, length).astype(np.int32),
                response_mask=mask,
                behavior_logprobs=(behavior * mask).astype(np.float32),
                advantages=((1.0 if index % 2 else -1.0) * mask).astype(np.float32),
            )
        )
    return TrainBatch(step=0, sequences=sequences)


def num_tokens(batch: TrainBatch) -> int:
    """Of all sequences together."""
    return sum(len(sequence.ids) for sequence in batch.sequences)


def train_flops(shape: ModelShape, sequences: Sequence[TrainSequence]) -> float:
    """Floating-point operations of one forward and backward pass, as the model's sizes imply them.

    Twice the parameters per token and pass, causal attention at half of its square, the vocabulary at
    scored tokens alone; the backward pass counts as two. Padding and recomputation are not counted: time
    spent on them lowers the utilization. Source of the counting: PaLM, arXiv:2204.02311, appendix B.
    """
    forward = 0.0
    for sequence in sequences:
        length = len(sequence.ids)
        attention = 2 * length * length * shape.num_heads * shape.head_dim * shape.num_layers
        vocabulary = 2 * int(sequence.response_mask.sum()) * shape.hidden_size * shape.vocab_size
        forward += 2 * length * shape.num_layer_parameters + attention + vocabulary
    return 3 * forward
