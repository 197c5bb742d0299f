"""New weights on their way into vLLM's processes, through memory they share.

    engine's process: stage -> buckets in anonymous memory, while replies are sampled
    vLLM's workers:   read_staged -> the weights, while nothing is sampled

The memory has no name in the file system (memfd): the last process that has it open ends it.
"""

from __future__ import annotations

import itertools
import mmap
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from envsdk.failures import EngineError
from envsdk.inference.engine import WeightReference
from envsdk.inference.vllm.weight_transfer import WeightsOnCard
from envsdk.inference.weight_buckets import Bucket, Buffer, Chunk, fill_buckets, read_buckets
from envsdk.inference.weight_shapes import Shapes, checked

if TYPE_CHECKING:
    from torch import Tensor

BUCKET_BYTES = 64 * 1024**2

Handle = dict[str, Any]
"""Where staged weights lie, in plain values that any serializer takes."""


class StagedWeights:
    """A copy of all weights. Owner: the engine; `close` when vLLM has read it."""

    def __init__(self, bucket_bytes: int = BUCKET_BYTES) -> None:
        self._capacity = -(-bucket_bytes // mmap.ALLOCATIONGRANULARITY) * mmap.ALLOCATIONGRANULARITY
        self._fd = os.memfd_create("envsdk-vllm-weights", os.MFD_CLOEXEC)
        self._num_buffers = 0
        self._buckets: list[dict[str, Any]] = []

    def fill(self, weights: Iterable[tuple[str, Any]]) -> None:
        """Copy `weights`, each as it comes; raises what reading them raises."""
        for bucket in fill_buckets(weights, self._next_buffer):
            chunks = [asdict(chunk) for chunk in bucket.chunks]
            self._buckets.append({"num_bytes": len(bucket.data), "chunks": chunks})

    def _next_buffer(self) -> Buffer:
        offset = self._num_buffers * self._capacity
        self._num_buffers += 1
        os.ftruncate(self._fd, offset + self._capacity)  # takes no memory before it is written to
        return np.frombuffer(mmap.mmap(self._fd, self._capacity, offset=offset), np.uint8)

    @property
    def handle(self) -> Handle:
        """For `read_staged` in a process of this machine."""
        return {
            "path": f"/proc/{os.getpid()}/fd/{self._fd}",
            "capacity": self._capacity,
            "buckets": self._buckets,
        }

    def close(self) -> None:
        """Idempotent. Readers keep what they have mapped."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def read_staged(handle: Handle) -> Iterator[tuple[str, NDArray[Any] | Tensor]]:
    """The staged weights: views of the shared memory, valid for as long as they are held."""
    buckets, capacity = handle["buckets"], handle["capacity"]
    with open(handle["path"], "r+b") as file:
        memory = np.frombuffer(mmap.mmap(file.fileno(), len(buckets) * capacity), np.uint8)
    yield from read_buckets(
        Bucket(
            tuple(Chunk(**(chunk | {"shape": tuple(chunk["shape"])})) for chunk in bucket["chunks"]),
            memory[number * capacity : number * capacity + bucket["num_bytes"]],
        )
        for number, bucket in enumerate(buckets)
    )


def stage(
    weights: WeightReference, expected: Shapes, *, optional: frozenset[str], device: str = "cpu"
) -> StagedWeights | WeightsOnCard:
    """A copy of `weights` when they are the `expected` ones, all of them and no others; EngineError when not.

    On `device` when that is a card and they come on one; else in main memory. `optional` names may be there
    and are passed over. Nothing is expected where `expected` is empty. Blocks.
    """
    stream: Iterable[tuple[str, Any]]
    if isinstance(weights, Path):
        stream, device = tensors_in(weights), "cpu"
    else:
        stream = weights.items() if isinstance(weights, Mapping) else weights
    stream = iter(checked(stream, expected, optional=optional) if expected else stream)
    first = list(itertools.islice(stream, 1))
    on_card = device != "cpu" and any(_is_on(weight, device) for _, weight in first)
    staged = WeightsOnCard(device) if on_card else StagedWeights()
    try:
        staged.fill(itertools.chain(first, stream))
    except BaseException:
        staged.close()
        raise
    return staged


def _is_on(weight: Any, device: str) -> bool:
    """A tensor on a device of this kind."""
    return not isinstance(weight, np.ndarray) and weight.device.type == device.partition(":")[0]


def tensors_in(folder: Path) -> Iterator[tuple[str, Any]]:
    """Every tensor of a Hugging Face folder's safetensors files, one at a time."""
    from safetensors import SafetensorError, safe_open

    for file in _weight_files(folder):
        try:
            with safe_open(file, framework="pt") as tensors:
                for name in tensors.keys():  # noqa: SIM118 - it is no mapping
                    yield name, tensors.get_tensor(name)
        except (SafetensorError, OSError) as error:
            raise EngineError(f"{file} cannot be read: {error}") from error


def _weight_files(folder: Path) -> list[Path]:
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise EngineError(f"{folder} holds no *.safetensors file; save the model with save_pretrained")
    return files
