"""Low-rank adapters in Megatron's layers, with the torch trainer's parameters under PEFT's names.

Megatron computes several of a model's matrices in one product; each has its own A and B all the same. Ranks
that shard a layer's outputs shard the rows of B, those that shard its inputs the columns of A; the other half
is on all of them. Between the two halves tokens are `rank` numbers wide: they are what ranks exchange.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
from megatron.core import parallel_state
from megatron.core.tensor_parallel import (
    RowParallelLinear,
    copy_to_tensor_model_parallel_region,
    gather_from_sequence_parallel_region,
    reduce_from_tensor_model_parallel_region,
    reduce_scatter_to_sequence_parallel_region,
    set_tensor_model_parallel_attributes,
)
from torch import Tensor, nn

from envsdk.trainers.megatron import hf_weights
from envsdk.trainers.megatron.device import device
from envsdk.trainers.training_args import LoRAArgs
from envsdk.weights.lora import A_SUFFIX, B_SUFFIX, Adapter

_INFIX = ".lora_"


def adapt(chunks: Sequence[nn.Module], args: LoRAArgs, *, seed: int) -> None:
    """Freeze the loaded model and put an adapter in. Every rank calls it."""
    is_all = args.target_modules == "all-linear"
    for chunk in chunks:
        chunk.requires_grad_(False)
        gpt = hf_weights.unwrapped(chunk)
        if gpt.pre_process and gpt.config.recompute_granularity is not None:
            # What is computed again is learned from where an input has a gradient.
            gpt.embedding.register_forward_hook(lambda module, inputs, output: output.requires_grad_())
    for layer in list(hf_weights.linear_layers(chunks)):
        wanted = [is_all or any(_ends(name, end) for end in args.target_modules) for name in layer.names]
        if any(wanted):
            layer.module.add_module("lora", _LayerAdapter(layer, wanted, args, seed))


def adapter_of(chunks: Sequence[nn.Module], args: LoRAArgs) -> Iterator[tuple[str, Tensor]]:
    """As `LoRA.halves`, float32, on every rank; all go through all of it."""
    for name, half in hf_weights.export(chunks, 0, trained_only=True):
        module, _, rest = name.partition(_INFIX)
        if rest.startswith("A"):
            yield module + A_SUFFIX, half.float()
        else:
            yield module + B_SUFFIX, half.float() * (args.scaled_alpha / args.rank)


def merged(
    chunks: Sequence[nn.Module], args: LoRAArgs, weights: Iterable[tuple[str, Tensor]]
) -> Iterator[tuple[str, Tensor]]:
    """`weights` as those of a model without adapter."""
    adapter = Adapter.read(adapter_of(chunks, args), {})
    return adapter.merged((name, weight) for name, weight in weights if _INFIX not in name)


class _LayerAdapter(nn.Module):
    """The adapters of the matrices that one layer computes with: `A0`, `B0` of the first, and so on."""

    def __init__(
        self, layer: hf_weights.LinearLayer, wanted: Sequence[bool], args: LoRAArgs, seed: int
    ) -> None:
        super().__init__()
        linear = layer.module
        self._config, self._layout = linear.config, layer.layout
        self._scaling = args.scaled_alpha / args.rank
        self._takes_parts = isinstance(linear, RowParallelLinear)
        self._num_rows = layer.num_rows
        ranks = parallel_state.get_tensor_model_parallel_world_size()
        own = parallel_state.get_tensor_model_parallel_rank()
        width = linear.input_size
        for place, name in enumerate(layer.names):
            if not wanted[place]:
                continue
            generator = torch.Generator().manual_seed(random.Random(f"{seed} {name}").getrandbits(63))
            bound = 1 / math.sqrt(width)  # as PEFT's
            half_a = torch.empty(args.rank, width).uniform_(-bound, bound, generator=generator)
            self._add(f"A{place}", half_a.chunk(ranks, 1)[own] if self._takes_parts else half_a, 1)
            self._add(f"B{place}", torch.zeros(self._num_rows[place], args.rank), 0)
        linear.register_forward_hook(self._add_output)

    def _add(self, name: str, values: Tensor, sharded_along: int) -> None:
        half = nn.Parameter(values.to(device(), self._config.params_dtype).contiguous())
        is_sharded = self._takes_parts == name.startswith("A")
        if is_sharded:
            set_tensor_model_parallel_attributes(half, True, sharded_along, 1)
        # Where each rank sees a part of the sequence, Megatron adds up the gradients of what is marked so.
        half.sequence_parallel = self._config.sequence_parallel and not is_sharded  # type: ignore[attr-defined]
        self.register_parameter(name, half)

    def _add_output(
        self, linear: nn.Module, inputs: tuple[Tensor, ...], output: tuple[Tensor, Any]
    ) -> tuple[Tensor, Any]:
        halves = dict(self.named_parameters())
        a = torch.cat([half for name, half in halves.items() if name.startswith("A")])
        blocks = [halves.get(f"B{place}", a.new_zeros(rows, 0)) for place, rows in enumerate(self._num_rows)]
        diagonal: Tensor = torch.block_diag(*blocks)  # type: ignore[no-untyped-call]
        b = self._layout.join_parts(self._config, list(torch.split(diagonal, self._num_rows)))
        low = self._exchanged(nn.functional.linear(inputs[0], a)) * self._scaling
        return output[0] + nn.functional.linear(low, b), output[1]

    def _exchanged(self, low: Tensor) -> Tensor:
        """What is `rank` wide, of the tokens that this rank needs, whole; its gradient too."""
        if self._takes_parts:
            if self._config.sequence_parallel:
                return reduce_scatter_to_sequence_parallel_region(low)  # type: ignore[no-any-return]
            return reduce_from_tensor_model_parallel_region(low)  # type: ignore[no-any-return]
        if self._config.sequence_parallel:
            return gather_from_sequence_parallel_region(low)  # type: ignore[no-any-return]
        return copy_to_tensor_model_parallel_region(low)  # type: ignore[no-any-return]


def _ends(name: str, end: str) -> bool:
    return name == end or name.endswith(f".{end}")
