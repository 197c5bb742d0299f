"""A weight update from another process: on the same card, through main memory, and to a second card."""

from __future__ import annotations

import asyncio
import multiprocessing
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM

from benchmarks.gpu_parts.bench import Bench, Row, Skipped
from benchmarks.gpu_parts.speed import embedded
from envsdk.weights.buckets import Bucket, Memory, UpdateInterrupted, fill_buckets, read_buckets
from envsdk.weights.device_memory import synchronize
from envsdk.weights.group import WeightGroup
from envsdk.weights.receiver import BucketReceiver
from envsdk.weights.senders import BucketSender, DeviceBucketSender, SharedMemoryBucketSender
from envsdk.weights.transports import NUM_BUFFERS

MIB = 1 << 20
REPEATS = 5
HERE = "127.0.0.1"
Weights = Mapping[str, torch.Tensor]


def weights_of(folder: Path, device: str) -> dict[str, torch.Tensor]:
    """A model's parameters in bfloat16."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16).to(device)
    return {name: value.detach() for name, value in model.named_parameters()}


def send_updates(connection: Connection, folder: str, device: str) -> None:
    """The trainer's process: one update for each (way, bytes of a bucket) that it is asked for."""
    weights = weights_of(Path(folder), device)
    with suppress(EOFError, ConnectionError):  # the other end's time was over
        connection.send(True)
        while (asked := connection.recv()) is not None:
            way, capacity = asked
            sender = (
                DeviceBucketSender(capacity, device)
                if way == "device"
                else SharedMemoryBucketSender(capacity)
            )
            send_update(connection, weights, sender)
            sender.close()


def send_update(connection: Connection, weights: Weights, sender: BucketSender) -> None:
    """As `WeightSender` does, with a pipe in place of calls."""
    sent = unread = 0

    def next_buffer() -> Memory:
        nonlocal unread
        while unread >= NUM_BUFFERS:
            connection.recv()
            unread -= 1
        return sender.buffer(sent)

    for bucket in fill_buckets(weights.items(), next_buffer):
        payload = sender.payloads(bucket, sent, ["engine"])["engine"]
        connection.send((bucket.chunks, len(bucket.data), payload))
        sent, unread = sent + 1, unread + 1
    for _ in range(unread):
        connection.recv()
    connection.send(None)


def arriving(connection: Connection, receiver: BucketReceiver) -> Iterator[Bucket]:
    """The buckets of one update, as `WeightReceiver` reads them."""
    while (announced := connection.recv()) is not None:
        bucket = receiver.read(*announced)
        yield bucket
        synchronize(bucket.data)
        connection.send(True)


@contextmanager
def other_process(work: Any, *args: Any) -> Iterator[Connection]:
    """A process with this end of a pipe to it; killed at the end if it still runs."""
    here, there = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(target=work, args=(there, *args))
    process.start()
    there.close()
    try:
        yield here
    finally:
        here.close()
        process.join(timeout=5)
        process.kill()


def received(connection: Connection, way: str, capacity: int, device: str, into: Weights) -> float:
    """Seconds of one update into tensors that are there."""
    receiver = BucketReceiver(device)
    began = time.perf_counter()
    connection.send((way, capacity))
    for name, value in read_buckets(arriving(connection, receiver)):
        into[name].copy_(value if isinstance(value, torch.Tensor) else torch.from_numpy(value))
    seconds = time.perf_counter() - began
    receiver.close()
    return seconds


