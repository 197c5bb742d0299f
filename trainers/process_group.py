"""Where the ranks of one trainer meet: a `torch.distributed` process group that keeps to itself."""

from __future__ import annotations

import os
import socket
from datetime import timedelta

import psutil
import torch.distributed as dist
from torch._C._distributed_c10d import HashStore, Store, TCPStore

from envsdk.training import TrainerRank

MEETING_TIMEOUT_S = 300.0
"""How long a rank waits for the others to load their libraries and come."""


def join_process_group(rank: TrainerRank, *, backend: str) -> None:
    """Make the default process group of all ranks; returns when everyone has come.

    Nothing listens but on `master_address` and its network: `init_method="tcp://..."` would let the store
    listen on all addresses of the machine, and gloo would take whatever the host's name stands for.
    """
    interface = _interface_of(_own_address(rank))
    if interface is not None:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", interface)
        os.environ.setdefault("NCCL_SOCKET_IFNAME", interface)
    dist.init_process_group(
        backend,
        store=_store(rank),
        rank=rank.rank,
        world_size=rank.world_size,
    )


def _store(rank: TrainerRank) -> Store:
    if rank.world_size == 1:
        return HashStore()
    timeout = timedelta(seconds=MEETING_TIMEOUT_S)
    address, port = rank.master_address, rank.master_port
    if rank.rank:
        return TCPStore(address, port, rank.world_size, is_master=False, timeout=timeout)
    listener = socket.create_server((address, port), backlog=128)
    return TCPStore(
        address, port, rank.world_size, is_master=True, timeout=timeout, master_listen_fd=listener.detach()
    )


def _own_address(rank: TrainerRank) -> str:
    """This machine's address on the network that leads to rank 0."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        # Connecting a datagram socket sends nothing; it only chooses the way.
        probe.connect((rank.master_address, rank.master_port or 1))
        return str(probe.getsockname()[0])


def _interface_of(address: str) -> str | None:
    for name, addresses in psutil.net_if_addrs().items():
        if any(known.address == address for known in addresses):
            return str(name)
    return None
