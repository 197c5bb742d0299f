"""The attention that a model is run with, and the kernel that PyTorch takes for it on a device."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn.attention import SDPBackend

_WORDS = {
    SDPBackend.FLASH_ATTENTION: "flash",
    SDPBackend.CUDNN_ATTENTION: "cuDNN",
    SDPBackend.EFFICIENT_ATTENTION: "memory-efficient",
    SDPBackend.MATH: "math: no fused kernel fits",
}


def sdpa_kernel(
    *,
    num_heads: int,
    num_key_value_heads: int,
    head_width: int,
    dtype: torch.dtype,
    device: torch.device,
    has_mask: bool = False,
) -> str:
    """PyTorch's choice for causal attention that is trained through, in a word.

    `has_mask`: causality is in a mask of booleans instead of a flag.
    """
    # Tokens before heads in memory, as models have them: cuDNN minds.
    query, key = (
        torch.empty(1, 128, heads, head_width, dtype=dtype, device=device, requires_grad=True).transpose(1, 2)
        for heads in (num_heads, num_key_value_heads)
    )
    mask = torch.ones(128, 128, dtype=torch.bool, device=device) if has_mask else None
    try:
        choice = torch._fused_sdp_choice(
            query, key, key, mask, 0.0, not has_mask, enable_gqa=num_heads != num_key_value_heads
        )
    except NotImplementedError:  # on devices other than CPUs and CUDA's it may not be asked
        return "unknown"
    return _WORDS.get(SDPBackend(choice), "another")


def attention_of(model: Any, *, dtype: torch.dtype, device: torch.device) -> str:
    """What a `transformers` model computes attention with: `sdpa (flash)`, `flash_attention_2`, `eager`.

    `dtype` is that of the forward pass.
    """
    config = model.config.get_text_config()
    implementation = str(config._attn_implementation)
    heads = getattr(config, "num_attention_heads", None)
    if implementation != "sdpa" or not isinstance(heads, int):
        return implementation
    kernel = sdpa_kernel(
        num_heads=heads,
        num_key_value_heads=getattr(config, "num_key_value_heads", None) or heads,
        head_width=getattr(config, "head_dim", None) or config.hidden_size // heads,
        dtype=dtype,
        device=device,
    )
    return f"sdpa ({kernel})"
