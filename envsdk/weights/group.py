"""The group that weights are broadcast in: the trainer's first rank, which is rank 0, and the engines.

    rank 0:  host -> (gather)* -> broadcast* -> close
    engine:  join -> receive* -> close

It is separate from the ranks' own process group and lasts for one update: a member that dies breaks it for
all, and the next update forms a group of the survivors. By gloo from main memory to main memory, by NCCL
from card to card, where each member has one of its own; the sender's bytes leave once, engines pass them on.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, Self

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import TCPStore
from torch.distributed import ProcessGroupGloo, Work

from envsdk.base.net.rendezvous import address_towards, host_store, interface_of, join_store
from envsdk.weights.buckets import Memory, UpdateInterrupted

TIMEOUT = timedelta(seconds=30)
"""How long a member waits for one that is there but does not answer; all members have the same."""


LOOK_S = 0.02
"""How often an engine that waits for the others looks whether rank 0 has given up."""
LOOK_FOR_BYTES_S = 0.0002
"""How often one that receives on a device looks whether all has come."""
_ENVIRONMENT = threading.Lock()


class WeightGroup:
    """One process's membership."""

    def __init__(
        self,
        store: TCPStore,
        place: tuple[str, int],
        address: str,
        *,
        rank: int,
        world_size: int,
        timeout: timedelta = TIMEOUT,
        device: str | None = None,
    ) -> None:
        """`place` is the store's address and port; `address` is this process's own.

        `device` is where buckets lie, as PyTorch names it here; None: they are arrays in main memory. NCCL
        sends them between cards.
        """
        self._store: TCPStore | None = store
        self._place = place
        self._address = address
        self._rank = rank
        self._world_size = world_size
        self.timeout = timeout
        self._device = device
        self._meeting: Future[Any] | None = None
        """Connects with the others."""
        self._meets_until = 0.0
        self._group: Any = None  # a process group, of which PyTorch's types know half
        self._buffer = torch.empty(0, dtype=torch.uint8, device=device)

    @classmethod
    def host(
        cls, address: str, *, world_size: int, timeout: timedelta = TIMEOUT, device: str | None = None
    ) -> Self:
        """Rank 0's; engines find it at `address` and `port`."""
        store = host_store(address, 0, world_size, timeout=timeout, wait_for_all=False)
        place = address, int(store.port)
        return cls(store, place, address, rank=0, world_size=world_size, timeout=timeout, device=device)

    @classmethod
    def join(
        cls,
        address: str,
        port: int,
        *,
        rank: int,
        world_size: int,
        timeout: timedelta = TIMEOUT,
        device: str | None = None,
    ) -> Self:
        """An engine's; waits for the others. UpdateInterrupted."""
        try:
            store = join_store(address, port, world_size, timeout=timeout, wait_for_all=False)
            store.set(f"here/{rank}", "")
            own = address_towards(address, port)
            group = cls(
                store, (address, port), own, rank=rank, world_size=world_size, timeout=timeout, device=device
            )
            while not group._is_connected():
                store.check([f"here/{rank}"])  # fails when rank 0 has closed the store
                time.sleep(LOOK_S)
        except (RuntimeError, OSError) as error:
            raise UpdateInterrupted(f"the trainer cannot be met for the weights: {error}") from error
        return group

    @property
    def port(self) -> int:
        assert self._store is not None, "closed"
        return int(self._store.port)

    def gather(self) -> bool:
        """Whether all engines are here, and rank 0 connected with them. Does not block. UpdateInterrupted."""
        assert self._store is not None, "closed"
        if self._meeting is None and not self._store.check([f"here/{r}" for r in range(1, self._world_size)]):
            return False
        try:
            return self._is_connected()
        except (RuntimeError, OSError) as error:
            raise UpdateInterrupted(f"an engine was lost on the way to the others: {error}") from error

    def broadcast(self, data: Memory) -> Work:
        """Start sending `data`, which stays as it is until the engines say they have it."""
        assert self._group is not None, "gather first"
        tensor = data if isinstance(data, torch.Tensor) else torch.from_numpy(data)
        work: Work = self._group.broadcast(tensor, 0)
        return work

    def receive(self, num_bytes: int) -> Tensor:
        """The next broadcast's `num_bytes`, on this member's device or else in main memory.

        Valid until the next call. UpdateInterrupted.
        """
        assert self._group is not None
        try:
            if len(self._buffer) < num_bytes:
                self._buffer = self._buffer.new_empty(num_bytes)
            part = self._buffer[:num_bytes]
            work: Work = self._group.broadcast(part, 0)
            if self._device is not None:
                self._look_until_done(work)
            work.wait()
        except RuntimeError as error:
            raise UpdateInterrupted(f"the broadcast of weights broke: {error}") from error
        return part

    def _look_until_done(self, work: Work) -> None:
        """NCCL's own wait looks every 10 ms, more than a bucket takes."""
        until = time.monotonic() + self.timeout.total_seconds()
        while not work.is_completed():
            if time.monotonic() > until:
                raise RuntimeError(f"nothing came within {self.timeout.total_seconds():g} s")
            time.sleep(LOOK_FOR_BYTES_S)

    def close(self) -> None:
        """Idempotent. Members that wait for this one get an error."""
        self._group = None
        if self._meeting is not None:
            self._meeting.add_done_callback(_abort)
            self._meeting = None
        # An engine that still waits for one that died on the way meets nobody any more, and hears of it.
        self._store = None

    def _is_connected(self) -> bool:
        """Connects on a thread: neither gloo nor NCCL gives up a member whose machine is gone for minutes."""
        if self._meeting is None:
            self._meeting = Future()
            self._meets_until = time.monotonic() + self.timeout.total_seconds()
            threading.Thread(
                target=self._connect, args=[self._meeting], name="envsdk-weight-group", daemon=True
            ).start()
        if self._group is None and self._meeting.done():
            self._group = self._meeting.result()
        if self._group is None and time.monotonic() > self._meets_until:
            raise TimeoutError(f"one did not connect within {self.timeout.total_seconds():g} s")
        return self._group is not None

    def _connect(self, meeting: Future[Any]) -> None:
        try:
            # A connection of its own: one that waits answers nobody else.
            address, port = self._place
            store = join_store(address, port, self._world_size, timeout=self.timeout, wait_for_all=False)
            on_card = self._device is not None and self._device.startswith("cuda")
            meeting.set_result(self._nccl(store) if on_card else self._gloo(store))
        except (RuntimeError, OSError) as error:
            meeting.set_exception(error)

    def _gloo(self, store: TCPStore) -> Any:
        gloo: Any = ProcessGroupGloo
        options = gloo._Options()
        interface = interface_of(self._address)
        if interface is None:
            options._devices = [gloo.create_device(hostname=self._address)]
        else:
            options._devices = [gloo.create_device(interface=interface)]
        options._timeout = self.timeout
        return gloo(store, self._rank, self._world_size, options)

    def _nccl(self, store: TCPStore) -> Any:
        if not dist.is_nccl_available():
            raise RuntimeError("this PyTorch comes without NCCL")
        nccl: Any = dist.ProcessGroupNCCL
        options = nccl.Options()
        options._timeout = self.timeout
        # Without blocking waits PyTorch watches the group on a thread, which ends this process when a member
        # is lost.
        with _variable("TORCH_NCCL_BLOCKING_WAIT", "1"):
            group = nccl(store, self._rank, self._world_size, options)
        device = torch.device(self._device or "cuda")
        index = torch.cuda.current_device() if device.index is None else device.index
        group.eager_connect_single_device(torch.device("cuda", index))
        return group


@contextmanager
def _variable(name: str, value: str) -> Iterator[None]:
    """Set in this process's environment inside."""
    with _ENVIRONMENT:
        before = os.environ.get(name)
        os.environ[name] = value
        try:
            yield
        finally:
            if before is None:
                del os.environ[name]
            else:
                os.environ[name] = before


def _abort(meeting: Future[Any]) -> None:
    if meeting.exception() is None:
        meeting.result().abort()
