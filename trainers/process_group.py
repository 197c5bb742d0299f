"""Where the ranks of one trainer meet: a `torch.distributed` process group that keeps to itself."""

from __future__ import annotations

import os
from datetime import timedelta

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import HashStore, Store

from envsdk.base.net.rendezvous import address_towards, host_store, interface_of, join_store
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
