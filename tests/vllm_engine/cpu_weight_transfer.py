"""vLLM's weight transfer by handles, in main memory: what CUDA IPC does is done by PyTorch's shared memory.

Everything else is vLLM's own: messages, life cycle, loading. `on_this_side` is for the process that shares,
`WorkerExtension` for vLLM's workers.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from envsdk.engines.vllm import staged_weights
from envsdk.engines.vllm import worker as own_worker
from envsdk.engines.vllm.settings import OWNER
from envsdk.weights.device_memory import Handle

CARD = "GPU-none"


def share(tensor: Tensor) -> Handle:
    """Arguments as `rebuild_cuda_tensor` takes them."""
    manager, name, size = tensor.untyped_storage()._share_filename_cpu_()
    where: Any = torch.storage.TypedStorage
    meta = (Tensor, tensor.size(), tensor.stride(), tensor.storage_offset(), where, tensor.dtype)
    return Handle(True, (*meta, 7, manager, size, 0, False, name, 0, b"", False))


def rebuild(*arguments: Any) -> Tensor:
    """What `share` shared, given this worker's own device number."""
    _, size, stride, offset, _, dtype, device, manager, num_bytes, _, _, name, *_ = arguments
    assert device != 7, "the owner's number of the card"
    storage = torch.UntypedStorage._new_shared_filename_cpu(manager, name, num_bytes)
    return torch.empty(0, dtype=dtype).set_(storage, offset, size, stride)


@contextmanager
def on_this_side() -> Iterator[None]:
    """Handles are to main memory inside."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(staged_weights, "share", share)
        patch.setattr(staged_weights, "card_of", lambda device: CARD)
        yield


class WorkerExtension(own_worker.WorkerExtension):
    """Of workers, which import this module."""


def _stand_in() -> None:
    from vllm.distributed.weight_transfer import ipc_engine

    setattr(ipc_engine, "rebuild_cuda_tensor", rebuild)  # noqa: B010
    setattr(torch.cuda, "get_device_properties", lambda device: SimpleNamespace(uuid=CARD))  # noqa: B010
    setattr(torch.accelerator, "synchronize", lambda *device: None)  # noqa: B010


if OWNER in os.environ:
    _stand_in()
