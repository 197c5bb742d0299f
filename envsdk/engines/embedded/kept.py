"""The keys and values of a decoder's slots, in memory that may be given back and taken again."""

from __future__ import annotations

import torch
from torch import Tensor

from envsdk.engines.embedded.architecture import Architecture
from envsdk.engines.embedded.decoder import zeros


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
