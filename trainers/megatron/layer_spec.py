"""The layers of a Megatron model: Transformer Engine's, or others that run on any device.

Megatron's own local layers refuse sequence parallelism in their norm, and packed sequences and context
parallelism in their attention. These two parts are made here; the rest is Megatron's.

Shapes: T tokens that this rank holds of packed sequences, U the same of all context-parallel ranks, S and B
of padded ones, h heads, d head width.
"""

from __future__ import annotations

from collections.abc import Sequence
from inspect import signature
from typing import Any

import numpy as np
import torch
from megatron.core.models.gpt import gpt_layer_specs
from megatron.core.packed_seq_params import PackedSeqParams
from megatron.core.process_groups_config import ProcessGroupCollection
from megatron.core.tensor_parallel import gather_from_sequence_parallel_region
from megatron.core.transformer import TransformerConfig
from megatron.core.transformer.module import MegatronModule
from megatron.core.transformer.transformer_block import (
    TransformerBlockSubmodules,
    get_num_layers_to_build,
)
from megatron.core.transformer.transformer_layer import get_transformer_layer_offset
from torch import Tensor, nn
from torch.nn.attention.varlen import varlen_attn
from torch.nn.functional import scaled_dot_product_attention

from envsdk.trainers.megatron.device import Attention, device
from envsdk.trainers.megatron.packing import held_positions


def block_spec(
    config: TransformerConfig, vp_stage: int | None, attention: Attention
) -> TransformerBlockSubmodules:
    """Layers of one piece of the model: this pipeline rank's, or its virtual stage `vp_stage`."""
    count = get_num_layers_to_build(config, vp_stage=vp_stage)
    if attention is Attention.TRANSFORMER_ENGINE:
        layer = gpt_layer_specs.get_gpt_layer_with_transformer_engine_spec(qk_layernorm=config.qk_layernorm)
        return TransformerBlockSubmodules(layer_specs=[layer] * count, layer_norm=gpt_layer_specs.TENorm)
    dense, first = _local_layer(config, None, attention), get_transformer_layer_offset(config, vp_stage)
    layers = [dense] * count
    if config.num_moe_experts:
        mixture = _local_layer(config, config.num_moe_experts, attention)
        layers = [
            mixture if has_experts else dense for has_experts in config.moe_layer_freq[first : first + count]
        ]
    return TransformerBlockSubmodules(layer_specs=layers, layer_norm=Norm)


def _local_layer(config: TransformerConfig, num_experts: int | None, attention: Attention) -> Any:
    layer = gpt_layer_specs.get_gpt_layer_local_spec(
        num_experts=num_experts, qk_layernorm=config.qk_layernorm, normalization="RMSNorm"
    )
    parts = layer.submodules
    parts.input_layernorm = parts.pre_mlp_layernorm = Norm
    inner = parts.self_attention.submodules
    inner.core_attention = VarlenAttention if attention is Attention.VARLEN else PackedAttention
    if config.qk_layernorm:
        inner.q_layernorm = inner.k_layernorm = Norm
    return layer


def zigzag(length: int, cp: int) -> Tensor:
    """`held_positions` of each of `cp` context-parallel ranks `[cp, length / cp]`."""
    return torch.from_numpy(np.stack([held_positions(length, rank, cp) for rank in range(cp)]))


class Norm:
    """Makes an RMSNorm that knows sequence parallelism. Megatron takes a class here, no function."""

    def __new__(cls, config: TransformerConfig, hidden_size: int, eps: float = 1e-5, **_: Any) -> nn.RMSNorm:  # type: ignore[misc]
        norm = nn.RMSNorm(hidden_size, eps=eps, dtype=config.params_dtype, device=device())
        # Each rank sees a part of the sequence: Megatron adds up the gradients of what is marked so.
        norm.weight.sequence_parallel = config.sequence_parallel  # type: ignore[attr-defined]
        return norm


