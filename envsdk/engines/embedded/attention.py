"""What the new tokens of a prefill attend to.

Rows R: queries `[R, K, T, G, D]`, keys and values `[R, K, L, D]`, hidden `[R, T, L]`. Results are shaped like
the queries.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

_BLOCK = 128
"""New tokens of a row whose scores are in memory at once."""


def attended(queries: Tensor, keys: Tensor, values: Tensor, hidden: Tensor) -> Tensor:
    """Multiplies as a decoding step does, so that it does not matter with which rows a token is computed."""
    rows, num_heads, num_new, group, dim = queries.shape
    mask = torch.zeros(hidden.shape, dtype=queries.dtype, device=queries.device)
    mask.masked_fill_(hidden, -torch.inf)
    mask = mask.repeat_interleave(group, 1).repeat_interleave(num_heads, 0)
    scores = torch.baddbmm(mask, queries.reshape(-1, num_new * group, dim), keys.flatten(0, 1).mT)
    attention = torch.bmm(torch.softmax(scores, -1), values.flatten(0, 1))
    return attention.view(rows, num_heads, num_new, group, dim)


def attended_in_blocks(queries: Tensor, keys: Tensor, values: Tensor, hidden: Tensor, past: int) -> Tensor:
    """The same for some new tokens at a time; `past` is the most cached keys of a row."""
    parts = []
    for start in range(0, queries.shape[2], _BLOCK):
        new = slice(start, start + _BLOCK)
        seen = slice(past + start + _BLOCK)
        parts.append(attended(queries[:, :, new], keys[:, :, seen], values[:, :, seen], hidden[:, new, seen]))
    return torch.cat(parts, 2)


def attended_fused(queries: Tensor, keys: Tensor, values: Tensor, hidden: Tensor) -> Tensor:
    """The same in one operation without all scores in memory; on a CPU it multiplies in float32."""
    rows, num_heads, num_new, group, dim = queries.shape
    if queries.is_cuda:  # with a mask no fused kernel but cuDNN's lets queries share keys
        keys, values = (each.repeat_interleave(group, 1) for each in (keys, values))
    attention = F.scaled_dot_product_attention(
        queries.transpose(2, 3).reshape(rows, num_heads * group, num_new, dim),
        keys,
        values,
        attn_mask=~hidden[:, None],
        scale=1.0,
        enable_gqa=keys.shape[1] < num_heads * group,
    )
    return attention.view(rows, num_heads, group, num_new, dim).transpose(2, 3)
