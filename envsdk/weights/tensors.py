"""Weights as tensors: given ones, and those in a folder."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from envsdk.contracts.failures import EngineError

if TYPE_CHECKING:
    from torch import Tensor


def as_tensors(weights: Mapping[str, Any] | Iterable[tuple[str, Any]]) -> Iterator[tuple[str, Tensor]]:
    """NumPy arrays or tensors; those of a stream are copied, for they are gone when the next one comes."""
    import torch

    is_mapping = isinstance(weights, Mapping)
    for name, value in weights.items() if isinstance(weights, Mapping) else weights:
        if isinstance(value, torch.Tensor):
            yield name, value if is_mapping else value.clone()
            continue
        try:
            # PyTorch wants writable memory, which an object store's is not.
            is_kept = is_mapping and value.flags.writeable
            yield name, torch.from_numpy(value) if is_kept else torch.tensor(value)
        except (AttributeError, TypeError, ValueError) as error:
            raise EngineError(f"weight `{name}` cannot be read: {error}") from error


def copies(weights: Iterable[tuple[str, Any]]) -> Iterator[tuple[str, Tensor]]:
    """Tensors in main memory that stay when the next one is asked for. EngineError for what is none."""
    import torch

    for name, array in weights:
        try:
            if isinstance(array, torch.Tensor):
                tensor = array.detach().to("cpu", copy=True)
            else:
                tensor = torch.from_numpy(np.array(array))
            yield name, tensor.contiguous()
        except (TypeError, ValueError, RuntimeError) as error:
            raise EngineError(f"weight `{name}` cannot be written: {error}") from error


def finite(name: str, weight: Any) -> Any:
    """`weight` as it is. EngineError where a tensor or an array has values that are NaN or infinite."""
    import torch

    # One pass without a copy: a sum is finite where all values are, but for an overflow that no weights have.
    total = 0.0
    if isinstance(weight, np.ndarray) and weight.dtype.kind == "f":
        total = float(weight.sum(dtype=np.float64))
    elif isinstance(weight, torch.Tensor) and weight.dtype in (torch.float32, torch.bfloat16, torch.float16):
        total = weight.sum(dtype=torch.float32 if weight.dtype == torch.float16 else None).item()
    if not math.isfinite(total):
        raise EngineError(
            f"weight `{name}` has values that are NaN or infinite: nothing can be sampled by it"
        )
    return weight


def tensors_in(folder: Path) -> Iterator[tuple[str, Tensor]]:
    """Every tensor of a Hugging Face folder's safetensors files, one at a time.

    EngineError when there is none, or a file cannot be read.
    """
    from safetensors import SafetensorError, safe_open

    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise EngineError(f"{folder} holds no *.safetensors file; save the model with save_pretrained")
    for file in files:
        try:
            with safe_open(file, framework="pt") as tensors:
                for name in tensors.keys():  # noqa: SIM118 - it is no mapping
                    yield name, tensors.get_tensor(name)
        except (SafetensorError, OSError) as error:
            raise EngineError(f"{file} cannot be read: {error}") from error
