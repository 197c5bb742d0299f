"""Shapes of the models that benchmarks compute with, and random models of these shapes.

Imports nothing but the standard library, so that the benchmark of a GPU can say what a machine lacks.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


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
