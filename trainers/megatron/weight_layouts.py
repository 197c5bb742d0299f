"""Megatron's parameters and the Hugging Face weights they are made of: names, and how tensors are laid out.

names, layout, indices = weights_of("decoder.layers.0.mlp.linear_fc1.weight")
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Sequence
from pathlib import Path

import torch
from megatron.core.transformer import TransformerConfig
from torch import Tensor

EMBEDDING = "model.embed_tokens.weight"
HEAD = "lm_head.weight"


class Layout:
    """One Hugging Face tensor, copied to all tensor-parallel ranks."""

    def join_parts(self, config: TransformerConfig, parts: list[Tensor]) -> Tensor:
        """Megatron's tensor, from the Hugging Face tensors."""
        (part,) = parts
        return part

    def part(self, config: TransformerConfig, whole: Tensor) -> list[Tensor]:
        """The Hugging Face tensors, from Megatron's."""
        return [whole]

    def shard(self, whole: Tensor, size: int) -> Sequence[Tensor]:
        """The part of each tensor-parallel rank."""
        return [whole] * size

    def join_shards(self, shards: list[Tensor]) -> Tensor:
        """The full tensor, from the parts of all ranks."""
        return shards[0]


class _Rows(Layout):
    """Sharded along the outputs."""

    def shard(self, whole: Tensor, size: int) -> Sequence[Tensor]:
        return whole.chunk(size, 0)

    def join_shards(self, shards: list[Tensor]) -> Tensor:
        return torch.cat(shards, 0)


class _Columns(Layout):
    """Sharded along the inputs."""

    def shard(self, whole: Tensor, size: int) -> Sequence[Tensor]:
        return whole.chunk(size, 1)

    def join_shards(self, shards: list[Tensor]) -> Tensor:
        return torch.cat(shards, 1)


class _QueryKeyValue(_Rows):
    """Per group of queries that share a key: its queries, the key, the value."""

    def join_parts(self, config: TransformerConfig, parts: list[Tensor]) -> Tensor:
        num_groups = len(parts[1]) // config.kv_channels  # also those of one rank
        groups = [part.reshape(num_groups, -1, *part.shape[1:]) for part in parts]
        return torch.cat(groups, 1).flatten(0, 1)

    def part(self, config: TransformerConfig, whole: Tensor) -> list[Tensor]:
        groups, width = config.num_query_groups, config.kv_channels
        num_queries = config.num_attention_heads // groups
        grouped = whole.reshape(groups, -1, *whole.shape[1:])
        parts = torch.split(grouped, [num_queries * width, width, width], 1)
        return [part.flatten(0, 1) for part in parts]


class _GateUp(Layout):
    """Each rank has its rows of the gate, then its rows of what it gates."""

    def join_parts(self, config: TransformerConfig, parts: list[Tensor]) -> Tensor:
        return torch.cat(parts, 0)

    def part(self, config: TransformerConfig, whole: Tensor) -> list[Tensor]:
        return list(whole.chunk(2, 0))

    def shard(self, whole: Tensor, size: int) -> Sequence[Tensor]:
        gate, up = (half.chunk(size, 0) for half in whole.chunk(2, 0))
        return [torch.cat(halves) for halves in zip(gate, up, strict=True)]

    def join_shards(self, shards: list[Tensor]) -> Tensor:
        halves = [shard.chunk(2, 0) for shard in shards]
        return torch.cat([torch.cat(half) for half in zip(*halves, strict=True)])


_LAYOUTS: dict[str, Layout] = {
    "whole": Layout(),
    "rows": _Rows(),
    "columns": _Columns(),
    "query_key_value": _QueryKeyValue(),
    "gate_up": _GateUp(),
}
_TABLE = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
_RULES = [
    (re.compile(re.sub(r"\\\{\d\\\}", r"(\\d+)", re.escape(megatron))), tuple(names), _LAYOUTS[layout])
    for megatron, (layout, *names) in _TABLE.items()
]

_OTHER_NAMES: dict[str, dict[str, str]] = {
    "mixtral": {"mlp": "block_sparse_moe", "gate_proj": "w1", "up_proj": "w3", "down_proj": "w2"}
}
"""What a model type calls parts of these names."""


def name_in(model_type: str, name: str) -> str:
    """The name of a weight in folders of a model type."""
    others = _OTHER_NAMES.get(model_type, {})
    return ".".join(others.get(part, part) for part in name.split("."))


def weights_of(name: str) -> tuple[tuple[str, ...], Layout, list[int]]:
    """Hugging Face names, with a place for each index; the layout; the indices of layer and expert in `name`.

    An adapter's are PEFT's. KeyError for a parameter that no rule knows.
    """
    linear, is_adapter, half = name.partition(".lora.")
    if is_adapter:
        names, layout, indices = weights_of(f"{linear}.weight")
        adapted = names[int(half[1:])].removesuffix("weight")
        is_sharded = isinstance(layout, _Columns) == half.startswith("A")
        own = (_Columns() if half.startswith("A") else _Rows()) if is_sharded else Layout()
        return (f"{adapted}lora_{half[0]}.default.weight",), own, indices
    for pattern, names, kind in _RULES:
        if found := pattern.fullmatch(name):
            return names, kind, [int(index) for index in found.groups()]
    raise KeyError(f"no Hugging Face name is known for Megatron's parameter {name}")
