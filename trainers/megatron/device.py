"""The device that a rank of the Megatron trainer computes on."""

from __future__ import annotations

import torch

from envsdk.contracts.failures import ConfigurationError


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
