"""Weight updates: from the trainer's first rank to all engines, in buckets.

    run's process:  begin on every engine -> send on every rank -> complete on every engine
    rank 0:         weights() -> buckets -> every engine, at most two buckets on their way

An engine that dies is left out and the others go on. A trainer that fails leaves the engines with the
weights and the version they had.
"""

from __future__ import annotations

import time
import uuid
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import ray

from envsdk.base.processes.actor_death import ACTOR_DIED, on_the_living
from envsdk.weights.buckets import Bucket, Memory, UpdateInterrupted, fill_buckets
from envsdk.weights.delta import WeightBase
from envsdk.weights.senders import (
    BroadcastBucketSender,
    BucketSender,
    DeviceBucketSender,
    ObjectStoreBucketSender,
    SharedMemoryBucketSender,
)
from envsdk.weights.transports import NUM_BUFFERS, Transport

LOOK_S = 0.01
"""How often a sender that waits for engines looks whether they are still there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightTransfer:
    """What every rank is asked to send, and where to."""

    update_id: str
    transport: Transport
    bucket_bytes: int
    """Most bytes of one bucket."""
    engines: Mapping[str, Any]
    """`EngineHost` actors by name, which expect the update."""
    as_adapter: bool = False
    """Send the trainer's adapter, not whole weights."""
    base: str | None = None
    """With differences: the update whose weights all engines have, "" where they have not; None: without."""
    dtype: str = "float32"
    """What float32 weights are sent as."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TransferReport:
    """What rank 0 sent."""

    num_buckets: int
    num_bytes: int
    """To each engine."""
    seconds: float
    is_delta: bool = False
    """What was sent are differences to the update before."""
    interruption: str = ""
    """Why the engines did not get everything; empty when they did."""
    engines: Sequence[str] = ()
    """Names of those that have the weights now."""

    def metrics(self) -> dict[str, float]:
        """As they stand in the metrics file."""
        return {
            "weight_update/bytes": float(self.num_bytes),
            "weight_update/buckets": float(self.num_buckets),
            "weight_update/ship_s": self.seconds,
            "weight_update/delta": float(self.is_delta),
        }


Send = Callable[[WeightTransfer], Awaitable[TransferReport]]


async def update_engines(
    engines: Mapping[str, Any],
    send: Send,
    *,
    version: int,
    mode: str,
    transport: Transport,
    bucket_bytes: int,
    as_adapter: bool = False,
    delta: bool = False,
    dtype: str = "float32",
) -> TransferReport | None:
    """Give every engine that lives the weights that `send` sends, as `version`; None when none lives.

    With `delta` the engines keep what they got, and get differences to it where all have the same.

    UpdateInterrupted when it breaks off again and again, or an engine cannot receive by this transport.
    Raises what `send` or an engine raises. Every engine then has all of the old weights or all of the new.
    """
    interruption = ""
    for _ in range(len(engines) + 1):
        update_id = uuid.uuid4().hex
        bases = await on_the_living(engines, "begin_update", update_id, version, mode, delta)
        engines = {name: engines[name] for name in bases}
        if not engines:
            return None
        common = set(bases.values())
        transfer = WeightTransfer(
            update_id=update_id,
            transport=transport,
            bucket_bytes=bucket_bytes,
            engines=engines,
            as_adapter=as_adapter,
            base=(common.pop() if len(common) == 1 else "") if delta else None,
            dtype=dtype,
        )
        report = None
        left: dict[str, str] = {}
        try:
            report = await send(transfer)
        finally:
            if report is None or report.interruption:
                # An engine's own reason comes out here.
                left = await on_the_living(engines, "abandon_update", update_id)
        if not report.interruption:
            updated = await on_the_living(engines, "complete_update", update_id)
            return replace(report, engines=tuple(updated))
        interruption = "; ".join(dict.fromkeys([report.interruption, *filter(None, left.values())]))
        if transport.is_on_device and len(left) == len(engines):
            break  # none of them was lost: it would break off again
        engines = {name: engines[name] for name in left}
    raise UpdateInterrupted(f"the weights cannot be sent to the engines: {interruption}")


def _rounded(weights: Iterable[tuple[str, Any]]) -> Iterator[tuple[str, Any]]:
    """float32 as bfloat16, to the nearest; other types as they are."""
    import torch

    for name, weight in weights:
        tensor = torch.from_numpy(weight) if isinstance(weight, np.ndarray) else weight
        yield name, tensor.bfloat16() if tensor.dtype is torch.float32 else weight


class WeightSender:
    """Rank 0's side of one transfer; used once, in a process where blocking is fine."""

    def __init__(
        self, transfer: WeightTransfer, base: WeightBase | None = None, *, device: str = "cpu"
    ) -> None:
        """`base` is what the sender keeps from one transfer to the next, for differences.

        `device`: where buckets lie that are not in main memory, as PyTorch names it here.
        """
        self._transfer = transfer
        self._device = device
        self._base = base
        self._engines = dict(transfer.engines)
        self._under_way: deque[dict[str, Any]] = deque()
        """For each bucket that may still be read, the engines' answers to come."""
        self._num_buckets = 0
        self._num_bytes = 0

    def send(self, weights: Iterable[tuple[str, Any]]) -> TransferReport:
        """Send everything, and return when the engines have read it. Consumes `weights` to the end."""
        started = time.perf_counter()
        remaining, is_delta = self._encoded(weights)
        interruption = ""
        sender: BucketSender | None = None
        try:
            sender = self._sender()
            for bucket in fill_buckets(remaining, partial(self._next_buffer, sender)):
                self._announce(sender, bucket)
            while self._under_way:
                self._settle(sender)
        except UpdateInterrupted as error:
            interruption = str(error)
            for _ in remaining:  # the other ranks take part in collecting each
                pass
        finally:
            if sender is not None:
                sender.close()
        if self._base is not None and not interruption:
            self._base.complete(self._transfer.update_id)
        return TransferReport(
            num_buckets=self._num_buckets,
            num_bytes=self._num_bytes,
            seconds=time.perf_counter() - started,
            is_delta=is_delta,
            interruption=interruption,
        )

    def _encoded(self, weights: Iterable[tuple[str, Any]]) -> tuple[Iterator[tuple[str, Any]], bool]:
        """What goes into the buckets, and whether they are differences."""
        if self._transfer.dtype == "bfloat16":
            weights = _rounded(weights)
        if self._transfer.base is None or self._base is None:
            return iter(weights), False
        is_delta = self._base.version != "" and self._base.version == self._transfer.base
        self._base.begin()
        return self._base.encoded(weights, as_delta=is_delta), is_delta

    def _sender(self) -> BucketSender:
        capacity = self._transfer.bucket_bytes
        match self._transfer.transport:
            case Transport.OBJECT_STORE:
                return ObjectStoreBucketSender(capacity)
            case Transport.SHARED_MEMORY:
                return SharedMemoryBucketSender(capacity)
            case Transport.CUDA_IPC:
                return DeviceBucketSender(capacity, self._device)
            case Transport.BROADCAST:
                return BroadcastBucketSender(capacity, ray.util.get_node_ip_address(), list(self._engines))
            case Transport.NCCL:
                address = ray.util.get_node_ip_address()
                return BroadcastBucketSender(capacity, address, list(self._engines), device=self._device)

    def _next_buffer(self, sender: BucketSender) -> Memory:
        while len(self._under_way) >= NUM_BUFFERS:
            self._settle(sender)
        return sender.buffer(self._num_buckets)

    def _announce(self, sender: BucketSender, bucket: Bucket) -> None:
        payloads = sender.payloads(bucket, self._num_buckets, list(self._engines))
        answers = {
            name: engine.take_bucket.remote(
                self._transfer.update_id, self._num_buckets, bucket.chunks, len(bucket.data), payloads[name]
            )
            for name, engine in self._engines.items()
        }
        while not sender.announced(bucket):
            self._listen(answers, sender)
        self._under_way.append(answers)
        self._num_buckets += 1
        self._num_bytes += sum(chunk.num_bytes for chunk in bucket.chunks)

    def _settle(self, sender: BucketSender) -> None:
        """Wait until the oldest bucket under way has been read."""
        answers = self._under_way.popleft()
        while answers:
            self._listen(answers, sender)

    def _listen(self, answers: dict[str, Any], sender: BucketSender) -> None:
        """Drop the answers that came, and engines that died or want no more."""
        ready, _ = ray.wait(list(answers.values()), num_returns=len(answers), timeout=LOOK_S)
        for name in [name for name, answer in answers.items() if answer in ready]:
            died = False
            try:
                goes_on = ray.get(answers.pop(name))
            except ACTOR_DIED:
                goes_on, died = False, True
            if not goes_on and self._engines.pop(name, None) is not None:
                sender.lost(name, died=died)
        sender.check()
