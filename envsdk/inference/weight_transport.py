"""How a bucket of weights gets from the trainer's process into an engine's.

    BucketSender (trainer)                                          BucketReceiver (engine)
    next_buffer -> filled by fill_buckets -> payload ==call==> read -> Bucket

A payload travels with the call that announces the bucket. It holds the bytes themselves (object store: Ray
hands the engine a view), their address (shared memory, CUDA IPC), or the group to receive them in (broadcast,
NCCL). Buckets of CUDA IPC and NCCL lie in memory of a device, all others in main memory.
"""

from __future__ import annotations

import mmap
import os
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any

import numpy as np

from envsdk.failures import ConfigurationError
from envsdk.inference.device_memory import Handle, collect, open_handle, share, synchronize
from envsdk.inference.weight_buckets import Bucket, Buffer, Chunk, Memory, UpdateInterrupted

if TYPE_CHECKING:
    from torch import Tensor

    from envsdk.inference.weight_group import WeightGroup

NUM_BUFFERS = 2
"""While one is read by the engines, the next is filled."""


class Transport(StrEnum):
    """How buckets travel."""

    OBJECT_STORE = "object_store"
    """Through Ray's object store: between any two processes of the cluster."""
    SHARED_MEMORY = "shared_memory"
    """Through memory of the trainer that the engines map: on one node, on Linux."""
    BROADCAST = "broadcast"
    """From the trainer's first rank to all engines at once, by `torch.distributed` (gloo)."""
    CUDA_IPC = "cuda_ipc"
    """In memory of the card that the trainer's first rank and the engines share."""
    NCCL = "nccl"
    """As a broadcast, from card to card: each engine and the trainer's first rank have one of their own."""

    @property
    def is_on_device(self) -> bool:
        """Buckets lie in memory of a device."""
        return self in (Transport.CUDA_IPC, Transport.NCCL)


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedMemoryPayload:
    """A bucket in the sender's memory."""

    path: str
    """Of the memory, in the sender's `/proc`."""
    size: int
    """Of the memory, bytes."""
    offset: int
    """First byte of the bucket's buffer in it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BroadcastPayload:
    """A bucket that comes by the next broadcast of this group."""

    address: str
    port: int
    rank: int
    """Of the engine that gets this payload; the sender is 0."""
    world_size: int
    on_device: bool = False
    """It comes to the engine's device."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DevicePayload:
    """A bucket in memory of the sender on a device that the engine sees too."""

    buffer: int
    """Number of the buffer; it has the same handle in all of an update."""
    handle: Handle


Payload = Buffer | SharedMemoryPayload | BroadcastPayload | DevicePayload


def device_transport(
    asked_for: str, *, trainer_card: str, engine_cards: Mapping[str, str]
) -> tuple[Transport | None, str]:
    """The way through memory of cards that `model_update_transport` allows; or None, and why there is none.

    Cards are given by names that are the same in every process; "" where weights are in main memory.
    """
    allowed = [each for each in Transport if each.is_on_device and asked_for in ("auto", each)]
    if not allowed:
        return None, f"model_update_transport is {asked_for}"
    if not trainer_card:
        return None, "the trainer has its weights in main memory"
    if hosts := [name for name, card in engine_cards.items() if not card]:
        return None, f"{hosts[0]} takes them in main memory"
    elsewhere = [name for name, card in engine_cards.items() if card != trainer_card]
    if not elsewhere and Transport.CUDA_IPC in allowed:
        return Transport.CUDA_IPC, ""
    if Transport.NCCL not in allowed:
        return None, f"{elsewhere[0]} has another card than the trainer"
    if len({trainer_card, *engine_cards.values()}) <= len(engine_cards):
        return None, "two of the engines and the trainer share a card, which NCCL refuses"
    return Transport.NCCL, ""


