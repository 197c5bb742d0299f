"""New weights on their way into vLLM's processes, through memory they share or on their card.

engine's process: stage -> buckets in anonymous memory, or tensors on the card, while replies are sampled
vLLM's workers:   read_staged, or vLLM's own weight transfer through CUDA IPC, while nothing is sampled

That is vLLM's backend `ipc`, of which nothing is imported here: what it is asked is plain dictionaries.
"""

from __future__ import annotations

import base64
import itertools
import pickle
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from envsdk.engines.engine import WeightReference
from envsdk.weights.buckets import Bucket, UpdateInterrupted, fill_buckets, read_buckets
from envsdk.weights.device_memory import card_of, collect, share, synchronize
from envsdk.weights.folders import tensors_in
from envsdk.weights.shapes import Shapes, checked
from envsdk.weights.shared_memory import SharedMemory, SharedPlace, mapped

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


CONFIG = {"backend": "ipc"}
"""vLLM's `weight_transfer_config`."""
ALLOW_HANDLES = "VLLM_ALLOW_INSECURE_SERIALIZATION"
"""Environment variable that lets vLLM's processes unpickle handles, which only their owner sends them."""


class WeightsOnCard:
    """A copy of all weights, this process's memory on a card. Owner: the engine; `close` when vLLM has it."""

    def __init__(self, device: str) -> None:
        self._device = device
        self._tensors: dict[str, Tensor] = {}

    def fill(self, weights: Iterable[tuple[str, Any]]) -> None:
        """Copy `weights`, each as it comes; raises what reading them raises.

        UpdateInterrupted where there is no room.
        """
        import torch

        for name, weight in weights:
            try:
                tensor = torch.as_tensor(weight).detach()
                self._tensors[name] = tensor.to(
                    self._device, copy=True, memory_format=torch.contiguous_format
                )
            except torch.OutOfMemoryError as error:
                raise UpdateInterrupted(
                    f"{self._device} has no room for new weights beside vLLM's: lower gpu_memory_utilization "
                    f"or set model_update_transport: shared_memory ({error})"
                ) from error

    def update_info(self) -> dict[str, Any]:
        """What vLLM's `update_weights` is asked. Once: vLLM lets go of each handle once."""
        card = card_of(self._device)
        tensors = list(self._tensors.values())
        handles = [{card: share(tensor).arguments} for tensor in tensors]
        synchronize(tensors[0])
        return {
            "names": list(self._tensors),
            "dtype_names": [str(tensor.dtype).removeprefix("torch.") for tensor in tensors],
            "shapes": [list(tensor.shape) for tensor in tensors],
            # Text, because vLLM's own messages take nothing but plain values.
            "ipc_handles_pickled": base64.b64encode(pickle.dumps(handles)).decode(),
        }

    def close(self) -> None:
        """Idempotent."""
        self._tensors.clear()
        collect()


def is_there(engine_args: type[Any], llm: type[Any]) -> bool:
    """Whether this vLLM, by its `AsyncEngineArgs` and `AsyncLLM`, transfers weights in the way used here."""
    if not hasattr(llm, "start_weight_update") or "weight_transfer_config" not in _names(engine_args):
        return False
    try:
        from vllm.distributed.weight_transfer.ipc_engine import IPCWeightTransferUpdateInfo
    except ImportError:
        return False
    known = _names(IPCWeightTransferUpdateInfo)
    return {"names", "dtype_names", "shapes", "ipc_handles_pickled"} <= known


async def transfer(llm: Any, info: dict[str, Any]) -> None:
    """Give an `AsyncLLM` that samples nothing the weights behind `info`."""
    from vllm.distributed.weight_transfer.base import WeightTransferUpdateRequest

    await llm.start_weight_update()
    await llm.update_weights(WeightTransferUpdateRequest(update_info=info))
    await llm.finish_weight_update()


async def begin(llm: Any) -> None:
    """Once, before the first `transfer`."""
    from vllm.distributed.weight_transfer.base import WeightTransferInitRequest

    await llm.init_weight_transfer_engine(WeightTransferInitRequest(init_info={}))


def _names(data_class: type[Any]) -> set[str]:
    return {each.name for each in fields(data_class)}
