"""Weights of a Megatron model under their Hugging Face names, in and out.

    load:    a rank reads what it holds a part of, puts it together as Megatron lays it out, and cuts its part
    export:  parts are gathered, taken apart, and sent to all ranks, one parameter at a time

Names are those on disk: of a mixture every expert has its own matrices.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from megatron.core import parallel_state
from megatron.core.tensor_parallel import ColumnParallelLinear, RowParallelLinear
from megatron.core.transformer import TransformerConfig
from megatron.core.utils import get_attr_wrapped_model
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from envsdk.contracts.failures import ConfigurationError
from envsdk.trainers.megatron.device import device
from envsdk.trainers.megatron.weight_layouts import EMBEDDING, HEAD, Layout, name_in, weights_of


class FolderWeights(Mapping[str, Tensor]):
    """Weights in a Hugging Face folder, each read when it is asked for.

    ConfigurationError when the folder has no readable safetensors, or not the asked weight.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._files: dict[str, Any] = {}
        try:
            for path in sorted(folder.glob("*.safetensors")):
                file: Any = safe_open(path, framework="pt")
                self._files |= dict.fromkeys(file.keys(), file)
        except (OSError, SafetensorError) as error:
            raise ConfigurationError(f"pretrain: cannot read the weights in {folder}: {error}") from error
        if not self._files:
            raise ConfigurationError(
                f"pretrain: {folder} has no model.safetensors, nor another file of weights; save the "
                "model with `save_pretrained`"
            )

    def __getitem__(self, name: str) -> Tensor:
        if name not in self._files:
            raise ConfigurationError(
                f"pretrain: {self.folder} has no weight {name}: it is not complete, or of another model than "
                "its config.json says"
            )
        tensor: Tensor = self._files[name].get_tensor(name)
        return tensor

    def __contains__(self, name: object) -> bool:
        return name in self._files

    def __iter__(self) -> Iterator[str]:
        return iter(self._files)

    def __len__(self) -> int:
        return len(self._files)


@torch.no_grad()
def load(
    chunks: Sequence[nn.Module],
    tensors: Mapping[str, Tensor],
    put: Callable[..., object] = Tensor.copy_,
    *,
    trained_only: bool = False,
) -> None:
    """Fill this rank's pieces of the model; no communication. KeyError or, from a `FolderWeights`,
    ConfigurationError names a weight that is missing; ConfigurationError one of another shape.

    `put(parameter, values)` gets what belongs into each parameter, or into each that is trained.
    """
    for held in _held(chunks, with_tied_head=True, trained_only=trained_only):
        names = held.names
        if names == (HEAD,) and (held.is_tied_head or HEAD not in tensors):
            names = (EMBEDDING,)
        parameter = held.parameter
        parts = [tensors[name] for name in names]
        try:
            whole = held.layout.join_parts(held.config, parts)
            if held.is_vocabulary:
                missing = len(parameter) * held.group.size() - len(whole)
                whole = (
                    nn.functional.pad(whole, (0, 0, 0, missing))
                    if 0 <= missing < held.group.size()
                    else whole
                )
            shard = held.layout.shard(whole, held.group.size())[held.group.rank()]
            put(parameter, _of_shape(shard, parameter.shape))
        except (RuntimeError, ValueError) as error:
            shapes = ", ".join(f"{name} {list(part.shape)}" for name, part in zip(names, parts, strict=True))
            raise ConfigurationError(
                f"pretrain: the shape of {shapes} is not what the model's config.json says ({error})"
            ) from error


def _of_shape(shard: Tensor, shape: torch.Size) -> Tensor:
    if shard.shape != shape:
        raise ValueError(f"a rank's part is {list(shard.shape)}, expected {list(shape)}")
    return shard


@torch.no_grad()
def export(
    chunks: Sequence[nn.Module],
    vocab_size: int,
    of: Callable[[nn.Parameter], Tensor] = Tensor.detach,
    *,
    trained_only: bool = False,
) -> Iterator[tuple[str, Tensor]]:
    """Every weight of the model, or that is trained, in full, on this rank's device: the same on every rank,
    in the same order.

    Collective: all ranks go through all of it. Tensors are copies in the model's precision. A tied
    output embedding comes under the input embedding's name alone. `of(parameter)` may stand for another
    tensor of the parameter's shape, in float32, that is to be exported in its place.
    """
    dtype = None if of is Tensor.detach else torch.float32
    stages = parallel_state.get_pipeline_model_parallel_group()
    experts = parallel_state.get_expert_model_parallel_group()
    mine = list(_held(chunks, with_tied_head=False, trained_only=trained_only))
    described = _all_gather_objects([_described(held, vocab_size, dtype) for held in mine], stages)
    # In the order of the expert ranks: the same weights, of other experts.
    by_expert_rank = _all_gather_objects(described, experts)
    for stage in range(stages.size()):
        for index, weight in enumerate(described[stage]):
            parts: list[Tensor] | None = None
            if stages.rank() == stage:
                parts = _whole(mine[index], of, vocab_size)
            for place, shape in enumerate(weight.shapes):
                if parts is None:
                    part = torch.empty(shape, dtype=weight.dtype, device=device())
                else:
                    part = parts[place].contiguous()
                if stages.size() > 1:
                    dist.broadcast(part, dist.get_global_rank(stages, stage), group=stages)
                if not weight.is_expert:
                    yield weight.names[place], part
                    continue
                of_experts = _all_gather_tensors(part, experts)
                for rank, expert in enumerate(of_experts):
                    yield by_expert_rank[rank][stage][index].names[place], expert