def choose_transport(
    asked_for: str, *, trainer_node: str, engine_nodes: Mapping[str, str], can_share_memory: bool
) -> Transport:
    """What `model_update_transport` stands for, given the nodes of the trainer's first rank and the engines.

    `auto` is a way through main memory. A bucket of the object store goes to a node once, and its engines
    read it there; a broadcast goes to each engine.
    ConfigurationError for shared memory between nodes, or where there is none.
    """
    elsewhere = [name for name, node in engine_nodes.items() if node != trainer_node]
    if asked_for == "auto":
        if elsewhere:
            most = max(Counter(engine_nodes[name] for name in elsewhere).values())
            return Transport.OBJECT_STORE if most > 1 else Transport.BROADCAST
        return Transport.SHARED_MEMORY if can_share_memory else Transport.OBJECT_STORE
    transport = Transport(asked_for)
    if transport is Transport.SHARED_MEMORY and (elsewhere or not can_share_memory):
        why = f"{elsewhere[0]} is on another node than the trainer" if elsewhere else "this is no Linux"
        raise ConfigurationError(
            f"model_update_transport: shared_memory, but {why}; use auto, object_store or broadcast"
            + (", or place both with ray.placement.engines and ray.placement.trainer" if elsewhere else "")
        )
    return transport


def can_share_memory() -> bool:
    """Whether this system has memory without a name that other processes can map (Linux)."""
    return hasattr(os, "memfd_create")


class BucketSender(ABC):
    """The sender's end: owns the buffers. Not thread-safe."""

    @abstractmethod
    def buffer(self, number: int) -> Memory:
        """Where bucket `number` is put together; free again when all engines have read it."""

    @abstractmethod
    def payloads(self, bucket: Bucket, number: int, engines: Sequence[str]) -> dict[str, Any]:
        """What each engine is to get. For an object store a reference, which Ray replaces by the bytes."""

    def announced(self, bucket: Bucket) -> bool:
        """Called, again until it answers True, when the bucket was announced to the engines.

        UpdateInterrupted when they cannot be reached.
        """
        return True

    def lost(self, engine: str, *, died: bool) -> None:
        """It died, or wants no more. UpdateInterrupted when the others get nothing without it."""
        return None

    def check(self) -> None:
        """UpdateInterrupted when what was announced will not arrive."""
        return None

    def close(self) -> None:
        """Idempotent."""
        return None


