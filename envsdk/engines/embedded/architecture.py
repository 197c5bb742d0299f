"""Shapes of the models that the fast path knows, from their Hugging Face configurations."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from envsdk.engines.embedded.settings import FAST_MODEL_TYPES


@dataclass(frozen=True, slots=True)
class Architecture:
    """What the fast path needs to know of a Hugging Face configuration."""

    num_layers: int
    num_kv_heads: int
    num_queries_per_kv: int
    head_dim: int
    hidden_size: int
    intermediate_size: int
    vocab_size: int
    norm_eps: float
    tied: bool
    qkv_bias: bool
    output_bias: bool
    qk_norm: bool
    inverse_frequencies: Tensor
    """`[head_dim / 2]`"""
    rotary_scale: float

    @classmethod
    def of(cls, config: Any) -> Architecture | None:
        """None when the fast path does not know this model, which then runs through transformers."""
        kind = config.model_type
        layer_types = getattr(config, "layer_types", None) or ["full_attention"]
        rope = dict(config.rope_parameters or {}) if kind in FAST_MODEL_TYPES else {}
        if (
            kind not in FAST_MODEL_TYPES
            or config.hidden_act != "silu"
            or getattr(config, "mlp_bias", False)
            or set(layer_types) != {"full_attention"}
            or (kind == "mistral" and config.sliding_window is not None)
            or rope.get("rope_type", "default") not in {"default", "linear", "llama3", "yarn"}
            or rope.get("partial_rotary_factor", 1.0) != 1.0
        ):
            return None
        head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        frequencies, scale = _rotary(config, rope, head_dim)
        attention_bias = bool(getattr(config, "attention_bias", False))
        return cls(
            num_layers=config.num_hidden_layers,
            num_kv_heads=config.num_key_value_heads,
            num_queries_per_kv=config.num_attention_heads // config.num_key_value_heads,
            head_dim=head_dim,
            hidden_size=config.hidden_size,
            intermediate_size=config.intermediate_size,
            vocab_size=config.vocab_size,
            norm_eps=config.rms_norm_eps,
            tied=config.tie_word_embeddings,
            qkv_bias=attention_bias or kind == "qwen2",
            output_bias=attention_bias and kind != "qwen2",
            qk_norm=kind == "qwen3",
            inverse_frequencies=frequencies,
            rotary_scale=scale,
        )

    def weight_shapes(self) -> dict[str, tuple[int, ...]]:
        """Hugging Face names and shapes."""
        hidden, inner, dim = self.hidden_size, self.intermediate_size, self.head_dim
        keys = self.num_kv_heads * dim
        queries = keys * self.num_queries_per_kv
        shapes: dict[str, tuple[int, ...]] = {
            "model.embed_tokens.weight": (self.vocab_size, hidden),
            "model.norm.weight": (hidden,),
            "lm_head.weight": (self.vocab_size, hidden),
        }
        for layer in range(self.num_layers):
            prefix = f"model.layers.{layer}."
            attention = prefix + "self_attn."
            shapes |= {
                prefix + "input_layernorm.weight": (hidden,),
                prefix + "post_attention_layernorm.weight": (hidden,),
                prefix + "mlp.gate_proj.weight": (inner, hidden),
                prefix + "mlp.up_proj.weight": (inner, hidden),
                prefix + "mlp.down_proj.weight": (hidden, inner),
                attention + "q_proj.weight": (queries, hidden),
                attention + "k_proj.weight": (keys, hidden),
                attention + "v_proj.weight": (keys, hidden),
                attention + "o_proj.weight": (hidden, queries),
            }
            if self.qkv_bias:
                shapes |= {
                    attention + "q_proj.bias": (queries,),
                    attention + "k_proj.bias": (keys,),
                    attention + "v_proj.bias": (keys,),
                }
            if self.output_bias:
                shapes[attention + "o_proj.bias"] = (hidden,)
            if self.qk_norm:
                shapes |= {attention + "q_norm.weight": (dim,), attention + "k_norm.weight": (dim,)}
        return shapes


def _rotary(config: Any, rope: dict[str, Any], head_dim: int) -> tuple[Tensor, float]:
    """Inverse frequencies `[head_dim / 2]` and the factor on cosine and sine."""
    kind = rope.get("rope_type", "default")
    if kind == "default":
        steps = torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim
        return 1.0 / (rope.get("rope_theta", 10000.0) ** steps), 1.0
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    frequencies, scale = ROPE_INIT_FUNCTIONS[kind](config, torch.device("cpu"))
    return frequencies.float(), float(scale)
