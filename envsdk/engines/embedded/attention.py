"""What the fast decoder attends to: keys and values of its slots, in memory that may be given back."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from envsdk.engines.embedded.architecture import Architecture
from envsdk.engines.embedded.decoder import zeros

_BLOCK = 128
"""New tokens of a row whose scores are in memory at once."""


def attended(queries: Tensor, keys: Tensor, values: Tensor, hidden: Tensor) -> Tensor:
    """Multiplies as a decoding step does, so that it does not matter with which rows a token is computed.

    Rows R: queries `[R, K, T, G, D]`, keys and values `[R, K, L, D]`, hidden `[R, T, L]`. Results are shaped
    like the queries.
    """
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


class KeysAndValues:
    """K key/value heads of a slot lie side by side: M positions, D numbers each. Freed, nothing moves."""

    def __init__(
        self, arch: Architecture, *, num_slots: int, span: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        """`span`: M."""
        self._num_heads = arch.num_kv_heads
        self._shape = (arch.num_layers, num_slots * self._num_heads, 2, span, arch.head_dim)
        self._dtype = dtype
        self._device = device
        self.layers = torch.empty(0)
        """`[layers, slots * K, 2, M, D]`; nothing while freed."""
        self.rows: list[Tensor] = []
        """The same of each layer as `[slots * K * 2 * M, D]`."""
        self.allocate()

    def allocate(self) -> None:
        """Zeros, unless it is there."""
        if not self.rows:
            self.layers = zeros(self._shape, self._dtype, self._device)
            self.rows = [layer.view(-1, self._shape[-1]) for layer in self.layers]

    def free(self) -> None:
        """Give the memory back, with what is in it."""
        self.layers = torch.empty(0)
        self.rows = []

    def first(self, num_slots: int, num_keys: int) -> tuple[list[Tensor], list[Tensor]]:
        """Keys `[B * K, D, S]` and values `[B * K, S, D]` of the first slots, by layer."""
        used = slice(num_slots * self._num_heads)
        return (
            [layer[used, 0, :num_keys].transpose(1, 2) for layer in self.layers],
            [layer[used, 1, :num_keys] for layer in self.layers],
        )

    def move(self, source: int, target: int, length: int) -> None:
        """Copy the first `length` positions of slot `source` over slot `target`."""
        if self.rows:
            self._slot(target)[..., :length, :] = self._slot(source)[..., :length, :]

    def exchange(self, one: int, other: int, length: int) -> None:
        """Exchange the first `length` positions of two slots."""
        if self.rows:
            first, second = self._slot(one)[..., :length, :], self._slot(other)[..., :length, :]
            kept = first.clone()
            first.copy_(second)
            second.copy_(kept)

    def clear(self, slot: int) -> None:
        """Fill the slot with zeros."""
        if self.rows:
            self._slot(slot).zero_()

    def _slot(self, slot: int) -> Tensor:
        return self.layers[:, slot * self._num_heads : (slot + 1) * self._num_heads]