class SharedMemoryBucketSender(BucketSender):
    """Anonymous memory (memfd): the last process that has it open ends it, however that process ends."""

    def __init__(self, capacity: int) -> None:
        self._capacity = -(-capacity // mmap.ALLOCATIONGRANULARITY) * mmap.ALLOCATIONGRANULARITY
        self._size = NUM_BUFFERS * self._capacity
        self._asked_for = capacity
        self._fd = os.memfd_create("envsdk-weights", os.MFD_CLOEXEC)
        os.ftruncate(self._fd, self._size)  # takes no memory before it is written to
        self._memory = np.frombuffer(mmap.mmap(self._fd, self._size), np.uint8)

    def buffer(self, number: int) -> Buffer:
        offset = number % NUM_BUFFERS * self._capacity
        return self._memory[offset : offset + self._asked_for]

    def payloads(self, bucket: Bucket, number: int, engines: Sequence[str]) -> dict[str, Any]:
        payload = SharedMemoryPayload(
            path=f"/proc/{os.getpid()}/fd/{self._fd}",
            size=self._size,
            offset=number % NUM_BUFFERS * self._capacity,
        )
        return dict.fromkeys(engines, payload)

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def device_buffers(capacity: int, device: str) -> list[Tensor]:
    """For buckets, on this device. UpdateInterrupted where there is no room."""
    import torch

    try:
        return [torch.empty(capacity, dtype=torch.uint8, device=device) for _ in range(NUM_BUFFERS)]
    except RuntimeError as error:
        raise UpdateInterrupted(f"there is no room for buckets on {device}: {error}") from error


class DeviceBucketSender(BucketSender):
    """Two buffers on the trainer's device, which engines in other processes read there."""

    def __init__(self, capacity: int, device: str) -> None:
        collect()
        self._buffers = device_buffers(capacity, device)
        self._handles: dict[str, list[Handle]] = {}
        """Of each engine, to each buffer."""

    def buffer(self, number: int) -> Memory:
        return self._buffers[number % NUM_BUFFERS]

    def payloads(self, bucket: Bucket, number: int, engines: Sequence[str]) -> dict[str, Any]:
        which = number % NUM_BUFFERS
        try:
            for engine in engines:
                if engine not in self._handles:
                    self._handles[engine] = [share(buffer) for buffer in self._buffers]
        except RuntimeError as error:
            raise UpdateInterrupted(f"this device's memory cannot be shared: {error}") from error
        synchronize(bucket.data)
        return {
            engine: DevicePayload(buffer=which, handle=self._handles[engine][which]) for engine in engines
        }

    def lost(self, engine: str, *, died: bool) -> None:
        if died:  # or it lets go itself
            for handle in self._handles.pop(engine, ()):
                handle.release()

    def close(self) -> None:
        self._buffers.clear()
        collect()


class BucketReceiver:
    """An engine's end, for one update and any transport. Used from one thread."""

    def __init__(self, device: str = "cpu") -> None:
        """`device`: where buckets come that are no business of main memory, as PyTorch names it here."""
        self._device = device
        self._opened: dict[int, Tensor] = {}
        self._path = ""
        self._memory = np.empty(0, np.uint8)
        self._group: WeightGroup | None = None

    def read(self, chunks: tuple[Chunk, ...], num_bytes: int, payload: Payload) -> Bucket:
        """The announced bucket; its data is valid until the next one is read. UpdateInterrupted."""
        data: Memory
        if isinstance(payload, SharedMemoryPayload):
            self._map(payload)
            data = self._memory[payload.offset : payload.offset + num_bytes]
        elif isinstance(payload, BroadcastPayload):
            group = self._join(payload)
            data = group.receive_on_device(num_bytes) if payload.on_device else group.receive(num_bytes)
        elif isinstance(payload, DevicePayload):
            data = self._open(payload)[:num_bytes]
        else:
            data = payload
        return Bucket(chunks, data)

    def close(self) -> None:
        """Idempotent. Memory that is still looked at stays mapped until it is not."""
        self._memory = np.empty(0, np.uint8)
        self._opened.clear()
        if self._group is not None:
            self._group.close()
            self._group = None

    def _open(self, payload: DevicePayload) -> Tensor:
        if payload.buffer not in self._opened:
            try:
                self._opened[payload.buffer] = open_handle(payload.handle, self._device)
            except RuntimeError as error:
                raise UpdateInterrupted(
                    f"the trainer's memory on {self._device} cannot be opened ({error}): the trainer ended, "
                    "or is hidden from the engine; for the latter set model_update_transport: shared_memory"
                ) from error
        return self._opened[payload.buffer]

    def _map(self, payload: SharedMemoryPayload) -> None:
        if self._path == payload.path:
            return
        try:
            with open(payload.path, "rb") as file:
                memory = mmap.mmap(file.fileno(), payload.size, prot=mmap.PROT_READ)
        except OSError as error:
            raise UpdateInterrupted(
                f"the trainer's shared memory {payload.path} cannot be opened ({error}): the trainer "
                "ended, or is hidden from the engine; for the latter set model_update_transport: object_store"
            ) from error
        self._path, self._memory = payload.path, np.frombuffer(memory, np.uint8)

    def _join(self, payload: BroadcastPayload) -> WeightGroup:
        if self._group is None:
            from envsdk.inference.weight_group import WeightGroup

            self._group = WeightGroup.join(
                payload.address,
                payload.port,
                rank=payload.rank,
                world_size=payload.world_size,
                device=self._device if payload.on_device else None,
            )
        return self._group
