"""Parameters that ranks shard (`DTensor`) or hold in full (`Tensor`)."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor, distribute_tensor


def full_tensor(tensor: Tensor) -> Tensor:
    """The tensor in full on every rank; all ranks make the call."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def placed_like(parameter: Tensor, values: Tensor) -> Tensor:
    """A copy of `values` on the device of `parameter`, sharded like it; each rank cuts out its own part.

    Scalars are not sharded.
    """
    if isinstance(parameter, DTensor) and not isinstance(values, DTensor) and values.ndim:
        mesh, placements = parameter.device_mesh, parameter.placements
        values = distribute_tensor(values.to(parameter.device), mesh, placements, src_data_rank=None)
    return torch.clone(values.to(parameter.device))
