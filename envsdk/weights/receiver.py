"""One weight update as an engine sees it: buckets come in on the event loop, a thread reads a stream.

open -> put* -> end        the stream ends, the engine swaps
             -> interrupt  the stream raises UpdateInterrupted, the engine keeps what it has
"""

from __future__ import annotations

import asyncio
import queue
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from envsdk.weights.buckets import Bucket, Buffer, Chunk, Memory, UpdateInterrupted, read_buckets
from envsdk.weights.delta import WeightBase
from envsdk.weights.device_memory import open_handle, synchronize
from envsdk.weights.shared_memory import SharedPlace, mapped
from envsdk.weights.transports import BroadcastPayload, DevicePayload, Payload

if TYPE_CHECKING:
    from torch import Tensor

    from envsdk.weights.group import WeightGroup


class BucketReceiver:
    """An engine's end, for one update and any transport. Used from one thread."""

    def __init__(self, device: str = "cpu") -> None:
        """`device`: where buckets come that are no business of main memory, as PyTorch names it here."""
        self._device = device
        self._opened: dict[int, Tensor] = {}
        self._mapped: dict[SharedPlace, Buffer] = {}
        self._group: WeightGroup | None = None

    def read(self, chunks: tuple[Chunk, ...], num_bytes: int, payload: Payload) -> Bucket:
        """The announced bucket; its data is valid until the next one is read. UpdateInterrupted."""
        data: Memory
        if isinstance(payload, SharedPlace):
            data = self._map(payload)[:num_bytes]
        elif isinstance(payload, BroadcastPayload):
            received = self._join(payload).receive(num_bytes)
            data = received if payload.on_device else received.numpy()
        elif isinstance(payload, DevicePayload):
            data = self._open(payload)[:num_bytes]
        else:
            data = payload
        return Bucket(chunks, data)

    def close(self) -> None:
        """Idempotent. Memory that is still looked at stays mapped until it is not."""
        self._mapped.clear()
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

    def _map(self, place: SharedPlace) -> Buffer:
        if place not in self._mapped:
            try:
                self._mapped[place] = mapped(place)
            except OSError as error:
                raise UpdateInterrupted(
                    f"the trainer's shared memory {place.path} cannot be opened ({error}): the trainer "
                    "ended, or is hidden from the engine; for the latter set model_update_transport: "
                    "object_store"
                ) from error
        return self._mapped[place]

    def _join(self, payload: BroadcastPayload) -> WeightGroup:
        if self._group is None:
            from envsdk.weights.group import WeightGroup

            self._group = WeightGroup.join(
                payload.address,
                payload.port,
                rank=payload.rank,
                world_size=payload.world_size,
                device=self._device if payload.on_device else None,
            )
        return self._group


@dataclass(frozen=True, slots=True)
class _Announced:
    chunks: tuple[Chunk, ...]
    num_bytes: int
    payload: Payload
    read: asyncio.Future[bool]


class _Mark:
    """In place of a bucket: no more will come."""


_END, _INTERRUPT = _Mark(), _Mark()


class WeightReceiver:
    """Made and fed on the loop; `stream` is read once, on another thread.

    `before_end` is awaited on the loop when everything has come and nothing is swapped yet.
    """

    def __init__(
        self,
        before_end: Callable[[], Coroutine[Any, Any, None]],
        base: WeightBase | None = None,
        *,
        device: str = "cpu",
    ) -> None:
        """With a `base` the buckets hold encoded tensors that may differ from it. `device`: the engine's."""
        self._base = base
        self._loop = asyncio.get_running_loop()
        self._before_end = before_end
        self._queue: queue.SimpleQueue[_Announced | _Mark] = queue.SimpleQueue()
        self._unread: set[asyncio.Future[bool]] = set()
        self._early: dict[int, _Announced] = {}
        """Announced before one that comes first: Ray's calls may overtake each other."""
        self._num_queued = 0
        self._bucket_receiver = BucketReceiver(device)
        self._is_closed = False
        self.is_ended = False

    async def put(self, number: int, chunks: tuple[Chunk, ...], num_bytes: int, payload: Payload) -> bool:
        """Announce bucket `number`, from 0 and in any order.

        Returns when it has been read: its memory is the sender's again. False when it never will be, because
        the engine could not take what came before.
        """
        if self._is_closed:
            return False
        read: asyncio.Future[bool] = self._loop.create_future()
        self._unread.add(read)
        self._early[number] = _Announced(chunks, num_bytes, payload, read)
        while (following := self._early.pop(self._num_queued, None)) is not None:
            self._queue.put(following)
            self._num_queued += 1
        try:
            return await read
        finally:
            self._unread.discard(read)

    def end(self) -> None:
        """That was the last bucket."""
        self.is_ended = True
        self._queue.put(_END)

    def interrupt(self) -> None:
        """The rest will not come."""
        self._queue.put(_INTERRUPT)

    def close(self) -> None:
        """Nobody reads any more."""
        self._is_closed = True
        self._bucket_receiver.close()
        for read in self._unread:
            _answer(read, False)

    def stream(self) -> Iterator[tuple[str, Any]]:
        """The weights; each is valid until the next is asked for. Blocks. UpdateInterrupted."""
        weights = read_buckets(self._buckets())
        if self._base is not None:
            self._base.begin()
            weights = self._base.decoded(weights)
        yield from weights
        asyncio.run_coroutine_threadsafe(self._before_end(), self._loop).result()

    def _buckets(self) -> Iterator[Bucket]:
        while True:
            item = self._queue.get()
            if item is _END:
                return
            if not isinstance(item, _Announced):
                raise UpdateInterrupted("the rest of the weights did not come")
            bucket = self._bucket_receiver.read(item.chunks, item.num_bytes, item.payload)
            yield bucket
            synchronize(bucket.data)  # copies that were asked for are done
            self._loop.call_soon_threadsafe(_answer, item.read, True)


def _answer(read: asyncio.Future[bool], answer: bool) -> None:
    if not read.done():
        read.set_result(answer)
