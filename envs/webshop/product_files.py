"""The files that grow with every product while a store is built, and can be cut back after a kill."""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import BinaryIO, Literal, Self

import numpy as np

from envsdk.envs.webshop.columns import create_column, read_pieces
from envsdk.envs.webshop.products import Product
from envsdk.envs.webshop.store import CARDS, PRODUCTS, encode_card, encode_product

_PRICING = np.dtype([("low", "<f8"), ("high", "<f8")])
_LABELS = np.dtype([("query", "<u4"), ("category", "<u4")])
_FIXED = {"pricing.f64": _PRICING.itemsize, "labels.u32": _LABELS.itemsize}
"""Bytes per product."""


class ProductFiles:
    """Appends products to the record files of a store and to two of the work folder.

    with ProductFiles(work, num_products) as files:  # what is behind `num_products` is cut off
        files.add(product, query_id, category_id)
        files.flush()
    """

    def __init__(self, folder: Path, num_products: int) -> None:
        self._ends: dict[str, int] = {}
        self._files: dict[str, BinaryIO] = {}
        for name in (PRODUCTS, CARDS):
            offsets = self._open(folder / f"{name}.offsets", 8 * num_products)
            offsets.seek(max(8 * (num_products - 1), 0))
            end = int.from_bytes(offsets.read(8), "little") if num_products else 0
            self._open(folder / f"{name}.bin", end)
            self._ends[name] = end
        for file_name, size in _FIXED.items():
            self._open(folder / file_name, size * num_products)

    def _open(self, path: Path, size: int) -> BinaryIO:
        file = path.open("r+b" if path.exists() else "w+b")
        file.truncate(size)
        file.seek(size)
        self._files[path.name] = file
        return file

    def add(self, product: Product, query_id: int, category_id: int) -> None:
        for name, data in ((PRODUCTS, encode_product(product)), (CARDS, encode_card(product))):
            self._ends[name] += len(data)
            self._files[f"{name}.bin"].write(data)
            self._files[f"{name}.offsets"].write(self._ends[name].to_bytes(8, "little"))
        low, high = product.pricing if len(product.pricing) == 2 else (product.pricing[0], math.nan)
        self._files["pricing.f64"].write(struct.pack("<dd", low, high))
        self._files["labels.u32"].write(struct.pack("<II", query_id, category_id))

    def flush(self) -> None:
        for file in self._files.values():
            file.flush()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for file in self._files.values():
            file.close()


def read_records(folder: Path, name: str) -> Iterator[bytes]:
    """The byte strings of a record file, front to back."""
    start = 0
    with (folder / f"{name}.bin").open("rb", buffering=1 << 16) as data:
        for ends in read_pieces(folder / f"{name}.offsets", np.uint64):
            for end in ends.tolist():
                yield data.read(end - start)
                start = end


def read_pricing(folder: Path) -> Iterator[tuple[float, float]]:
    """Per product the price and NaN, or the two ends of a range, in dollars."""
    for piece in read_pieces(folder / "pricing.f64", _PRICING):
        yield from piece.tolist()


def write_grouped(
    folder: Path, out: Path, kind: Literal["query", "category"], names: Sequence[str]
) -> dict[str, list[int]]:
    """Write to `out` the products in the order of their label; returns where each label's are: start, stop.

    Args:
        names: The labels of this kind by their number.
    """
    labels = folder / "labels.u32"
    sizes = np.zeros(len(names), np.int64)
    for piece in read_pieces(labels, _LABELS):
        sizes += np.bincount(piece[kind], minlength=len(names))
    ends = np.cumsum(sizes)
    cursors = ends - sizes
    spans = {name: [int(start), int(end)] for name, start, end in zip(names, cursors, ends, strict=True)}
    grouped = create_column(out, np.uint32, int(ends[-1]))
    first = 0
    for piece in read_pieces(labels, _LABELS):
        order = np.argsort(piece[kind], kind="stable")
        numbers, counts = np.unique(piece[kind], return_counts=True)
        before = np.cumsum(counts) - counts
        grouped[np.arange(len(piece)) + np.repeat(cursors[numbers] - before, counts)] = first + order
        cursors[numbers] += counts
        first += len(piece)
    return spans
