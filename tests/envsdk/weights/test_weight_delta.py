"""Differences of weights: exact for any bits, whole where there is nothing to build upon."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from envsdk.contracts.failures import EngineError
from envsdk.weights.buckets import Bucket, as_bytes, fill_buckets, read_buckets
from envsdk.weights.delta import WeightBase, decode, encode
from tests.by_day import examples

BITS = {np.uint8: "uint8", np.uint16: "bfloat16", np.uint32: "float32", np.uint64: "float64"}


@st.composite
def histories(draw: st.DrawFn) -> list[dict[str, np.ndarray]]:
    """Versions of a few tensors: any bits; few, many or all elements change, or the shape does."""
    kind = draw(st.sampled_from(list(BITS)))
    names = draw(st.lists(st.sampled_from("abc"), min_size=1, unique=True))
    shapes = {name: draw(hnp.array_shapes(min_dims=0, max_dims=2, min_side=0, max_side=40)) for name in names}
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))

    def random(shape: tuple[int, ...]) -> np.ndarray:
        return rng.integers(0, np.iinfo(kind).max, shape, kind, endpoint=True)

    versions = [{name: np.asarray(random(shape), kind) for name, shape in shapes.items()}]
    for share in draw(st.lists(st.sampled_from([0.0, 0.02, 0.2, 0.6, 1.0]), max_size=5)):
        following = {}
        for name, array in versions[-1].items():
            shape = shapes[name] = draw(st.sampled_from([shapes[name], shapes[name], (*shapes[name], 2)]))
            if shape != array.shape:
                following[name] = np.asarray(random(shape), kind)
            else:
                changed = rng.random(shape) < share
                following[name] = np.where(changed, random(shape), array).astype(kind)
        versions.append(following)
    return versions


def tensors(arrays: dict[str, np.ndarray]) -> dict[str, Any]:
    """Two-byte bits as bfloat16, so that NaN and -0.0 of a type NumPy lacks are among them."""
    return {
        name: torch.from_numpy(array.copy()).view(torch.bfloat16)
        if array.dtype == np.uint16 and array.ndim
        else array
        for name, array in arrays.items()
    }


def same_bits(ours: Any, theirs: Any) -> bool:
    mine, others = as_bytes(ours), as_bytes(theirs)
    return mine[1:] == others[1:] and bool(np.array_equal(mine[0], others[0]))


@given(history=histories(), capacity=st.integers(64, 4096))
@settings(max_examples=examples(50), deadline=None)
def test_what_arrives_is_what_was_sent_bit_for_bit(
    history: list[dict[str, np.ndarray]], capacity: int
) -> None:
    sender, receiver = WeightBase(), WeightBase()
    for number, arrays in enumerate(history):
        weights = tensors(arrays)
        encoded = sender.encoded(weights.items(), as_delta=number > 0)
        buckets = (
            Bucket(bucket.chunks, bucket.data.copy())
            for bucket in fill_buckets(encoded, lambda: np.empty(capacity, np.uint8))
        )
        arrived = {
            name: torch.clone(value) if isinstance(value, torch.Tensor) else value.copy()
            for name, value in receiver.decoded(read_buckets(buckets))
        }
        assert arrived.keys() == weights.keys()
        assert all(same_bits(arrived[name], weight) for name, weight in weights.items())


@given(
    array=hnp.arrays(np.float32, st.integers(0, 200), elements=st.floats(width=32, allow_nan=True)),
    changes=st.dictionaries(st.integers(0, 199), st.floats(width=32), max_size=20),
)
@settings(deadline=None)
def test_an_encoded_tensor_is_never_longer_than_the_whole_tensor_and_its_header(
    array: np.ndarray, changes: dict[int, float]
) -> None:
    new = array.copy()
    for place, value in changes.items():
        if place < len(new):
            new[place] = value
    data, dtype, shape = as_bytes(new)
    base = as_bytes(array)[0].copy()
    encoded = encode(data, dtype, shape, base)
    assert len(encoded) <= len(encode(data, dtype, shape, None))
    assert same_bits(decode("w", encoded, base)[0], data)


def test_few_changes_take_few_bytes() -> None:
    rng = np.random.default_rng(0)
    old = torch.from_numpy(rng.normal(0, 0.02, 1_000_000).astype(np.float32)).bfloat16()
    bits = old.clone().view(torch.int16)
    changed = torch.from_numpy(rng.random(1_000_000) < 0.01)
    bits[changed] ^= 1  # the last bit of the mantissa, as a small learning rate changes it
    data, dtype, shape = as_bytes(bits.view(torch.bfloat16))
    assert len(encode(data, dtype, shape, as_bytes(old)[0])) < 0.02 * len(data)


def test_nothing_changed_takes_a_header() -> None:
    data, dtype, shape = as_bytes(np.ones(1000, np.float32))
    assert len(encode(data, dtype, shape, data.copy())) < 100


def test_a_difference_to_weights_that_are_not_here_is_refused() -> None:
    sender = WeightBase()
    list(sender.encoded([("w", np.zeros(100, np.float32))], as_delta=False))
    encoded = list(sender.encoded([("w", np.ones(100, np.float32))], as_delta=True))
    with pytest.raises(EngineError, match=r"`w`.*not here"):
        list(WeightBase().decoded(encoded))


@given(data=st.data())
@settings(deadline=None)
def test_a_damaged_parcel_is_refused_or_means_some_tensor_of_that_size(data: st.DataObject) -> None:
    rng = np.random.default_rng(0)
    old = rng.integers(0, 1 << 16, 500, np.uint16)
    new = np.where(rng.random(500) < data.draw(st.sampled_from([0.05, 0.5])), old ^ 1, old).astype(np.uint16)
    content, dtype, shape = as_bytes(new)
    encoded = encode(content, dtype, shape, as_bytes(old)[0]).copy()
    place = data.draw(st.integers(0, len(encoded) - 1))
    encoded[place] ^= data.draw(st.integers(1, 255))
    try:
        found, _, _ = decode("w", encoded[: data.draw(st.integers(0, len(encoded)))], as_bytes(old)[0].copy())
    except EngineError:
        return
    assert len(found) <= len(content) * 8


def test_a_base_has_no_version_while_an_update_is_under_way() -> None:
    base = WeightBase()
    list(base.encoded([("w", np.zeros(10, np.float32))], as_delta=False))
    base.complete("one")
    assert base.version == "one"
    base.begin()
    assert base.version == ""
