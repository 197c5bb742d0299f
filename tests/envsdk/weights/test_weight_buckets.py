"""Weights in buckets come out as they went in."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from envsdk.contracts.failures import EngineError
from envsdk.weights.buckets import ALIGNMENT, Bucket, fill_buckets, read_buckets

DTYPES = ["float32", "float16", "float64", "bfloat16", "int64", "int8", "uint8", "bool", "float8_e4m3fn"]


@st.composite
def weights(draw) -> list[tuple[str, torch.Tensor | np.ndarray]]:
    """Random tensors of every kind: scalars, empty ones, not contiguous ones; names may repeat."""
    found = []
    for _ in range(draw(st.integers(0, 8))):
        shape = tuple(draw(st.lists(st.integers(0, 7), max_size=3)))
        raw = torch.from_numpy(
            np.random.default_rng(draw(st.integers(0, 99))).integers(0, 100, shape, endpoint=True)
        )
        tensor = raw.to(getattr(torch, draw(st.sampled_from(DTYPES))))
        if draw(st.booleans()):
            tensor = tensor.mT if tensor.ndim > 1 else tensor
        as_numpy = str(tensor.dtype) not in ("torch.bfloat16", "torch.float8_e4m3fn") and draw(st.booleans())
        found.append((draw(st.text(max_size=5)), tensor.numpy() if as_numpy else tensor))
    return found


def as_tensor(weight: torch.Tensor | np.ndarray) -> torch.Tensor:
    return weight if isinstance(weight, torch.Tensor) else torch.from_numpy(weight.copy())


def sent(items: list, capacity: int, num_buffers: int = 2, *, on_device: bool = False) -> Iterator[Bucket]:
    """Buckets that live only until the next ones are filled, as over a transport."""
    buffers: list = [np.full(capacity, 255, np.uint8) for _ in range(num_buffers)]
    if on_device:
        buffers = [torch.from_numpy(buffer) for buffer in buffers]
    count = 0

    def next_buffer() -> np.ndarray | torch.Tensor:
        nonlocal count
        count += 1
        return buffers[count % num_buffers]

    return fill_buckets(items, next_buffer)


@given(weights(), st.integers(1, 600), st.booleans())
def test_any_weights_come_out_as_they_went_in_whatever_the_size_of_a_bucket(
    items, capacity, on_device
) -> None:
    buckets = sent(items, capacity, on_device=on_device)
    read = []
    for name, array in read_buckets(buckets):
        assert isinstance(array, torch.Tensor) or not on_device
        read.append((name, as_tensor(array).clone()))  # an array is valid until the next one is asked for
    assert [name for name, _ in read] == [name for name, _ in items]
    for (_, found), (_, given_) in zip(read, items, strict=True):
        expected = as_tensor(given_)
        assert found.dtype == expected.dtype
        assert found.shape == expected.shape
        if expected.numel():
            assert torch.equal(
                found.reshape(-1).view(torch.uint8), expected.contiguous().view(-1).view(torch.uint8)
            )


@given(weights(), st.integers(1, 600))
def test_no_bucket_is_larger_than_asked_for_and_only_what_does_not_fit_in_one_is_cut(items, capacity) -> None:
    for bucket in sent(items, capacity):
        assert bucket.chunks
        assert len(bucket.data) <= capacity
        end = 0
        for chunk in bucket.chunks:
            assert chunk.offset % ALIGNMENT == 0
            assert chunk.offset >= end
            end = chunk.offset + chunk.num_bytes
            assert chunk.num_bytes == chunk.tensor_bytes or chunk.tensor_bytes > capacity
        assert end == len(bucket.data)


@given(st.lists(st.integers(0, 300), min_size=1, max_size=30), st.integers(64, 600))
def test_buckets_are_full_but_for_what_the_next_tensor_needs(sizes, capacity) -> None:
    items = [(str(index), np.zeros(size, np.uint8)) for index, size in enumerate(sizes)]
    buckets = list(sent(items, capacity))
    for bucket, following in pairwise(buckets):
        padded = -(-len(bucket.data) // ALIGNMENT) * ALIGNMENT
        assert padded + following.chunks[0].tensor_bytes > capacity or padded >= capacity


def test_no_weights_are_no_buckets() -> None:
    assert list(sent([], 10)) == []
    assert list(read_buckets([])) == []


def test_a_tensor_that_fits_is_read_in_place() -> None:
    (bucket,) = sent([("a", np.arange(4, dtype=np.float32))], 100)
    ((_, array),) = read_buckets([bucket])
    bucket.data[:] = 0
    assert isinstance(array, np.ndarray)
    assert array.tolist() == [0, 0, 0, 0]


def test_a_tensor_in_a_bucket_on_a_device_is_read_in_place() -> None:
    (bucket,) = sent([("a", torch.arange(4.0))], 100, on_device=True)
    ((_, tensor),) = read_buckets([bucket])
    bucket.data[:] = 0
    assert tensor.tolist() == [0, 0, 0, 0]


@pytest.mark.gpu
def test_weights_on_a_card_come_out_as_they_went_in_without_leaving_it() -> None:
    items = [
        ("half", torch.randn(50, 3, dtype=torch.bfloat16, device="cuda")),
        ("large", torch.randn(3000, device="cuda")),
        ("from the host", np.arange(5)),
        ("empty", torch.empty(0, 3, device="cuda")),
    ]
    buffers = [torch.empty(1000, dtype=torch.uint8, device="cuda") for _ in range(2)]
    count = iter(range(1000))
    read = [
        (name, tensor.clone())
        for name, tensor in read_buckets(fill_buckets(items, lambda: buffers[next(count) % 2]))
    ]
    for (name, found), (expected_name, expected) in zip(read, items, strict=True):
        assert name == expected_name
        assert found.is_cuda
        assert torch.equal(found.cpu(), as_tensor(expected).cpu())


@pytest.mark.parametrize("kept", [[0], [1], [0, 2], [0, 1]])
def test_a_tensor_that_is_not_complete_is_refused(kept) -> None:
    buckets = list(sent([("w", np.arange(256, dtype=np.uint8))], 100, num_buffers=4))
    assert len(buckets) == 3
    with pytest.raises(EngineError, match="weight"):
        list(read_buckets([buckets[index] for index in kept]))
