"""Memory of one process on a device, read by another process there: CUDA IPC, by way of PyTorch.

    owner:   share(tensor) -> Handle ==any message==> reader: open_handle -> tensor, dropped when it was read
    a reader that died -> the owner releases its handle

A card counts as the same by its UUID: `CUDA_VISIBLE_DEVICES` gives one card several numbers. PyTorch counts
the readers of each handle, so every reader gets a handle of its own; memory that was freed while one is open
stays taken until `collect`. Tensors in main memory are shared by files that have no other use than to run
the same code without a GPU.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from torch import Tensor

    from envsdk.weights.buckets import Memory

_DEVICE, _COUNTER, _COUNTER_OFFSET = 6, 11, 12
"""Places among the arguments of PyTorch's `rebuild_cuda_tensor`."""


@dataclass(frozen=True, slots=True)
class Handle:
    """One reader's way to a tensor; may be pickled."""

    on_cuda: bool
    arguments: tuple[Any, ...]
    """Arguments of the function of PyTorch that opens it."""

    def release(self) -> None:
        """The reader died: do not wait for it to let go."""
        if self.on_cuda:
            import torch

            torch.UntypedStorage._release_ipc_counter_cuda(
                self.arguments[_COUNTER], self.arguments[_COUNTER_OFFSET]
            )


def card_of(device: str) -> str:
    """The UUID of the card that PyTorch names `device` in this process; "" for what is no card."""
    if not device.startswith("cuda"):
        return ""
    import torch

    return str(torch.cuda.get_device_properties(torch.device(device)).uuid)


def share(tensor: Tensor) -> Handle:
    """A handle to this tensor, which a storage of its own holds; in main memory to its bytes. For one reader.

    RuntimeError where the device's memory cannot be shared.
    """
    if tensor.is_cuda:
        from torch.multiprocessing.reductions import reduce_tensor

        reduce: Any = reduce_tensor
        return Handle(True, reduce(tensor)[1])
    return Handle(False, tensor.untyped_storage()._share_filename_cpu_())


def open_handle(handle: Handle, device: str) -> Tensor:
    """The owner's tensor; `device` is this process's name for where it lies. RuntimeError."""
    import torch

    if not handle.on_cuda:
        storage = torch.UntypedStorage._new_shared_filename_cpu(*handle.arguments)
        return torch.empty(0, dtype=torch.uint8).set_(storage)
    from torch.multiprocessing.reductions import rebuild_cuda_tensor

    arguments = list(handle.arguments)
    index = torch.device(device).index
    arguments[_DEVICE] = torch.cuda.current_device() if index is None else index
    rebuild: Any = rebuild_cuda_tensor
    tensor: Tensor = rebuild(*arguments)
    return tensor


def collect() -> None:
    """Give back what was freed while readers had it open, and is open no more."""
    import torch

    cuda: Any = torch.cuda
    if cuda.is_initialized():
        cuda.ipc_collect()


def synchronize(memory: Memory) -> None:
    """Return when what this thread asked of the memory's device is done."""
    if not isinstance(memory, np.ndarray) and memory.is_cuda:
        import torch

        torch.cuda.current_stream(memory.device).synchronize()
