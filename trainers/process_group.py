"""Where the ranks of one trainer meet: a `torch.distributed` process group that keeps to itself,
its collective calls, which every rank makes, and parameters that ranks shard (`DTensor`) or hold in full.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import HashStore, Store
from torch.distributed.tensor import DTensor, distribute_tensor

from envsdk.base.net.rendezvous import address_towards, host_store, interface_of, join_store
from envsdk.contracts.failures import StorageError
from envsdk.contracts.trainer import TrainerRank

MEETING_TIMEOUT_S = 300.0
"""How long a rank waits for the others to load their libraries and come."""


def join_process_group(rank: TrainerRank) -> torch.device:
    """Make the default process group of all ranks; returns this rank's device when every rank has come.

    The device is the GPU of the rank's number on its machine, with NCCL, or the CPU where there is none.

    Nothing listens but on `master_address` and its network: `init_method="tcp://..."` would let the store
    listen on all addresses of the machine, and gloo would take whatever the host's name stands for.
    """
    interface = interface_of(address_towards(rank.master_address, rank.master_port))
    if interface is not None:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", interface)
        os.environ.setdefault("NCCL_SOCKET_IFNAME", interface)
    device, backend = torch.device("cpu"), "gloo"
    if torch.cuda.is_available():
        # Objects (metrics, log-probabilities) are on the CPU and go by gloo.
        device, backend = torch.device("cuda", rank.local_rank), "cpu:gloo,cuda:nccl"
        torch.cuda.set_device(device)
    dist.init_process_group(
        backend,
        store=_store(rank),
        rank=rank.rank,
        world_size=rank.world_size,
    )
    return device


def _store(rank: TrainerRank) -> Store:
    if rank.world_size == 1:
        return HashStore()
    timeout = timedelta(seconds=MEETING_TIMEOUT_S)
    address, port, world_size = rank.master_address, rank.master_port, rank.world_size
    if rank.rank:
        return join_store(address, port, world_size, timeout=timeout, wait_for_all=True)
    return host_store(address, port, world_size, timeout=timeout, wait_for_all=True)


Found = TypeVar("Found")


def all_gather(found: Found) -> list[Found]:
    """The values of all ranks, in their order, on every rank; they are pickled on the way."""
    everything: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(everything, found)
    return everything


def raise_on_all_ranks(action: Callable[[], Found]) -> Found:
    """Return the result of `action`; raise a StorageError of one rank on all, so that none waits for it."""
    failure: StorageError | None = None
    try:
        result = action()
    except StorageError as error:
        failure = error
    for message in all_gather(None if failure is None else str(failure)):
        if message is not None:
            raise StorageError(message) from failure
    return result


def on_first_rank(action: Callable[[], None]) -> None:
    """`action` on rank 0, while the others wait; its StorageError is raised on all."""
    raise_on_all_ranks(action if dist.get_rank() == 0 else lambda: None)


def full_tensor(tensor: Tensor) -> Tensor:
    """The tensor in full on every rank; all ranks make the call."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def placed_like(parameter: Tensor, values: Tensor) -> Tensor:
    """A copy of `values` on the device of `parameter`, sharded like it; each rank cuts out its own part.

    Scalars are not sharded.
    """
    if isinstance(parameter, DTensor) and not isinstance(values, DTensor) and values.ndim:
        mesh, placements = parameter.device_mesh, parameter.placements
        values = distribute_tensor(values.to(parameter.device), mesh, placements, src_data_rank=None)
    return torch.clone(values.to(parameter.device))
