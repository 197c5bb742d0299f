"""The trainer's end of each transport: buffers for buckets, and payloads for the engines.

buffer -> filled by `fill_buckets` -> payloads ==call==> every engine -> announced -> buffer ...
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from envsdk.weights.buckets import Bucket, Buffer, Memory, UpdateInterrupted
from envsdk.weights.device_memory import Handle, collect, share, synchronize
from envsdk.weights.shared_memory import SharedMemory
from envsdk.weights.transports import NUM_BUFFERS, BroadcastPayload, DevicePayload

if TYPE_CHECKING:
    from torch import Tensor
    from torch.distributed import Work


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
    """The engines map the sender's buffers."""

    def __init__(self, capacity: int) -> None:
        self._memory = SharedMemory(capacity)

    def buffer(self, number: int) -> Buffer:
        return self._memory.buffer(number % NUM_BUFFERS)

    def payloads(self, bucket: Bucket, number: int, engines: Sequence[str]) -> dict[str, Any]:
        return dict.fromkeys(engines, self._memory.place(number % NUM_BUFFERS))

    def close(self) -> None:
        self._memory.close()


class ObjectStoreBucketSender(BucketSender):
    """Ray keeps each bucket until the last engine has let go of it."""

    def __init__(self, capacity: int) -> None:
        self._buffer = np.empty(capacity, np.uint8)

    def buffer(self, number: int) -> Buffer:
        return self._buffer  # the store has a copy of what was in it

    def payloads(self, bucket: Bucket, number: int, engines: Sequence[str]) -> dict[str, Any]:
        import ray  # here, because the benchmark on a GPU needs no Ray

        return dict.fromkeys(engines, ray.put(bucket.data))


class BroadcastBucketSender(BucketSender):
    """All engines receive one broadcast; an engine that leaves breaks it for all."""

    def __init__(
        self, capacity: int, address: str, engines: Sequence[str], *, device: str | None = None
    ) -> None:
        """`device`: where buckets lie, as PyTorch names it here; None: in main memory."""
        from envsdk.weights.group import WeightGroup

        self._buffers: list[Memory] = []
        if device is None:
            self._buffers += [np.empty(capacity, np.uint8) for _ in range(NUM_BUFFERS)]
        else:
            self._buffers += device_buffers(capacity, device)
        self._address = address
        self._on_device = device is not None
        self._ranks = {name: index + 1 for index, name in enumerate(engines)}
        self._group = WeightGroup.host(address, world_size=len(engines) + 1, device=device)
        self._works: list[tuple[Work, float]] = []
        """With when each has to be done."""

    def buffer(self, number: int) -> Memory:
        return self._buffers[number % len(self._buffers)]

    def payloads(self, bucket: Bucket, number: int, engines: Sequence[str]) -> dict[str, Any]:
        return {
            name: BroadcastPayload(
                address=self._address,
                port=self._group.port,
                rank=rank,
                world_size=len(self._ranks) + 1,
                on_device=self._on_device,
            )
            for name, rank in self._ranks.items()
        }

    def announced(self, bucket: Bucket) -> bool:
        if not self._group.gather():
            return False
        until = time.monotonic() + self._group.timeout.total_seconds()
        self._works.append((self._group.broadcast(bucket.data), until))
        return True

    def lost(self, engine: str, *, died: bool) -> None:
        raise UpdateInterrupted(f"{engine} left the group")

    def check(self) -> None:
        under_way = []
        for work, until in self._works:
            try:
                if work.is_completed():
                    work.wait()  # it raises what broke it
                    continue
            except RuntimeError as error:
                raise UpdateInterrupted(f"the broadcast of weights broke: {error}") from error
            if time.monotonic() > until:
                raise UpdateInterrupted("an engine does not receive the broadcast of weights")
            under_way.append((work, until))
        self._works = under_way

    def close(self) -> None:
        self._works.clear()  # each keeps the connections of its group open
        self._group.close()


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
        """Handles of each engine, to each buffer."""

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
