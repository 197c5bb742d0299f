"""Arrays on disk that are written and read piece by piece: none has to fit into memory.

with ColumnWriter(path, np.float32) as column:  # a .npy file
    column.append(values)

for piece in read_pieces(path, np.uint32):      # of a file of bare values
    ...
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import DTypeLike, NDArray

PIECE = 1 << 16
"""Values in a piece."""


class ColumnWriter:
    """Writes a .npy file of one dimension front to back; its length is put into the header at the end.

    Args:
        min_length: Zeros are added up to this length: nothing cannot be mapped.
    """

    def __init__(self, path: Path, dtype: DTypeLike, *, min_length: int = 0) -> None:
        self._dtype = np.dtype(dtype)
        self._min_length = min_length
        self._length = 0
        self._file = path.open("wb")
        self._write_header()

    def append(self, values: NDArray[Any]) -> None:
        self._file.write(np.ascontiguousarray(values, self._dtype).data)
        self._length += len(values)

    def close(self) -> None:
        if self._length < self._min_length:
            self.append(np.zeros(self._min_length - self._length, self._dtype))
        self._file.seek(0)
        self._write_header()
        self._file.close()

    def _write_header(self) -> None:
        # Headers of one dimension have one size, with room for any length.
        descr = np.lib.format.dtype_to_descr(self._dtype)
        header: dict[str, Any] = {"descr": descr, "fortran_order": False, "shape": (self._length,)}
        np.lib.format.write_array_header_1_0(self._file, header)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.close()
        else:
            self._file.close()


def create_column(path: Path, dtype: DTypeLike, length: int) -> NDArray[Any]:
    """A new .npy file as a writable map, for values that come in any order; `length` is 1 at least."""
    return np.lib.format.open_memmap(path, mode="w+", dtype=dtype, shape=(length,))


def write_values(path: Path, pieces: Iterable[NDArray[Any]]) -> None:
    """Bare values, without a header."""
    with path.open("wb") as file:
        for piece in pieces:
            file.write(np.ascontiguousarray(piece).data)


def read_pieces(path: Path, dtype: DTypeLike, size: int | None = None) -> Iterator[NDArray[Any]]:
    """The bare values in a file, `size` (by default `PIECE`) at a time."""
    with path.open("rb") as file:
        while len(piece := np.fromfile(file, dtype, size or PIECE)):
            yield piece
