"""Between a trainer's device and main memory, bit for bit."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from envsdk.base.processes.memory import give_back


class DeviceMemory:
    """Moves tensors; where the device is a CPU they stay where they are."""

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def to_host(self, tensor: Tensor) -> Tensor:
        """In pinned memory, whose copies are fast."""
        if tensor.device.type == "cpu":
            return tensor
        return torch.empty_like(tensor, device="cpu", pin_memory=True).copy_(tensor, non_blocking=True)

    def to_device(self, tensor: Tensor) -> Tensor:
        return tensor.to(self.device, non_blocking=True)

    def settle(self) -> None:
        """All copies are done, and what they left is other processes' to take."""
        give_back(str(self.device))


def placed(tensor: Tensor, memory: DeviceMemory, *, on_device: bool) -> Tensor:
    """The tensor, or the part of it that this rank holds, on the device or in main memory."""
    place = memory.to_device if on_device else memory.to_host
    if not isinstance(tensor, DTensor):
        return place(tensor)
    return DTensor.from_local(
        place(tensor.to_local()),
        tensor.device_mesh,
        tensor.placements,
        run_check=False,
        shape=tensor.shape,
        stride=tensor.stride(),
    )


@torch.no_grad()
def move_module(module: nn.Module, memory: DeviceMemory, *, on_device: bool) -> None:
    """Its parameters and buffers; gradients must not be there."""
    convert: Any = module._apply  # what `module.to` calls, sharded modules too
    convert(lambda tensor: placed(tensor, memory, on_device=on_device))