@dataclass(frozen=True, slots=True, kw_only=True)
class LinearLayer:
    """A layer of Megatron's that computes with one or several of the model's matrices."""

    module: Any
    names: list[str]
    """The model's modules with these matrices."""
    layout: Layout
    num_rows: list[int]
    """This rank's rows of each matrix."""


def linear_layers(chunks: Sequence[nn.Module]) -> Iterator[LinearLayer]:
    """Those in the model's layers, but experts and their routers."""
    for chunk in chunks:
        gpt = unwrapped(chunk)
        for held in _held([chunk], with_tied_head=False):
            module = gpt.get_submodule(held.megatron_name.rpartition(".")[0])
            is_linear = isinstance(module, ColumnParallelLinear | RowParallelLinear)
            if not is_linear or held.is_expert or held.is_vocabulary or held.parameter.ndim < 2:
                continue
            ranks = 1 if isinstance(module, RowParallelLinear) else held.group.size()
            yield LinearLayer(
                module=module,
                names=[name.removesuffix(".weight") for name in held.names],
                layout=held.layout,
                num_rows=[shape[0] // ranks for shape in _described(held, 0, None).shapes],
            )


def unwrapped(chunk: nn.Module) -> Any:
    """The `GPTModel` inside its wrappers for precision and data parallelism."""
    return get_attr_wrapped_model(chunk, "decoder", return_model_obj=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Held:
    """A parameter of which this rank holds a part, or all."""

    megatron_name: str
    names: tuple[str, ...]
    layout: Layout
    parameter: nn.Parameter
    group: Any
    """The ranks that shard it."""
    config: TransformerConfig
    is_expert: bool
    is_tied_head: bool

    @property
    def is_vocabulary(self) -> bool:
        return self.names[0] in (EMBEDDING, HEAD)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Described:
    """The description that other ranks need to receive a parameter."""

    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    dtype: torch.dtype
    is_expert: bool


def _held(
    chunks: Iterable[nn.Module], *, with_tied_head: bool, trained_only: bool = False
) -> Iterator[_Held]:
    """This rank's parameters, but those of a value head; a tied head's copy on a last stage if asked for."""
    for chunk in chunks:
        gpt = unwrapped(chunk)
        config = gpt.config
        first_expert = 0
        if config.num_moe_experts:
            local = config.num_moe_experts // config.expert_model_parallel_size
            first_expert = parallel_state.get_expert_model_parallel_rank() * local
        for name, parameter in gpt.named_parameters():
            if name.startswith("value_head.") or (trained_only and not parameter.requires_grad):
                continue
            is_tied_head = name == "output_layer.weight" and gpt.share_embeddings_and_output_weights
            if is_tied_head and not with_tied_head:
                continue
            names, layout, indices = weights_of(name)
            if indices:
                indices[0] = gpt.decoder.layers[indices[0]].layer_number - 1
            if is_expert := len(indices) == 2:
                indices[1] += first_expert
            group = (
                parallel_state.get_expert_tensor_parallel_group()
                if is_expert
                else parallel_state.get_tensor_model_parallel_group()
            )
            yield _Held(
                megatron_name=name,
                names=tuple(name_in(gpt.hf_model_type, each.format(*indices)) for each in names),
                layout=layout,
                parameter=parameter,
                group=group,
                config=config,
                is_expert=is_expert,
                is_tied_head=is_tied_head,
            )


def _whole(held: _Held, of: Callable[[nn.Parameter], Tensor], vocab_size: int) -> list[Tensor]:
    shards = _all_gather_tensors(of(held.parameter), held.group)
    whole = held.layout.join_shards(shards)
    return held.layout.part(held.config, whole[:vocab_size] if held.is_vocabulary else whole)


def _described(held: _Held, vocab_size: int, dtype: torch.dtype | None) -> _Described:
    shards = [torch.empty_like(held.parameter, device="meta")] * held.group.size()
    whole = held.layout.join_shards(shards)
    parts = held.layout.part(held.config, whole[:vocab_size] if held.is_vocabulary else whole)
    return _Described(
        names=held.names,
        shapes=tuple(tuple(part.shape) for part in parts),
        dtype=dtype or held.parameter.dtype,
        is_expert=held.is_expert,
    )


def _all_gather_tensors(part: Tensor, group: Any) -> list[Tensor]:
    if group.size() == 1:
        return [part.clone()]
    parts = [torch.empty_like(part) for _ in range(group.size())]
    dist.all_gather(parts, part.contiguous(), group=group)
    return parts


def _all_gather_objects(found: Any, group: Any) -> list[Any]:
    everything: list[Any] = [None] * group.size()
    dist.all_gather_object(everything, found, group=group)
    return everything
