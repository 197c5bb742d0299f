"""New weights on their way into vLLM's worker in memory of its card, by vLLM's own weight transfer.

    engine's process: fill -> tensors on the card, while replies are sampled
    vLLM's worker:    reads them there through CUDA IPC, while nothing is sampled

vLLM's backend `ipc`, of which nothing is imported here: what it is asked is plain dictionaries.
"""

from __future__ import annotations

import base64
import pickle
from collections.abc import Iterable
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from envsdk.weights.buckets import UpdateInterrupted
from envsdk.weights.device_memory import card_of, collect, share, synchronize

if TYPE_CHECKING:
    from torch import Tensor

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
