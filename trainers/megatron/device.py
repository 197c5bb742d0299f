"""The device of a rank of the Megatron trainer, and what it holds of it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from envsdk.contracts.failures import ConfigurationError
from envsdk.contracts.held import Held
from envsdk.trainers.megatron.optimizer import ParallelOptimizer
from envsdk.trainers.offload import DeviceMemory, MovedStorages


def device() -> torch.device:
    """This rank's GPU; the CPU where there is none, for tests that let Megatron run there."""
    if torch.cuda.is_available():
        return torch.device("cuda", torch.cuda.current_device())
    return torch.device("cpu")


def require_gpu() -> None:
    """ConfigurationError where this process sees no GPU."""
    if not torch.cuda.is_available():
        raise ConfigurationError(
            "strategy_name: megatron_train needs a CUDA GPU for each rank, and this process sees none; "
            "on CPUs train with fsdp2_train or torch"
        )


class RankMemory:
    """Everything on the device -> hold, holding -> ...; every rank makes every call."""

    def __init__(self, optimizer: ParallelOptimizer) -> None:
        self._optimizer = optimizer
        self.held = Held.ALL
        memory = DeviceMemory(device())
        self.weights, self.rest = MovedStorages(memory), MovedStorages(memory)
        """They are where the rank does not hold them."""

    def hold(self, held: Held) -> None:
        """Move what is not held to main memory, and what is, back."""
        if self.held:
            self._optimizer.finish_param_gather()
        weights, rest, gradients = self._optimizer.tensors()
        if held is not Held.ALL:
            self.rest.leave(rest, zeros=gradients, but=weights)
        if held is Held.NOTHING:
            self.weights.leave(weights)
        for away in (self.weights, self.rest)[:held]:
            away.come_back()
        self.held = held

    @contextmanager
    def holding(self, held: Held) -> Iterator[None]:
        """Inside, so much is held at least: ranks exchange weights and moments on their devices."""
        before = self.held
        if before < held:
            self.hold(held)
        try:
            yield
        finally:
            if before < held:
                self.hold(before)
