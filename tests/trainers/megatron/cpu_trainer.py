"""The Megatron trainer on a machine without a GPU, for tests and for comparisons of trainers.

`strategy_name: tests.trainers.megatron.cpu_trainer:MegatronOnCpu` uses it in a run.
"""

from __future__ import annotations

import torch
from torch import Tensor

from envsdk.contracts.held import Held
from envsdk.trainers.megatron.trainer import MegatronTrainer
from envsdk.trainers.offload import DeviceMemory
from tests.trainers.megatron import cpu_shim


class MegatronOnCpu(MegatronTrainer):
    """`megatron_train` with ranks that are CPU processes."""

    @classmethod
    def check_device(cls) -> None:
        cpu_shim.install()


class ApartMemory(DeviceMemory):
    """Main memory as if it were a device's: what leaves is copied, and gone from where it was."""

    is_apart = True

    def to_host(self, tensor: Tensor) -> Tensor:
        return tensor.clone()


class MegatronApart(MegatronOnCpu):
    """`MegatronOnCpu` that really moves what it does not hold."""

    def hold(self, held: Held) -> None:
        for away in (self.memory.weights, self.memory.rest):
            away.memory = ApartMemory(torch.device("cpu"))
        super().hold(held)
        assert all(
            bool(each.untyped_storage().nbytes()) is bool(held) for each in self._optimizer.tensors()[0]
        )
        for each in self._optimizer.tensors()[2]:
            assert bool(each.untyped_storage().nbytes()) is (held is Held.ALL)