class PackedAttention(MegatronModule):  # type: ignore[misc]
    """Causal attention over `[S, B, h, d]`, or over packed sequences `[T, h, d]`.

    With context parallelism keys and values are gathered from all ranks, queries are not: memory for
    them grows with the full sequence, that for attention with a rank's part.
    """

    def __init__(
        self,
        config: TransformerConfig,
        layer_number: int,
        attn_mask_type: Any,
        attention_type: str,
        softmax_scale: float | None = None,
        pg_collection: ProcessGroupCollection | None = None,
        **_: Any,
    ) -> None:
        super().__init__(config=config)
        self.scale = softmax_scale
        groups = pg_collection or ProcessGroupCollection.use_mpu_process_groups(required_pgs=["cp"])
        self.context_group = groups.cp

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Tensor | None,
        attn_mask_type: Any = None,
        attention_bias: Tensor | None = None,
        packed_seq_params: Any = None,
        **_: Any,
    ) -> Tensor:
        """`[S, B, h x d]` or `[T, h x d]`. There is no mask but the causal one, whatever is passed."""
        cp = self.context_group.size()
        if cp > 1:
            key, value = (
                gather_from_sequence_parallel_region(
                    part.contiguous(), tensor_parallel_output_grad=True, group=self.context_group
                )
                for part in (key, value)
            )
        if packed_seq_params is None:
            padded = (part.transpose(0, 1) for part in (query, key, value))
            return self._attend(*padded, length=key.shape[0]).transpose(0, 1).flatten(2)
        return self._attend_packed(query, key, value, packed_seq_params).flatten(1)

    def _attend_packed(self, query: Tensor, key: Tensor, value: Tensor, packed: PackedSeqParams) -> Tensor:
        """Equally long sequences at once: short ones are many, and a call costs more than they do."""
        cp = self.context_group.size()
        lengths = packed.cu_seqlens_q.diff().tolist()
        held = [length // cp for length in lengths]
        queries = torch.split(query, held)
        keys, values = (_by_sequence(part, held, cp) for part in (key, value))
        of_length: dict[int, list[int]] = {}
        for index, length in enumerate(lengths):
            of_length.setdefault(length, []).append(index)
        outputs: dict[int, Tensor] = {}
        for length, members in of_length.items():
            together = self._attend(
                *(_stacked(parts, members) for parts in (queries, keys, values)), length=length
            )
            outputs |= zip(members, together.unbind(), strict=True)
        return torch.cat([outputs[index] for index in range(len(lengths))])

    def _attend(self, query: Tensor, key: Tensor, value: Tensor, *, length: int) -> Tensor:
        """Sequences of one length, `[B, S, h, d]`; of keys and values each rank's part in turn."""
        cp, mask = self.context_group.size(), None
        if cp > 1:
            positions = zigzag(length, cp).to(query.device)
            mine = positions[self.context_group.rank()]
            mask = mine[:, None] >= positions.flatten()[None, :]
        output: Tensor = scaled_dot_product_attention(
            query.transpose(1, 2),
            key.transpose(1, 2),
            value.transpose(1, 2),
            attn_mask=mask,
            is_causal=mask is None,
            scale=self.scale,
            enable_gqa=True,
        )
        return output.transpose(1, 2)


class VarlenAttention(PackedAttention):
    """All packed sequences in one call of FlashAttention: 16 bits, on a GPU, no context parallelism."""

    def _attend_packed(self, query: Tensor, key: Tensor, value: Tensor, packed: PackedSeqParams) -> Tensor:
        ends, longest = packed.cu_seqlens_q, packed.max_seqlen_q
        causal: dict[str, Any] = {"window_size": (-1, 0), "scale": self.scale, **_GROUPED}
        output = varlen_attn(query, key, value, ends, ends, longest, longest, **causal)
        assert isinstance(output, Tensor)
        return output


_GROUPED = {"enable_gqa": True} if "enable_gqa" in signature(varlen_attn).parameters else {}
"""PyTorch 2.11 takes fewer keys than queries without an option."""


def _by_sequence(gathered: Tensor, held: list[int], cp: int) -> Sequence[Tensor]:
    """`[U, h, d]`, rank by rank, cut into sequences, each rank by rank."""
    if cp == 1:
        return torch.split(gathered, held)
    ranks = (torch.split(part, held) for part in gathered.chunk(cp))
    return [torch.cat(parts) for parts in zip(*ranks, strict=True)]


def _stacked(parts: Sequence[Tensor], members: list[int]) -> Tensor:
    if len(members) == 1:
        return parts[members[0]][None]
    return torch.stack([parts[index] for index in members])
