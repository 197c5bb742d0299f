"""A tensor of one process read by another. On a CPU by shared memory, on a card by CUDA IPC."""

from __future__ import annotations

import gc
import multiprocessing
import os
import signal
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from envsdk.weights.buckets import UpdateInterrupted, fill_buckets, read_buckets
from envsdk.weights.device_memory import Handle, card_of, collect, open_handle, share
from envsdk.weights.receiver import BucketReceiver
from envsdk.weights.senders import DeviceBucketSender
from envsdk.weights.transports import DevicePayload

DEVICES = ["cpu", pytest.param("cuda:0", marks=pytest.mark.gpu)]
CAPACITY = 4096


@pytest.fixture
def started() -> Iterator[Callable[..., Connection]]:
    """Starts a reader in a process that shares nothing with this one, as an engine's."""
    found: list[tuple[Any, Connection]] = []

    def start(device: str) -> Connection:
        here, there = multiprocessing.Pipe()
        process = multiprocessing.get_context("spawn").Process(target=read, args=(there, device))
        process.start()
        there.close()
        found.append((process, here))
        return here

    yield start
    for process, connection in found:
        connection.close()
        process.join(timeout=30)
        process.kill()


def read(connection: Connection, device: str) -> None:
    """An engine's process: read each bucket that is announced, and say what is in it."""
    receiver = BucketReceiver(device)
    connection.send(os.getpid())
    try:
        while True:
            chunks, num_bytes, payload = connection.recv()
            bucket = receiver.read(chunks, num_bytes, payload)
            assert str(bucket.data.device) == device  # type: ignore[union-attr]
            connection.send({name: tensor.cpu().numpy().copy() for name, tensor in read_buckets([bucket])})
            del bucket
    except EOFError:
        receiver.close()


def weights(device: str) -> list[tuple[str, torch.Tensor]]:
    generator = torch.Generator().manual_seed(0)
    return [(f"w{n}", torch.randn(100 + n, generator=generator).to(device)) for n in range(40)]


@pytest.mark.parametrize("device", DEVICES)
def test_buckets_are_read_in_other_processes_where_they_lie(device: str, started: Callable) -> None:
    readers = {name: started(device) for name in ("one", "two")}
    for reader in readers.values():
        reader.recv()
    sender = DeviceBucketSender(CAPACITY, device)
    found: dict[str, dict[str, np.ndarray]] = {name: {} for name in readers}
    count = iter(range(1000))
    for number, bucket in enumerate(fill_buckets(weights(device), lambda: sender.buffer(next(count)))):
        for name, payload in sender.payloads(bucket, number, list(readers)).items():
            readers[name].send((bucket.chunks, len(bucket.data), payload))
        for name, reader in readers.items():
            found[name] |= reader.recv()
    sender.close()
    assert number > 3
    for tensors in found.values():
        assert {name: array.tolist() for name, array in tensors.items()} == {
            name: tensor.tolist() for name, tensor in weights(device)
        }


@pytest.mark.parametrize("device", DEVICES)
def test_a_reader_that_dies_leaves_the_others_and_the_sender_well(device: str, started: Callable) -> None:
    one, two = started(device), started(device)
    victim, _ = one.recv(), two.recv()
    sender = DeviceBucketSender(CAPACITY, device)
    buckets = fill_buckets(weights(device), lambda: sender.buffer(next(count)))
    count = iter(range(1000))
    bucket = next(buckets)
    payloads = sender.payloads(bucket, 0, ["one", "two"])
    for reader, name in ((one, "one"), (two, "two")):
        reader.send((bucket.chunks, len(bucket.data), payloads[name]))
        reader.recv()
    os.kill(victim, signal.SIGKILL)
    sender.lost("one", died=True)
    bucket = next(buckets)
    two.send((bucket.chunks, len(bucket.data), sender.payloads(bucket, 1, ["two"])["two"]))
    assert list(two.recv()) == [chunk.name for chunk in bucket.chunks]
    two.close()
    sender.close()


def test_a_handle_that_leads_nowhere_names_what_to_set() -> None:
    gone = DevicePayload(buffer=0, handle=Handle(False, (b"/nowhere", b"/torch_gone", 64)))
    with pytest.raises(UpdateInterrupted, match=r"cannot be opened .* model_update_transport: shared_memory"):
        BucketReceiver().read((), 64, gone)


def test_memory_that_cannot_be_shared_breaks_the_update_off(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(tensor: torch.Tensor) -> Handle:
        raise RuntimeError("operation not supported")

    monkeypatch.setattr("envsdk.weights.senders.share", refuse)
    sender = DeviceBucketSender(CAPACITY, "cpu")
    [bucket] = fill_buckets([("a", torch.ones(3))], lambda: sender.buffer(0))
    with pytest.raises(UpdateInterrupted, match="cannot be shared: operation not supported"):
        sender.payloads(bucket, 0, ["one"])


def test_a_card_without_room_for_buckets_breaks_the_update_off() -> None:
    with pytest.raises(UpdateInterrupted, match="no room for buckets on cpu"):
        DeviceBucketSender(1 << 60, "cpu")


def test_a_handle_to_a_card_is_opened_under_this_process_own_number(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch.multiprocessing import reductions

    def rebuild(
        tensor_cls,
        tensor_size,
        tensor_stride,
        tensor_offset,
        storage_cls,
        dtype,
        storage_device,
        storage_handle,
        *rest,
    ) -> Any:
        return storage_device, storage_handle

    # PyTorch's own function has its arguments in the same places.
    names = reductions.rebuild_cuda_tensor.__code__.co_varnames
    assert (names[6], names[7], names[11], names[12]) == (
        "storage_device",
        "storage_handle",
        "ref_counter_handle",
        "ref_counter_offset",
    )
    monkeypatch.setattr(reductions, "rebuild_cuda_tensor", rebuild)
    theirs = (torch.Tensor, (3,), (1,), 0, torch.UntypedStorage, torch.uint8, 5, b"handle", 3, 0, False)
    handle = Handle(True, (*theirs, b"counter", 8, b"event", True))
    assert open_handle(handle, "cuda:2") == (2, b"handle")


def test_what_a_dead_reader_held_is_released_in_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    released: list[tuple[bytes, int]] = []
    storage = SimpleNamespace(_release_ipc_counter_cuda=lambda *which: released.append(which))
    monkeypatch.setattr(torch, "UntypedStorage", storage)
    Handle(True, (*([None] * 11), b"counter", 8, b"event", True)).release()
    assert released == [(b"counter", 8)]


def test_main_memory_is_no_card() -> None:
    assert card_of("cpu") == ""
    collect()


@pytest.mark.gpu
def test_a_card_has_one_name_whatever_its_number() -> None:
    assert card_of("cuda") == card_of(f"cuda:{torch.cuda.current_device()}") != ""


@pytest.mark.gpu
def test_memory_that_readers_let_go_of_is_free_again() -> None:
    gc.collect()  # tensors of other tests
    collect()
    before = torch.cuda.memory_allocated()
    tensor = torch.empty(1 << 20, dtype=torch.uint8, device="cuda")
    handles = [share(tensor) for _ in range(3)]
    del tensor
    collect()
    assert torch.cuda.memory_allocated() > before
    for handle in handles:
        handle.release()
    collect()
    assert torch.cuda.memory_allocated() == before


def test_nothing_is_left_of_shared_memory() -> None:
    tensor = torch.zeros(64, dtype=torch.uint8)
    handle = share(tensor)
    name = handle.arguments[1].decode().removeprefix("/")
    assert (Path("/dev/shm") / name).exists()
    del tensor
    assert not (Path("/dev/shm") / name).exists()
