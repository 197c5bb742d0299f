"""Weights as the difference to what the other side has: exact, compressed, and whole where that is no longer.

    sender    encode(new, base) -> encoded tensor
    receiver  decode(encoded, base) -> the tensor, bit for bit

Both sides keep the bytes that were sent last as their base. An encoded tensor is a flat array of bytes, so it
travels in buckets like any weight. Of each tensor the shortest form is taken:

    same     nothing has changed
    sparse   the places and values of what has, compressed
    xor      exclusive or with the base, byte by byte of the elements, compressed
    whole    the tensor itself

Elements are compared as bits: NaN, -0.0 and any other pattern come out as they went in. Pure.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from envsdk.contracts.failures import EngineError
from envsdk.weights.buckets import Buffer, as_array, as_bytes

if TYPE_CHECKING:
    from torch import Tensor

_LEVEL = 1
"""Level of zlib: the fastest. What is left after the difference has little more to give."""
_SPARSE_SHARE = 0.25
"""With more changed elements than this, their places cost more than an exclusive or of all."""
_SAMPLE_BYTES = 1 << 16
_WORTH = 0.95
"""An exclusive or that shrinks a sample to more than this share is not tried on the whole."""
_UNSIGNED: dict[int, type[np.unsignedinteger[Any]]] = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}


class WeightBase:
    """The bytes of the weights that one side had last, by name; the other side's are the same.

    `version` names them: it is set when an update is complete and forgotten when one begins, so that what an
    update left half changed is never built upon.
    """

    def __init__(self) -> None:
        self.version = ""
        self._bytes: dict[str, Buffer] = {}

    def begin(self) -> None:
        """An update begins; until `complete` there is no version."""
        self.version = ""

    def complete(self, version: str) -> None:
        """The update has come whole."""
        self.version = version

    def encoded(
        self, weights: Iterable[tuple[str, NDArray[Any] | Tensor]], *, as_delta: bool
    ) -> Iterator[tuple[str, Buffer]]:
        """These weights, encoded; they become the base. Without `as_delta` each is whole."""
        for name, weight in weights:
            data, dtype, shape = as_bytes(weight)
            base = self._bytes.get(name) if as_delta else None
            yield name, encode(data, dtype, shape, base)
            self._keep(name, data)

    def decoded(self, tensors: Iterable[tuple[str, Any]]) -> Iterator[tuple[str, NDArray[Any] | Tensor]]:
        """The weights that these hold; they become the base. Each stays valid until it is sent again.

        EngineError for one that is damaged, or that differs from a tensor that is not here.
        """
        for name, encoded in tensors:
            data, dtype, shape = decode(name, np.asarray(encoded), self._bytes.get(name))
            self._keep(name, data)
            yield name, as_array(self._bytes[name], dtype, shape)

    def _keep(self, name: str, data: Buffer) -> None:
        kept = self._bytes.get(name)
        if kept is None or len(kept) != len(data):
            self._bytes[name] = data.copy()
        elif kept is not data:
            kept[:] = data


def encode(data: Buffer, dtype: str, shape: tuple[int, ...], base: Buffer | None) -> Buffer:
    """A tensor, given as its bytes, encoded; `base` are those that the other side has, if any."""
    num_elements = int(np.prod(shape, dtype=np.int64))
    size = len(data) // num_elements if num_elements else 1
    kind, body = "whole", data
    if base is not None and len(base) == len(data) and size in _UNSIGNED:
        kind, body = _shortest(data.view(_UNSIGNED[size]), base.view(_UNSIGNED[size]))
    header = json.dumps({"kind": kind, "dtype": dtype, "shape": shape, "bytes": len(data)}).encode()
    return np.concatenate([np.frombuffer(len(header).to_bytes(4, "little") + header, np.uint8), body])


def decode(name: str, encoded: Buffer, base: Buffer | None) -> tuple[Buffer, str, tuple[int, ...]]:
    """Bytes, dtype and shape of the tensor in `encoded`. May change `base` and return it."""
    try:
        length = int.from_bytes(encoded[:4].tobytes(), "little")
        header = json.loads(encoded[4 : 4 + length].tobytes())
        kind, dtype, num_bytes = header["kind"], str(header["dtype"]), int(header["bytes"])
        shape = tuple(int(each) for each in header["shape"])
    except (ValueError, KeyError, TypeError) as error:
        raise EngineError(f"weight `{name}`: its encoding is damaged: {error}") from None
    body = encoded[4 + length :]
    if kind == "whole":
        if len(body) != num_bytes:
            raise EngineError(f"weight `{name}`: its encoding has {len(body)} of {num_bytes} bytes")
        return body, dtype, shape
    if base is None or len(base) != num_bytes:
        raise EngineError(f"weight `{name}`: a difference came to weights that are not here")
    elements = int(np.prod(shape, dtype=np.int64))
    if elements and num_bytes // elements not in _UNSIGNED:
        raise EngineError(f"weight `{name}`: its encoding is damaged: {num_bytes} bytes in all")
    words = base.view(_UNSIGNED[num_bytes // elements]) if elements else base
    try:
        if kind == "sparse":
            _change(words, body)
        elif kind == "xor":
            words ^= _unshuffled(zlib.decompress(body.tobytes()), words.dtype)
        elif kind != "same":
            raise ValueError(f"unknown kind {kind!r}")
    except (ValueError, IndexError, zlib.error) as error:
        raise EngineError(f"weight `{name}`: its encoding is damaged: {error}") from None
    return base, dtype, shape


def _shortest(new: NDArray[Any], old: NDArray[Any]) -> tuple[str, Buffer]:
    places = np.flatnonzero(new != old)
    if not len(places):
        return "same", np.empty(0, np.uint8)
    if len(places) <= _SPARSE_SHARE * len(new):
        body = _sparse(places, new[places] ^ old[places])
        if len(body) < new.nbytes:
            return "sparse", body
    sample = _SAMPLE_BYTES // new.itemsize
    if len(_planes(new[:sample] ^ old[:sample])) < _WORTH * min(new.nbytes, sample * new.itemsize):
        body = _planes(new ^ old)
        if len(body) < new.nbytes:
            return "xor", body
    return "whole", new.view(np.uint8)


def _sparse(places: NDArray[np.int64], flips: NDArray[Any]) -> Buffer:
    """Gaps between the places, and what to flip there. Gaps and flips are small numbers: they compress."""
    gaps = np.diff(places, prepend=0)
    width: type[np.unsignedinteger[Any]] = np.uint16 if gaps.max() < 1 << 16 else np.uint64
    head = np.array([len(places), np.dtype(width).itemsize], np.uint64)
    packed = b"".join([head.tobytes(), _shuffled(gaps.astype(width)), _shuffled(flips)])
    return np.frombuffer(zlib.compress(packed, _LEVEL), np.uint8)


def _change(words: NDArray[Any], body: Buffer) -> None:
    packed = zlib.decompress(body.tobytes())
    count, gap_bytes = (int(each) for each in np.frombuffer(packed, np.uint64, 2))
    flips_at = 16 + count * gap_bytes
    if len(packed) != flips_at + count * words.itemsize:
        raise ValueError(f"{len(packed)} bytes for {count} changes")
    gaps = _unshuffled(packed[16:flips_at], np.dtype(_UNSIGNED[gap_bytes]))
    places = np.cumsum(gaps.astype(np.int64))
    if count and places[-1] >= len(words):
        raise ValueError("a change lies beyond the tensor's end")
    words[places] ^= _unshuffled(packed[flips_at:], words.dtype)


def _shuffled(values: NDArray[Any]) -> bytes:
    """All first bytes, then all second ones ...: equal bytes come together."""
    return np.ascontiguousarray(values.view(np.uint8).reshape(-1, values.itemsize).T).tobytes()


def _planes(values: NDArray[Any]) -> Buffer:
    return np.frombuffer(zlib.compress(_shuffled(values), _LEVEL), np.uint8)


def _unshuffled(data: bytes, dtype: np.dtype[Any]) -> NDArray[Any]:
    planes = np.frombuffer(data, np.uint8).reshape(dtype.itemsize, -1)
    return np.ascontiguousarray(planes.T).view(dtype).reshape(-1)
