"""Weights in buckets: flat buffers of bounded size, each with an index of what lies where. Pure.

    (name, array)* -> fill_buckets -> Bucket* ==any transport==> read_buckets -> (name, array)*

A tensor that fits into a bucket lies in one, in one chunk, so that the reader gets a view of it. A larger one
is cut into chunks over as many buckets as it takes, and put together again by the reader. So a bucket never
outgrows its buffer, whatever the model, and buffers can be made once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from envsdk.contracts.failures import EngineError

if TYPE_CHECKING:
    from torch import Tensor

ALIGNMENT = 64
"""Bytes; where a chunk begins in its bucket, a multiple of every element's size."""

Buffer = NDArray[np.uint8]
"""Bytes in main memory."""
Memory: TypeAlias = "Buffer | Tensor"
"""A buffer, or a flat uint8 tensor on any device."""


class UpdateInterrupted(EngineError):
    """The rest of an update did not come; the engine keeps the weights it had."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """Where a tensor, or a part of one too large for a bucket, lies."""

    name: str
    dtype: str
    """NumPy's name for it, or PyTorch's (`bfloat16`) where NumPy has none."""
    shape: tuple[int, ...]
    """Shape of the full tensor."""
    tensor_bytes: int
    """Size of the full tensor."""
    start: int
    """First byte of the chunk in the tensor."""
    offset: int
    """First byte of the chunk in the bucket."""
    num_bytes: int


@dataclass(frozen=True, slots=True)
class Bucket:
    """A full buffer and its index."""

    chunks: tuple[Chunk, ...]
    data: Memory
    """`[num_bytes]`, the used part of the buffer."""

    @property
    def index(self) -> dict[str, Any]:
        """All but the data, in plain values that any serializer takes; `of` is the inverse."""
        return {"num_bytes": len(self.data), "chunks": [asdict(chunk) for chunk in self.chunks]}

    @classmethod
    def of(cls, index: Mapping[str, Any], data: Memory) -> Bucket:
        """The bucket with this index, whose bytes are the first of `data`."""
        chunks = (Chunk(**chunk | {"shape": tuple(chunk["shape"])}) for chunk in index["chunks"])
        return cls(tuple(chunks), data[: index["num_bytes"]])


def fill_buckets(
    weights: Iterable[tuple[str, NDArray[Any] | Tensor]], next_buffer: Callable[[], Memory]
) -> Iterator[Bucket]:
    """Copy `weights` (NumPy arrays, or tensors on any device) into buffers, in their order.

    Between a tensor and a buffer on the same device nothing passes through main memory.

    `next_buffer` is asked for an empty buffer of at least one byte when the one before was yielded; all
    are the caller's again when the generator is resumed.
    """
    buffer: Any = next_buffer()
    on_host = isinstance(buffer, np.ndarray)
    chunks: list[Chunk] = []
    used = 0
    for name, weight in weights:
        is_array = on_host and isinstance(weight, np.ndarray)
        data, dtype, shape = as_bytes(weight) if is_array else _as_flat_tensor(weight)
        start = 0
        while True:
            offset = -(-used // ALIGNMENT) * ALIGNMENT
            left = len(data) - start
            fits_elsewhere = start == 0 and left <= len(buffer)
            if chunks and (offset >= len(buffer) or (fits_elsewhere and offset + left > len(buffer))):
                yield Bucket(tuple(chunks), buffer[:used])
                buffer, chunks, used = next_buffer(), [], 0
                continue
            count = min(left, len(buffer) - offset)
            _copy(data[start : start + count], buffer[offset : offset + count])
            chunks.append(
                Chunk(
                    name=name,
                    dtype=dtype,
                    shape=shape,
                    tensor_bytes=len(data),
                    start=start,
                    offset=offset,
                    num_bytes=count,
                )
            )
            used, start = offset + count, start + count
            if count == left:
                break
    if chunks:
        yield Bucket(tuple(chunks), buffer[:used])


def read_buckets(buckets: Iterable[Bucket]) -> Iterator[tuple[str, NDArray[Any] | Tensor]]:
    """The weights in `buckets`: arrays from main memory, and tensors for what NumPy has no type for; tensors
    of their device from buckets that are tensors.

    Each may be a view of its bucket's buffer and is valid until the next one is asked for. EngineError for a
    tensor that is not complete.
    """
    full: Any = np.empty(0, np.uint8)
    filled = 0
    for bucket in buckets:
        for chunk in bucket.chunks:
            data = bucket.data[chunk.offset : chunk.offset + chunk.num_bytes]
            if chunk.start != filled or len(data) != chunk.num_bytes:
                raise EngineError(f"weight `{chunk.name}` is torn at byte {filled} of {chunk.tensor_bytes}")
            if chunk.num_bytes < chunk.tensor_bytes:
                if filled == 0:
                    full = _empty_like(data, chunk.tensor_bytes)
                full[filled : filled + chunk.num_bytes] = data
                filled += chunk.num_bytes
                if filled < chunk.tensor_bytes:
                    continue
                data, filled = full, 0
            yield chunk.name, as_array(data, chunk.dtype, chunk.shape)
    if filled:
        raise EngineError(f"the last weight ends after {filled} of {len(full)} bytes")


def as_bytes(weight: NDArray[Any] | Tensor) -> tuple[Buffer, str, tuple[int, ...]]:
    """Bytes in main memory, dtype and shape."""
    if isinstance(weight, np.ndarray):
        data = np.ascontiguousarray(weight).reshape(-1).view(np.uint8)
        return data, weight.dtype.name, weight.shape
    flat, dtype, shape = _as_flat_tensor(weight)
    return flat.cpu().numpy(), dtype, shape


def as_array(data: Memory, dtype: str, shape: tuple[int, ...]) -> NDArray[Any] | Tensor:
    """The inverse of `as_bytes`: an array, or a tensor where `data` is one or NumPy lacks the type."""
    if isinstance(data, np.ndarray):
        try:
            return data.view(np.dtype(dtype)).reshape(shape)
        except TypeError:
            import torch

            # PyTorch wants writable memory, which an object store's is not.
            data = torch.from_numpy(data) if data.flags.writeable else torch.tensor(data)
    import torch

    kind: torch.dtype = getattr(torch, dtype)
    if not len(data):  # its strides mean nothing, as in `_as_flat_tensor`
        return torch.empty(shape, dtype=kind, device=data.device)
    return data.view(kind).reshape(shape)


def _as_flat_tensor(weight: NDArray[Any] | Tensor) -> tuple[Tensor, str, tuple[int, ...]]:
    """Bytes where they are, dtype and shape."""
    import torch

    if isinstance(weight, np.ndarray):
        data, name, shape = as_bytes(weight)
        return torch.from_numpy(data), name, shape
    if weight.numel() == 0:  # its strides mean nothing, and stop PyTorch from viewing it as bytes
        flat = torch.empty(0, dtype=torch.uint8, device=weight.device)
    else:
        # Flat first: a scalar has no last dimension to view as bytes.
        flat = weight.detach().contiguous().view(-1).view(torch.uint8)
    return flat, str(weight.dtype).removeprefix("torch."), tuple(weight.shape)


def _copy(data: Any, into: Any) -> None:
    if isinstance(data, np.ndarray) or not isinstance(into, np.ndarray):
        into[:] = data
    else:
        import torch

        torch.from_numpy(into).copy_(data)  # from the device at once: no second copy in main memory


def _empty_like(data: Memory, num_bytes: int) -> Memory:
    return np.empty(num_bytes, np.uint8) if isinstance(data, np.ndarray) else data.new_empty(num_bytes)
