"""Tiny random models of every family in Hugging Face folders, and the logits of `transformers`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from transformers import (
    Glm4MoeConfig,
    Glm4MoeForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    MixtralConfig,
    MixtralForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
)
from transformers.utils import logging as transformers_logging

VOCAB_SIZE = 61
"""Divided by no number of ranks: the vocabulary is padded."""
LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 500000.0,
    "factor": 32.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
"""Of the eight wavelengths of a head of 16 some are kept, some scaled, and some between the two."""
_SHAPE: dict[str, Any] = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "max_position_embeddings": 16384,
    "initializer_range": 0.2,
}
_EXPERTS: dict[str, Any] = {
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 24,
    "head_dim": 8,
}
_THETA_1000 = {"rope_parameters": {"rope_type": "default", "rope_theta": 1000.0}}
MODELS: dict[str, tuple[Any, Any, dict[str, Any]]] = {
    "qwen2": (Qwen2Config, Qwen2ForCausalLM, _THETA_1000),
    "qwen2 tied": (Qwen2Config, Qwen2ForCausalLM, {"tie_word_embeddings": True}),
    "qwen3": (Qwen3Config, Qwen3ForCausalLM, {"head_dim": 16, **_THETA_1000}),
    "qwen3 tied": (Qwen3Config, Qwen3ForCausalLM, {"head_dim": 16, "tie_word_embeddings": True}),
    "llama": (LlamaConfig, LlamaForCausalLM, {"head_dim": 16, "rope_parameters": LLAMA3_ROPE}),
    "llama tied": (LlamaConfig, LlamaForCausalLM, {"tie_word_embeddings": True}),
    "qwen3_moe": (Qwen3MoeConfig, Qwen3MoeForCausalLM, {"norm_topk_prob": True, **_EXPERTS}),
    "qwen3_moe tied": (
        Qwen3MoeConfig,
        Qwen3MoeForCausalLM,
        {"norm_topk_prob": False, "tie_word_embeddings": True, **_EXPERTS},
    ),
    "mixtral": (MixtralConfig, MixtralForCausalLM, {"num_local_experts": 4, "num_experts_per_tok": 2}),
    "glm4_moe": (
        Glm4MoeConfig,
        Glm4MoeForCausalLM,
        {
            "n_routed_experts": 4,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 24,
            "n_shared_experts": 2,
            "routed_scaling_factor": 1.5,
            "attention_bias": True,
            "use_qk_norm": True,
            "head_dim": 8,
        },
    ),
}


def is_mixture(name: str) -> bool:
    return "moe" in name or name == "mixtral"


def make_model(name: str, **changes: Any) -> Any:
    """Weights, norms and biases included, far from where they would cancel a mistake."""
    config_class, model_class, settings = MODELS[name]
    torch.manual_seed(0)
    model = model_class(config_class(**{**_SHAPE, "tie_word_embeddings": False, **settings, **changes}))
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 1:
                parameter += 0.2 * torch.randn_like(parameter)
        for name, buffer in model.named_buffers():
            if name.endswith("e_score_correction_bias"):
                buffer += 0.2 * torch.randn_like(buffer)
    return model.float().eval()


def write_model(folder: Path, name: str, **changes: Any) -> Any:
    """`save_pretrained`; returns the model."""
    transformers_logging.disable_progress_bar()
    model = make_model(name, **changes)
    model.save_pretrained(folder)
    return model


def write_logits(folder: Path, model: Any, sequences: list[torch.Tensor]) -> None:
    """`logits.safetensors`: of each sequence `[num_tokens, vocab_size]`, under its number."""
    with torch.no_grad():
        logits = {str(index): model(ids[None]).logits[0] for index, ids in enumerate(sequences)}
    save_file({name: value.contiguous() for name, value in logits.items()}, folder / "logits.safetensors")
