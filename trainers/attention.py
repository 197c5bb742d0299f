"""The attention that a model is run with: its kernel on a device, and lines that several rows share."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend
from transformers import AttentionInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward

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


BLOCK, MOST_BLOCKS = 256, 8
"""Queries of a block at least: 128 to 512 is fastest on a CPU, for replies of 32 to 512 tokens. Each block
keeps a copy of its keys and values for the backward pass."""
_BLOCKS = "envsdk_blocks"


def take_place_of_sdpa() -> None:
    """Attention by any other mask, or by none, stays what it is.

    A mask of all pairs goes through the model. Queries are taken a block at a time, with only the keys that
    one of them sees: the work grows as with rows apart. Models of `transformers` come here by the name
    `sdpa`.

    Shapes: B lines, T inputs.
    """
    AttentionInterface.register("sdpa", _attention)


def blocked_mask(is_seen_BTT: Tensor, dtype: torch.dtype) -> Tensor:
    """The mask `[B, 1, T, T]` to be added to scores of attention: 0 for the pairs that are seen."""
    # Numbers of the forward pass's own type: attention would make some of booleans in every layer.
    mask = torch.zeros(is_seen_BTT.shape, dtype=dtype, device=is_seen_BTT.device)
    mask = mask.masked_fill_(~is_seen_BTT, torch.finfo(dtype).min).unsqueeze(1)
    length, blocks = mask.shape[2], []
    size = max(BLOCK, -(-length // MOST_BLOCKS))
    if length > size:
        for start in range(0, length, size):
            queries = slice(start, start + size)
            keys = is_seen_BTT[:, queries].any(1).any(0).nonzero()[:, 0]
            blocks.append((queries, keys, mask[:, :, queries, keys]))
        setattr(mask, _BLOCKS, blocks)
    return mask


def _attention(
    module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **settings: Any
) -> tuple[Tensor, None]:
    blocks = getattr(attention_mask, _BLOCKS, [(slice(None), slice(None), attention_mask)])
    parts = []
    for queries, keys, mask in blocks:
        inputs = query[:, :, queries], key[:, :, keys], value[:, :, keys]
        parts.append(sdpa_attention_forward(module, *inputs, mask, **settings)[0])
    return parts[0] if len(parts) == 1 else torch.cat(parts, 1), None
