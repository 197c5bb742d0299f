"""What the trainer benchmarks train: a random model as a Hugging Face folder, and a batch of sequences.

Shaped like agentic data: sequences of unequal length of which the policy wrote a part, in short replies.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from envsdk.trainer import TrainBatch, TrainSequence


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelShape:
    """A dense decoder of the Qwen3 family."""

    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_key_value_heads: int
    vocab_size: int
    max_positions: int = 4096

    @property
    def head_dim(self) -> int:
        return self.hidden_size // self.num_heads

    @property
    def num_layer_parameters(self) -> int:
        """Of the matrices of all layers: each is one multiplication and one addition per token."""
        attention = 2 * self.num_heads + 2 * self.num_key_value_heads
        per_layer = self.hidden_size * (attention * self.head_dim + 3 * self.intermediate_size)
        return self.num_layers * per_layer


QUICKSTART = ModelShape(
    hidden_size=128,
    intermediate_size=512,
    num_layers=4,
    num_heads=4,
    num_key_value_heads=2,
    vocab_size=512,
)
"""The tiny policy's."""
SMALL = ModelShape(
    hidden_size=256,
    intermediate_size=1024,
    num_layers=4,
    num_heads=8,
    num_key_value_heads=4,
    vocab_size=2048,
)
HALF_BILLION = ModelShape(
    hidden_size=896,
    intermediate_size=4864,
    num_layers=24,
    num_heads=14,
    num_key_value_heads=2,
    vocab_size=151_936,
)
"""The sizes of Qwen2.5-0.5B."""


def write_model(folder: Path, shape: ModelShape, *, device: str = "cpu", dtype: str = "float32") -> Path:
    """A Qwen3 model with random weights, always the same ones of a device and a precision.

    They are drawn on the device, in that precision: a GPU does so faster than the CPU.
    """
    import torch
    import transformers

    transformers.logging.disable_progress_bar()
    torch.manual_seed(0)
    config = transformers.Qwen3Config(
        vocab_size=shape.vocab_size,
        hidden_size=shape.hidden_size,
        intermediate_size=shape.intermediate_size,
        num_hidden_layers=shape.num_layers,
        num_attention_heads=shape.num_heads,
        num_key_value_heads=shape.num_key_value_heads,
        head_dim=shape.head_dim,
        max_position_embeddings=shape.max_positions,
        tie_word_embeddings=True,
    )
    with torch.device(device):
        model = transformers.AutoModelForCausalLM.from_config(config, dtype=getattr(torch, dtype))
    model.save_pretrained(folder)
    return folder


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
