"""Attention over lines that several rows share, without the pairs that no row has.

A mask of all pairs goes through the model. Queries are taken a block at a time, with only the keys that one
of them sees: the work grows as with rows apart. Models of `transformers` come here by the name `sdpa`.

Shapes: B lines, T inputs.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers import AttentionInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward

BLOCK, MOST_BLOCKS = 256, 8
"""Queries of a block at least: 128 to 512 is fastest on a CPU, for replies of 32 to 512 tokens. Each block
keeps a copy of its keys and values for the backward pass."""
_BLOCKS = "envsdk_blocks"


def take_place_of_sdpa() -> None:
    """Attention by any other mask, or by none, stays what it is."""
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
