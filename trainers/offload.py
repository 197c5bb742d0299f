"""Between a trainer's device and main memory, bit for bit."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from envsdk.base.processes.memory import give_back


class DeviceMemory:
    """Moves tensors; where the device is a CPU they stay where they are."""

    def __init__(self, device: torch.device) -> None:
        self.device = device

    @property
    def is_apart(self) -> bool:
        """Whether it is not main memory itself."""
        return self.device.type != "cpu"

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
    # `DTensor.from_local` would move it to the device of its mesh.
    make: Any = DTensor
    sharded: Tensor = make(place(tensor.to_local()), tensor._spec, requires_grad=False)
    return sharded


@torch.no_grad()
def move_module(module: nn.Module, memory: DeviceMemory, *, on_device: bool) -> None:
    """Its parameters and buffers; gradients must not be there."""
    convert: Any = module._apply  # what `module.to` calls, sharded modules too
    convert(lambda tensor: placed(tensor, memory, on_device=on_device))


class MovedStorages:
    """Memory behind tensors, some of which are views of others: the tensors stay, and are empty meanwhile.

    on the device -> leave -> in main memory -> come_back -> on the device
    """

    def __init__(self, memory: DeviceMemory) -> None:
        self.memory = memory
        self._away: list[tuple[torch.UntypedStorage, int, Tensor | None]] = []
        """With their sizes, and their contents in main memory; None: zeros."""

    def leave(
        self, tensors: Iterable[Tensor], *, zeros: Iterable[Tensor] = (), but: Iterable[Tensor] = ()
    ) -> None:
        """Move these, of which `zeros` hold nothing, `but` not what these share."""
        seen = {tensor.untyped_storage().data_ptr() for tensor in but}
        for tensor, is_zero in [*((each, False) for each in tensors), *((each, True) for each in zeros)]:
            storage = tensor.untyped_storage()
            is_here = storage.device == self.memory.device and (self.memory.is_apart or is_zero)
            if not is_here or not storage.nbytes() or storage.data_ptr() in seen:
                continue
            seen.add(storage.data_ptr())
            contents = None if is_zero else self.memory.to_host(_bytes_of(storage))
            self._away.append((storage, storage.nbytes(), contents))
        self.memory.settle()  # the copies are complete
        for storage, _, _ in self._away:
            storage.resize_(0)
        self.memory.settle()

    def come_back(self) -> None:
        """All that left, where its tensors expect it."""
        away, self._away = self._away, []
        for storage, num_bytes, contents in away:
            storage.resize_(num_bytes)
            if contents is None:
                _bytes_of(storage).zero_()
            else:
                _bytes_of(storage).copy_(contents, non_blocking=True)
        self.memory.settle()


def _bytes_of(storage: torch.UntypedStorage) -> Tensor:
    whole: Any = torch.empty(0, dtype=torch.uint8, device=storage.device)
    tensor: Tensor = whole.set_(storage)
    return tensor
