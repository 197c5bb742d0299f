"""New weights on their way into vLLM's processes, through memory they share.

engine's process: stage -> buckets in anonymous memory, while replies are sampled
vLLM's workers:   read_staged -> the weights, while nothing is sampled
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from envsdk.engines.engine import WeightReference
from envsdk.engines.vllm.weight_transfer import WeightsOnCard
from envsdk.weights.buckets import Bucket, fill_buckets, read_buckets
from envsdk.weights.shapes import Shapes, checked
from envsdk.weights.shared_memory import SharedMemory, SharedPlace, mapped
from envsdk.weights.tensors import tensors_in

if TYPE_CHECKING:
    from torch import Tensor

BUCKET_BYTES = 64 * 1024**2

Handle = dict[str, Any]
"""Where staged weights lie, in plain values that any serializer takes."""


class StagedWeights:
    """A copy of all weights. Owner: the engine; `close` when vLLM has read it."""

    def __init__(self, bucket_bytes: int = BUCKET_BYTES) -> None:
        self._memory = SharedMemory(bucket_bytes)
        self._buckets: list[dict[str, Any]] = []

    def fill(self, weights: Iterable[tuple[str, Any]]) -> None:
        """Copy `weights`, each as it comes; raises what reading them raises."""
        for bucket in fill_buckets(weights, lambda: self._memory.buffer(len(self._buckets))):
            place = self._memory.place(len(self._buckets))
            self._buckets.append({"place": asdict(place), "index": bucket.index})

    @property
    def handle(self) -> Handle:
        """For `read_staged` in a process of this machine."""
        return {"buckets": self._buckets}

    def close(self) -> None:
        """Idempotent. Readers keep what they have mapped."""
        self._memory.close()


def read_staged(handle: Handle) -> Iterator[tuple[str, NDArray[Any] | Tensor]]:
    """The staged weights: views of the shared memory, valid for as long as they are held."""
    return read_buckets(
        Bucket.of(bucket["index"], mapped(SharedPlace(**bucket["place"]), writable=True))
        for bucket in handle["buckets"]
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