def on_one_card(bench: Bench) -> Iterator[Row]:
    """From another process on the same device, against a copy on it and the way through main memory."""
    name, shape = list(bench.shapes.items())[-1]
    folder, device = bench.model(shape), bench.device
    weights = weights_of(folder, device)
    num_bytes = sum(value.nbytes for value in weights.values())
    into = {key: torch.empty_like(value) for key, value in weights.items()}

    def copy() -> None:
        for key, value in weights.items():
            into[key].copy_(value)

    copied = bench.median_s(copy)
    yield Row(
        what=f"{name}: copy of all weights on the device",
        value=num_bytes / copied / 1e9,
        unit="GB/s",
        note=f"{1000 * copied:.3g} ms, {num_bytes / 1e6:.0f} MB",
    )
    sizes = [1] if bench.is_small else [32, 256]
    with other_process(send_updates, str(folder), device) as connection:
        connection.recv()
        for way, called in (("host", "through main memory"), ("device", "in its memory")):
            for size in sizes:
                received(connection, way, size * MIB, device, into)
                times = sorted(received(connection, way, size * MIB, device, into) for _ in range(REPEATS))
                for key, value in weights.items():
                    assert torch.equal(into[key], value), f"{key} came out different"
                    into[key].zero_()
                took = times[len(times) // 2]
                yield Row(
                    what=f"{name}: update from another process {called}, buckets of {size} MiB",
                    value=1000 * took,
                    unit="ms",
                    note=f"{num_bytes / took / 1e9:.3g} GB/s, {100 * copied / took:.2g}% of the copy",
                )
        yield from into_engine(bench, name, connection, sizes[-1] * MIB)
        connection.send(None)


def into_engine(bench: Bench, name: str, connection: Connection, capacity: int) -> Iterator[Row]:
    """The embedded engine takes an update of another process in the memory of its device."""
    with asyncio.Runner() as runner:
        engine = runner.run(embedded(bench, list(bench.shapes.values())[-1], 8))
        try:
            times = []
            for version in range(1, 4):
                receiver = BucketReceiver(bench.device)
                began = time.perf_counter()
                connection.send(("device", capacity))
                runner.run(engine.load_weights(read_buckets(arriving(connection, receiver)), version))
                bench.synchronize()
                times.append(time.perf_counter() - began)
                receiver.close()
            yield Row(
                what=f"{name}: the same into the embedded engine",
                value=1000 * min(times),
                unit="ms",
                note=f"the fastest of {len(times)}",
            )
        finally:
            runner.run(engine.close())


def receive_broadcasts(connection: Connection, port: int, device: str, num_bytes: int) -> None:
    """An engine's process on its own device."""
    group = WeightGroup.join(HERE, port, rank=1, world_size=2, device=device)
    while connection.recv():
        group.receive(num_bytes)
        connection.send(True)
    group.close()


def between_cards(bench: Bench) -> Iterator[Row]:
    """A broadcast to a second card by NCCL; on a CPU the same code by gloo."""
    if bench.is_cuda and torch.cuda.device_count() < 2:
        raise Skipped("a broadcast by NCCL needs two GPUs")
    devices = ("cuda:0", "cuda:1") if bench.is_cuda else ("cpu", "cpu")
    num_bytes = MIB if bench.is_small else 1 << 30
    data = torch.randint(0, 256, (num_bytes,), dtype=torch.uint8, device=devices[0])
    group = WeightGroup.host(HERE, world_size=2, device=devices[0])
    with other_process(receive_broadcasts, group.port, devices[1], num_bytes) as connection:
        while not group.gather():
            time.sleep(0.01)
        times = []
        for _ in range(1 + REPEATS):
            connection.send(True)
            began = time.perf_counter()
            group.broadcast(data)
            connection.recv()
            times.append(time.perf_counter() - began)
        connection.send(False)
        took = sorted(times[1:])[REPEATS // 2]
        yield Row(
            what=f"broadcast to another process by {'NCCL' if bench.is_cuda else 'gloo'}",
            value=num_bytes / took / 1e9,
            unit="GB/s",
            note=f"{num_bytes / 1e6:.0f} MB",
        )
    group.close()


def run(bench: Bench) -> Iterator[Row]:
    skipped = []
    for measure in (on_one_card, between_cards):
        try:
            yield from measure(bench)
        except (Skipped, UpdateInterrupted) as reason:
            skipped.append(str(reason))
    if skipped:
        raise Skipped("; ".join(skipped))
