"""Tiny random models of several architectures."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers

VOCAB_SIZE = 64
_SHAPE: dict[str, Any] = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "bos_token_id": None,
    "eos_token_id": None,
}
_LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}

FAST_KINDS = ("qwen3", "qwen3-tied", "qwen2", "llama", "llama-tied-bias", "llama-multi-head", "llama3-rope")
GENERIC_KINDS = ("gpt2", "gemma3", "qwen2-sliding")
KINDS = FAST_KINDS + GENERIC_KINDS


def make_tiny(kind: str, seed: int = 0) -> Any:
    """A model whose weights are random all over, norms and biases included."""
    match kind:
        case "qwen3" | "qwen3-tied":
            config = transformers.Qwen3Config(**_SHAPE, head_dim=16, tie_word_embeddings=kind == "qwen3-tied")
        case "qwen2":
            config = transformers.Qwen2Config(**_SHAPE)
        case "qwen2-sliding":
            config = transformers.Qwen2Config(
                **_SHAPE, use_sliding_window=True, sliding_window=7, max_window_layers=1
            )
        case "llama":
            config = transformers.LlamaConfig(**_SHAPE)
        case "llama-tied-bias":
            config = transformers.LlamaConfig(**_SHAPE, attention_bias=True, tie_word_embeddings=True)
        case "llama-multi-head":
            config = transformers.LlamaConfig(**(_SHAPE | {"num_key_value_heads": 4}))
        case "llama3-rope":
            config = transformers.LlamaConfig(**_SHAPE, rope_parameters=_LLAMA3_ROPE)
        case "qwen3-yarn":  # made for 32 positions
            yarn = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 8.0}
            config = transformers.Qwen3Config(
                **(_SHAPE | {"max_position_embeddings": 32}), rope_parameters=yarn
            )
        case "gpt2":
            config = transformers.GPT2Config(
                vocab_size=VOCAB_SIZE,
                n_embd=32,
                n_layer=2,
                n_head=4,
                n_positions=512,
                bos_token_id=None,
                eos_token_id=None,
            )
        case "gemma3":
            config = transformers.Gemma3TextConfig(
                **_SHAPE, head_dim=16, sliding_window=8, final_logit_softcapping=5.0, pad_token_id=0
            )
        case _:
            raise ValueError(kind)
    torch.manual_seed(seed)
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    shake(model, 0.1, seed)
    return model


def shake(model: Any, size: float, seed: int) -> None:
    """Add noise to every weight, in place."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator) * size)


def save_tiny(kind: str, folder: Path, seed: int = 0) -> Path:
    make_tiny(kind, seed).save_pretrained(folder)
    return folder


def reference_logits(model: Any, prompt: np.ndarray, reply: np.ndarray) -> torch.Tensor:
    """Logits that each token of the reply was sampled from, by one plain forward, `[reply, vocab]`."""
    ids = torch.from_numpy(np.concatenate([prompt, reply]).astype(np.int64))[None]
    with torch.no_grad():
        logits: torch.Tensor = model(ids, use_cache=False).logits[0]
    return logits[len(prompt) - 1 : -1]


def reference_logprobs(
    model: Any, prompt: np.ndarray, reply: np.ndarray, temperature: float = 1.0
) -> np.ndarray:
    logprobs = (reference_logits(model, prompt, reply) / temperature).log_softmax(-1).numpy()
    return logprobs[np.arange(len(reply)), reply]
