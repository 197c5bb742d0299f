"""Tiny random models of the families that the trainers and the embedded engine run."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import transformers

VOCAB_SIZE = 61
_SHAPE: dict[str, Any] = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 256,
    "pad_token_id": None,
    "bos_token_id": None,
    "eos_token_id": None,
}
_MOE = {"num_experts_per_tok": 2, "moe_intermediate_size": 24}
_ALTERNATING = {"layer_types": ["sliding_attention", "full_attention"] * 2, "sliding_window": 8}
_HYBRID = {
    "layer_types": ["linear_attention", "linear_attention", "linear_attention", "full_attention"],
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
}
_GLM_MOE = {**_MOE, "n_routed_experts": 8, "n_shared_experts": 1, "n_group": 2, "topk_group": 1}
_LATENT = {
    "kv_lora_rank": 16,
    "q_lora_rank": 16,
    "qk_rope_head_dim": 8,
    "v_head_dim": 16,
    "qk_nope_head_dim": 8,
}

Shape = dict[str, Any]
FAMILIES: dict[str, Callable[[Shape], Any]] = {
    "qwen3_5": lambda shape: transformers.Qwen3_5TextConfig(**shape, **_HYBRID),
    "qwen3_5_moe": lambda shape: transformers.Qwen3_5MoeTextConfig(
        **shape, **_HYBRID, **_MOE, num_experts=8, shared_expert_intermediate_size=24
    ),
    "qwen3_moe": lambda shape: transformers.Qwen3MoeConfig(
        **shape, **_MOE, num_experts=8, norm_topk_prob=True
    ),
    "glm4": lambda shape: transformers.Glm4Config(**shape),
    "glm4_moe": lambda shape: transformers.Glm4MoeConfig(
        **{**shape, **_GLM_MOE, "n_group": 1}, first_k_dense_replace=1, use_qk_norm=True
    ),
    "glm4_moe_lite": lambda shape: transformers.Glm4MoeLiteConfig(
        **{**_LATENT, **shape, "num_key_value_heads": 4}, **_GLM_MOE, first_k_dense_replace=1
    ),
    "gpt_oss": lambda shape: transformers.GptOssConfig(
        **shape, **_ALTERNATING, num_local_experts=4, num_experts_per_tok=2
    ),
    "gemma3": lambda shape: transformers.Gemma3TextConfig(**shape, **_ALTERNATING, query_pre_attn_scalar=16),
    "gemma4": lambda shape: transformers.Gemma4TextConfig(
        **shape,
        **_ALTERNATING,
        num_kv_shared_layers=2,
        hidden_size_per_layer_input=8,
        vocab_size_per_layer_input=VOCAB_SIZE,
        final_logit_softcapping=30.0,
    ),
    "gemma4_moe": lambda shape: transformers.Gemma4TextConfig(
        **shape,
        **_ALTERNATING,
        hidden_size_per_layer_input=0,
        enable_moe_block=True,
        num_experts=8,
        top_k_experts=2,
        moe_intermediate_size=24,
        final_logit_softcapping=30.0,
    ),
    "mistral": lambda shape: transformers.MistralConfig(**shape, sliding_window=None),
    "mistral_sliding": lambda shape: transformers.MistralConfig(**shape, sliding_window=8),
    "ministral3": lambda shape: transformers.Ministral3Config(**shape),
    "mixtral": lambda shape: transformers.MixtralConfig(**shape, num_local_experts=4, num_experts_per_tok=2),
}
"""Configurations by name."""
_TOWER: dict[str, Any] = {"hidden_size": 16, "intermediate_size": 16}
_SIGLIP = {**_TOWER, "num_hidden_layers": 1, "num_attention_heads": 2, "image_size": 28, "patch_size": 14}
WITH_TOWERS: dict[str, Callable[[Shape], Any]] = {
    "qwen3_5": lambda shape: transformers.Qwen3_5Config(
        text_config={**shape, **_HYBRID},
        vision_config={
            **_TOWER,
            "depth": 1,
            "num_heads": 2,
            "out_hidden_size": 32,
            "num_position_embeddings": 16,
        },
    ),
    "gemma3": lambda shape: transformers.Gemma3Config(
        text_config={**shape, **_ALTERNATING}, vision_config=_SIGLIP, mm_tokens_per_image=4
    ),
    "gemma4": lambda shape: transformers.Gemma4Config(
        text_config={**shape, **_ALTERNATING, "hidden_size_per_layer_input": 0, "pad_token_id": 0},
        vision_config={**_TOWER, "num_hidden_layers": 1, "num_attention_heads": 2, "head_dim": 8},
    ),
    "mistral3": lambda shape: transformers.Mistral3Config(
        text_config={**shape, "model_type": "mistral"}, vision_config={**_SIGLIP, "model_type": "pixtral"}
    ),
}
"""Configurations of models that also see images, by name."""
MIXTURES = tuple(name for name in FAMILIES if "moe" in name or name in ("gpt_oss", "mixtral"))


def make_family(name: str, seed: int = 0, **sizes: int) -> Any:
    """Weights and buffers are random all over. `sizes`: other ones of its configuration."""
    torch.manual_seed(seed)
    return shaken(transformers.AutoModelForCausalLM.from_config(FAMILIES[name](_SHAPE | sizes)), seed)


def make_with_tower(name: str, seed: int = 0) -> Any:
    torch.manual_seed(seed)
    return shaken(transformers.AutoModelForImageTextToText.from_config(WITH_TOWERS[name](_SHAPE)), seed)


def shaken(model: Any, seed: int) -> Any:
    model.eval()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for _, value in model.state_dict().items():
            value.add_(torch.randn(value.shape, generator=generator) * 0.1)
    return model


def save_family(name: str, folder: Path, seed: int = 0) -> Path:
    make_family(name, seed).save_pretrained(folder)
    return folder
