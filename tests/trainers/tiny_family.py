"""Tiny random models of many families."""

from __future__ import annotations

from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM

from tests.envsdk.engines.tiny_models import shake

_SHAPE: dict[str, Any] = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 48,
    "moe_intermediate_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 256,
    "num_experts": 4,
    "num_local_experts": 4,
    "num_experts_per_tok": 2,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": 0,
}


def tiny_model(model_type: str, **changes: Any) -> Any:
    """A random model of this family, norms and biases included."""
    known = AutoConfig.for_model(model_type).to_dict()
    shape = {name: value for name, value in _SHAPE.items() if name in known}
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(model_type, **shape | changes)).eval()
    shake(model, 0.1, 0)
    return model
