"""The group that weights are broadcast in: the trainer's first rank, which is rank 0, and the engines.

    rank 0:  host -> (gather)* -> broadcast* -> close
    engine:  join -> receive* -> close

It is separate from the ranks' own process group and lasts for one update: a member that dies breaks it for
all, and the next update forms a group of the survivors. Gloo, because trainers give their weights in memory
of the CPU; the sender's bytes leave once, engines pass them on.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import torch
from torch._C._distributed_c10d import TCPStore
from torch.distributed import ProcessGroupGloo, Work

from envsdk.inference.weight_buckets import Buffer, UpdateInterrupted
from envsdk.net.rendezvous import address_towards, host_store, interface_of, join_store

TIMEOUT = timedelta(seconds=30)
"""How long a member waits for one that is there but does not answer; all members have the same."""


class WeightGroup:
    """One process's membership."""

    def __init__(
        self, store: TCPStore, address: str, *, rank: int, world_size: int, timeout: timedelta = TIMEOUT
    ) -> None:
        self._store: TCPStore | None = store
        self._address = address
        self._rank = rank
        self._world_size = world_size
        self._timeout = timeout
        self._group: Any = None  # a ProcessGroupGloo, of which PyTorch's types know half
        self._buffer = torch.empty(0, dtype=torch.uint8)

    @classmethod
    def host(cls, address: str, *, world_size: int, timeout: timedelta = TIMEOUT) -> WeightGroup:
        """Rank 0's; engines find it at `address` and `port`."""
        store = host_store(address, 0, world_size, timeout=timeout, wait_for_all=False)
        return cls(store, address, rank=0, world_size=world_size, timeout=timeout)

    @classmethod
    def join(
        cls, address: str, port: int, *, rank: int, world_size: int, timeout: timedelta = TIMEOUT
    ) -> WeightGroup:
        """An engine's; waits for the others. UpdateInterrupted."""
        try:
            store = join_store(address, port, world_size, timeout=timeout, wait_for_all=False)
            store.set(f"here/{rank}", "")
            own = address_towards(address, port)
            group = cls(store, own, rank=rank, world_size=world_size, timeout=timeout)
            group._connect()
        except (RuntimeError, OSError) as error:
            raise UpdateInterrupted(f"the trainer cannot be met for the weights: {error}") from error
        return group

    @property
    def port(self) -> int:
        assert self._store is not None, "closed"
        return int(self._store.port)

    def gather(self) -> bool:
        """Whether all engines are here, and rank 0 connected with them. UpdateInterrupted."""
        assert self._store is not None, "closed"
        if self._group is None and self._store.check([f"here/{r}" for r in range(1, self._world_size)]):
            try:
                self._connect()
            except RuntimeError as error:
                raise UpdateInterrupted(f"an engine was lost on the way to the others: {error}") from error
        return self._group is not None

    def broadcast(self, data: Buffer) -> Work:
        """Start sending `data`, which stays as it is until the engines say they have it."""
        assert self._group is not None, "gather first"
        work: Work = self._group.broadcast(torch.from_numpy(data), 0)
        return work

    def receive(self, num_bytes: int) -> Buffer:
        """The next broadcast's `num_bytes`; valid until the next call. UpdateInterrupted."""
        assert self._group is not None
        if len(self._buffer) < num_bytes:
            self._buffer = torch.empty(num_bytes, dtype=torch.uint8)
        part = self._buffer[:num_bytes]
        try:
            self._group.broadcast(part, 0).wait()
        except RuntimeError as error:
            raise UpdateInterrupted(f"the broadcast of weights broke: {error}") from error
        return part.numpy()

    def close(self) -> None:
        """Idempotent. Members that wait for this one get an error."""
        if self._group is not None:
            self._group.abort()
            self._group = None
        # An engine that still waits for one that died on the way meets nobody any more, and hears of it.
        self._store = None

    def _connect(self) -> None:
        gloo: Any = ProcessGroupGloo
        options = gloo._Options()
        interface = interface_of(self._address)
        if interface is None:
            options._devices = [gloo.create_device(hostname=self._address)]
        else:
            options._devices = [gloo.create_device(interface=interface)]
        options._timeout = self._timeout
        self._group = gloo(self._store, self._rank, self._world_size, options)
