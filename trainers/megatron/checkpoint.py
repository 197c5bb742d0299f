"""Megatron's state in the checkpoint format of all trainers: full tensors of what is trained under Hugging
Face names.

    save:  each tensor is gathered from the ranks that shard it, and written by one of them
    load:  each rank reads the tensors it holds a part of, and cuts its part out

So what was written under one layout is read under any other, and by the other trainers too; nothing is
pickled. Every rank makes each call, with the same folder.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import get_args

import torch
import torch.distributed as dist
from megatron.core import parallel_state
from torch import Tensor, nn

from envsdk.contracts.failures import ConfigurationError, StorageError
from envsdk.trainers.megatron import hf_weights
from envsdk.trainers.megatron.device import device
from envsdk.trainers.megatron.optimizer import Kind, ParallelOptimizer
from envsdk.trainers.process_group import all_gather, on_first_rank, raise_on_all_ranks
from envsdk.trainers.torch_checkpoint import StoredCheckpoint, write_state, write_tensors

_HEAD = "value_head."


def save(
    folder: Path,
    chunks: Sequence[nn.Module],
    optimizer: ParallelOptimizer,
    *,
    vocab_size: int,
    hidden_size: int,
    with_value_head: bool,
) -> None:
    """Each rank writes an equal share. StorageError, on all ranks, names what could not be written."""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    written = [0] * world_size
    mine: dict[str, Tensor] = {}
    optimizer.finish_param_gather()
    for name, tensor in _whole_tensors(chunks, optimizer, vocab_size, hidden_size, with_value_head):
        writer = written.index(min(written))
        written[writer] += tensor.numel()
        if writer == rank:
            mine[name] = tensor.cpu()
    part = f"-{rank + 1}-of-{world_size}" if world_size > 1 else ""
    digests = all_gather(raise_on_all_ranks(lambda: write_tensors(folder, mine, part=part)))
    merged = {name: digest for part_digests in digests for name, digest in part_digests.items()}
    on_first_rank(lambda: write_state(folder, merged, num_optimizer_steps=optimizer.num_steps))


def load(folder: Path, chunks: Sequence[nn.Module], optimizer: ParallelOptimizer) -> None:
    """StorageError, on all ranks, names a missing or damaged file, or one of another model.

    Nothing has changed then.
    """
    stored = raise_on_all_ranks(lambda: StoredCheckpoint(folder))
    raise_on_all_ranks(lambda: stored.verify(stored.files[dist.get_rank() :: dist.get_world_size()]))
    raise_on_all_ranks(lambda: _check(stored, chunks))
    head = _value_head(chunks)
    steps = {name: int(stored[name]) for name in stored if name.startswith("step/")}
    is_fresh = not steps  # it was saved before the first step
    for kind in get_args(Kind):
        section = _Section(stored, kind, zeros=is_fresh and kind != "weight")
        hf_weights.load(chunks, section, partial(optimizer.put, kind=kind), trained_only=True)
        for name, parameter in head.items():
            optimizer.put(parameter, section[name], kind=kind)
    for name, parameter in head.items():
        optimizer.put_num_steps(parameter, steps.get(f"step/{name}", 0))
    of_policy = max((count for name, count in steps.items() if _HEAD not in name), default=0)
    in_head = set(head.values())
    for chunk in chunks:
        for parameter in chunk.parameters():
            if parameter not in in_head:
                optimizer.put_num_steps(parameter, of_policy)
    optimizer.num_steps = stored.num_optimizer_steps
    optimizer.zero_grad()


class _Section(Mapping[str, Tensor]):
    """The tensors of one kind in a checkpoint, under the names of the weights."""

    def __init__(self, stored: StoredCheckpoint, kind: Kind, *, zeros: bool = False) -> None:
        self._stored, self._kind, self._zeros = stored, kind, zeros

    def __getitem__(self, name: str) -> Tensor:
        if self._zeros:
            return torch.zeros_like(self._stored[f"weight/{name}"])
        return self._stored[f"{self._kind}/{name}"]

    def __contains__(self, name: object) -> bool:
        return f"weight/{name}" in self._stored

    def __iter__(self) -> Iterator[str]:
        return (name.removeprefix("weight/") for name in self._stored if name.startswith("weight/"))

    def __len__(self) -> int:
        return sum(1 for _ in self)


def _check(stored: StoredCheckpoint, chunks: Sequence[nn.Module]) -> None:
    section = _Section(stored, "weight")
    try:
        hf_weights.load(chunks, section, lambda parameter, values: None, trained_only=True)
        for name, parameter in _value_head(chunks).items():
            if section[name].shape != parameter.shape:
                raise ConfigurationError(f"{name} is {list(section[name].shape)}")
    except (KeyError, ConfigurationError) as error:
        what = f"it has no {error.args[0]}" if isinstance(error, KeyError) else str(error)
        raise StorageError(
            f"the checkpoint in {stored.folder} is of another model: {what.removeprefix('pretrain: ')}"
        ) from error


def _whole_tensors(
    chunks: Sequence[nn.Module],
    optimizer: ParallelOptimizer,
    vocab_size: int,
    hidden_size: int,
    with_value_head: bool,
) -> Iterator[tuple[str, Tensor]]:
    """`weight/NAME`, `exp_avg/NAME`, `exp_avg_sq/NAME`, `step/NAME`, float32: the same on every rank."""
    head = _value_head(chunks)
    in_head = set(head.values())
    own = [p for chunk in chunks for p in chunk.parameters() if p not in in_head]
    of_policy = max(all_gather(max((optimizer.num_steps_of(p) for p in own), default=0)))
    of_head = max(all_gather(max((optimizer.num_steps_of(p) for p in in_head), default=0)))
    for kind in get_args(Kind):
        full = partial(optimizer.full_tensor, kind=kind)
        for name, tensor in hf_weights.export(chunks, vocab_size, full, trained_only=True):
            yield f"{kind}/{name}", tensor
            if kind == "weight":
                yield f"step/{name}", torch.tensor(float(of_policy))
    if not with_value_head:
        return
    stages = parallel_state.get_pipeline_model_parallel_group()
    for name, shape in (("weight", (1, hidden_size)), ("bias", (1,))):
        for kind in get_args(Kind):
            parameter = head.get(_HEAD + name)
            tensor = (
                torch.empty(shape, device=device())
                if parameter is None
                else optimizer.full_tensor(parameter, kind)
            )
            dist.broadcast(tensor, dist.get_global_rank(stages, stages.size() - 1), group=stages)
            yield f"{kind}/{_HEAD}{name}", tensor
        yield f"step/{_HEAD}{name}", torch.tensor(float(of_head))


def _value_head(chunks: Sequence[nn.Module]) -> dict[str, nn.Parameter]:
    """Its parameters, by name; none before the last pipeline stage."""
    head = getattr(hf_weights.unwrapped(chunks[-1]), "value_head", None)
    return {} if head is None else {_HEAD + name: p for name, p in head.named_parameters()}
