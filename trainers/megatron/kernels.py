"""Which kernels compute attention, and the layers around it, on this rank's device."""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum

import torch
from megatron.core.models.gpt import gpt_layer_specs
from megatron.core.transformer import TransformerConfig

from envsdk.contracts.failures import ConfigurationError
from envsdk.trainers.attention import sdpa_kernel
from envsdk.trainers.megatron.device import device


class Attention(StrEnum):
    """In the order of preference."""

    TRANSFORMER_ENGINE = "transformer_engine"
    """Norms and matrix products are Transformer Engine's too."""
    VARLEN = "varlen"
    """PyTorch's FlashAttention over packed sequences, one call for all."""
    SDPA = "sdpa"
    """PyTorch's scaled dot-product attention, one call for each length."""


def chosen_attention(asked: str, config: TransformerConfig, *, with_adapter: bool = False) -> Attention:
    """`asked`, or for `auto` the first that can be had. ConfigurationError names what `asked` lacks."""
    if asked == "auto":
        return next(each for each in Attention if not list(_lacking(each, config, with_adapter)))
    if lacking := list(_lacking(Attention(asked), config, with_adapter)):
        raise ConfigurationError(f"attn_implementation: {asked} needs {', '.join(lacking)}")
    return Attention(asked)


def kernels_of(attention: Attention, config: TransformerConfig) -> dict[str, str]:
    """What the trainer says of them."""
    if attention is Attention.TRANSFORMER_ENGINE:
        return {"attention": "transformer_engine", "layers": "transformer_engine"}
    if attention is Attention.VARLEN:
        return {"attention": "varlen (flash)", "layers": "megatron-core"}
    tp = config.tensor_model_parallel_size
    kernel = sdpa_kernel(
        num_heads=config.num_attention_heads // tp,
        num_key_value_heads=config.num_query_groups // tp,
        head_width=config.kv_channels,
        dtype=config.params_dtype,
        device=device(),
        has_mask=config.context_parallel_size > 1,
    )
    return {"attention": f"sdpa ({kernel})", "layers": "megatron-core"}


def _lacking(attention: Attention, config: TransformerConfig, with_adapter: bool) -> Iterator[str]:
    if attention is Attention.SDPA:
        return
    if _compute_capability() < (8, 0):
        yield "a GPU of compute capability 8.0 or later"
    if config.params_dtype is torch.float32:
        yield "dtype: bfloat16"
    if attention is Attention.TRANSFORMER_ENGINE:
        if not gpt_layer_specs.HAVE_TE:
            yield "the package transformer-engine"
        if config.num_moe_experts:
            yield "a model without experts"
        if with_adapter:
            yield "no lora"
        return
    if config.kv_channels % 8 or config.kv_channels > 256:
        yield "heads of at most 256 channels, a multiple of 8"
    if config.context_parallel_size > 1:
        yield "context_parallel_size: 1"


def _compute_capability() -> tuple[int, int]:
    return torch.cuda.get_device_capability() if torch.cuda.is_available() else (0, 0)
