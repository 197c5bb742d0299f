"""Tiny random models that vLLM runs: on a CPU its attention wants heads of 32."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import transformers
from tiny_models import VOCAB_SIZE, shake

KINDS = ("qwen3", "qwen2-tied")
ON_A_GPU = torch.cuda.is_available()
EXACT: dict[str, Any] = (
    {
        "dtype": "float32",
        "enforce_eager": True,
        "gpu_memory_utilization": 0.1,
        "kv_cache_memory_bytes": 5 << 30,  # not measured, so that other work on the card is no matter
    }
    if ON_A_GPU
    else {}
)
"""Settings with which vLLM computes in float32, and starts in seconds, where a CPU's are not the default."""


def make_model(kind: str, seed: int = 0) -> Any:
    """A model whose weights are random all over, norms and biases included."""
    shape: dict[str, Any] = {
        "vocab_size": VOCAB_SIZE,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "max_position_embeddings": 512,
        "bos_token_id": None,
        "eos_token_id": 3,
        "dtype": "float32",
    }
    config: Any
    if kind == "qwen3":
        config = transformers.Qwen3Config(**shape, head_dim=32)
    else:
        config = transformers.Qwen2Config(**shape, tie_word_embeddings=True)
    torch.manual_seed(seed)
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    shake(model, 0.1, seed)
    return model


def save_model(kind: str, folder: Path, seed: int = 0) -> Path:
    make_model(kind, seed).save_pretrained(folder)
    return folder
