"""Matrices in the layout that oneDNN multiplies by: bfloat16 on a CPU.

A plain matrix is brought into that layout in every product, which costs more than the product of a few rows.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

_OPS: Any = torch.ops.mkldnn  # without types
_BACKEND: Any = torch.backends.mkldnn  # without types

_ELEMENTS_AT_ONCE = 1 << 20


def serves(dtype: torch.dtype, device: torch.device) -> bool:
    """Whether this build of PyTorch multiplies packed matrices of this type on this device."""
    if dtype is not torch.bfloat16 or device.type != "cpu" or not _BACKEND.is_available():
        return False
    return bool(_OPS._is_mkldnn_bf16_supported())


def num_computed(count: int) -> int:
    """So many rows or keys are multiplied for `count`, in sixteenths of a power of two.

    For each number oneDNN makes code, which takes a millisecond and some 0.6 MB.
    """
    step = 1 << max(0, count.bit_length() - 5)
    return -(-count // step) * step


def packed(matrix: Tensor) -> Tensor:
    """`[out, in]` in oneDNN's layout; good for `product` only."""
    packing: Tensor = _OPS._reorder_linear_weight(matrix.contiguous())
    return packing


def product(rows: Tensor, matrix: Tensor, added: Tensor | None = None) -> Tensor:
    """`rows [N, in] @ matrix.T + added`; `added` is `[N, out]` or `[out]`."""
    if added is not None and added.dim() == 2:
        summed: Tensor = _OPS._linear_pointwise.binary(rows, added, matrix, None, "add")
        return summed
    plain: Tensor = _OPS._linear_pointwise(rows, matrix, added, "none", [], "")
    return plain


def attended(queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None) -> Tensor:
    """What queries `[B, G, D]` make of keys `[B, D, S]` and values `[B, S, D]`; `mask` `[B, 1, S]` is added.

    oneDNN copies keys and values that are parts of longer ones, so they go in pieces that a cache holds. It
    rearranges the matrix on the right, so the queries stand there, which are few.
    """
    at_once = max(1, _ELEMENTS_AT_ONCE // keys[0].numel())
    parts = []
    for start in range(0, len(queries), at_once):
        rows = slice(start, start + at_once)
        left, right = keys[rows].mT, queries[rows].mT.contiguous()
        scores = torch.bmm(left, right) if mask is None else torch.baddbmm(mask[rows].mT, left, right)
        parts.append(torch.bmm(torch.softmax(scores.mT.contiguous(), -1), values[rows]))
    return torch.cat(parts)
