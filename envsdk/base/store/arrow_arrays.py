"""NumPy arrays in Arrow's columns: lists of numbers, and whole arrays in the format of `.npy` files."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray


def npy_of(array: NDArray[Any] | None) -> bytes | None:
    """The array with its shape and type."""
    if array is None:
        return None
    file = io.BytesIO()
    np.save(file, array, allow_pickle=False)
    return file.getvalue()


def array_of_npy(npy: bytes | None) -> Any:
    """The array that `npy_of` was given. ValueError when the bytes are damaged."""
    return None if npy is None else np.load(io.BytesIO(npy), allow_pickle=False)


def arrays_from_column(column: pa.ListArray) -> list[Any]:
    """One array per row, None where it is null; writable copies."""
    flat = column.flatten().to_numpy()
    arrays: list[NDArray[Any] | None] = []
    start = 0
    for length in column.value_lengths().to_pylist():
        if length is None:
            arrays.append(None)
            continue
        # Arrow's memory is read-only, and torch warns about arrays that are.
        arrays.append(flat[start : start + length].copy())
        start += length
    return arrays
