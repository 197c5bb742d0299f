"""What a rank of the Megatron trainer holds of its device: weights, and what a step needs besides."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from envsdk.contracts.held import Held
from envsdk.trainers.megatron.device import device
from envsdk.trainers.megatron.optimizer import ParallelOptimizer
from envsdk.trainers.offload import DeviceMemory, MovedStorages


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
