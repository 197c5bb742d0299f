"""Stores for `torch.distributed` that listen on one address, not on every address of the machine."""

from __future__ import annotations

import secrets
import socket
from contextlib import suppress
from datetime import timedelta
from typing import TYPE_CHECKING

import psutil

if TYPE_CHECKING:
    from torch._C._distributed_c10d import TCPStore


def free_port(address: str) -> int:
    """A port to listen on later. It lies below the range that systems assign to outgoing connections, so it
    is unlikely to be taken meanwhile."""
    while True:
        port = 20_000 + secrets.randbelow(12_000)
        with suppress(OSError), socket.create_server((address, port)):
            return port


def host_store(
    address: str, port: int, world_size: int, *, timeout: timedelta, wait_for_all: bool
) -> TCPStore:
    """Start the store, listening only on `address`. Port 0 takes a free port; see `TCPStore.port`.

    With `wait_for_all` it returns when all processes have joined. `init_method="tcp://..."` would listen on
    all addresses of the machine.
    """
    from torch._C._distributed_c10d import TCPStore

    listener = socket.create_server((address, port), backlog=128)
    port = int(listener.getsockname()[1])
    return TCPStore(
        address,
        port,
        world_size,
        is_master=True,
        wait_for_workers=wait_for_all,
        timeout=timeout,
        master_listen_fd=listener.detach(),
    )


def join_store(
    address: str, port: int, world_size: int, *, timeout: timedelta, wait_for_all: bool
) -> TCPStore:
    """Join the store at `address`, waiting until it is up. All processes must pass the same
    `wait_for_all`."""
    from torch._C._distributed_c10d import TCPStore

    return TCPStore(
        address, port, world_size, is_master=False, wait_for_workers=wait_for_all, timeout=timeout
    )


def address_towards(address: str, port: int) -> str:
    """This machine's own address on the network that leads to `address`."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        # Connecting a datagram socket sends nothing; it only selects the route.
        probe.connect((address, port or 1))
        return str(probe.getsockname()[0])


def interface_of(address: str) -> str | None:
    """The network interface that has `address`; None when there is none (behind address translation)."""
    for name, addresses in psutil.net_if_addrs().items():
        if any(known.address == address for known in addresses):
            return str(name)
    return None
