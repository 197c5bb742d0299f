"""The files that grow with every product while a store is built, and can be cut back after a kill."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

from envsdk.envs.webshop.products import MAX_ASIN_LENGTH, Product
from envsdk.envs.webshop.store import CARDS, PRODUCTS, encode_card, encode_product

_ASIN = np.dtype(f"<U{MAX_ASIN_LENGTH}")
_FIXED = {"pricing.f64": 16, "labels.u32": 8, "asins.u": _ASIN.itemsize}
"""Bytes per product."""


class ProductFiles:
    """Appends products to the record files of a store and to three of the work folder.

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
        self._files["pricing.f64"].write(np.array([low, high]).tobytes())
        self._files["labels.u32"].write(np.array([query_id, category_id], np.uint32).tobytes())
        self._files["asins.u"].write(np.array([product.asin], _ASIN).tobytes())

    def flush(self) -> None:
        for file in self._files.values():
            file.flush()

    def __enter__(self) -> ProductFiles:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for file in self._files.values():
            file.close()


def read_pricing(folder: Path) -> NDArray[np.float64]:
    """`[num_products, 2]`: the price and NaN, or the two ends of a range, in dollars."""
    return np.fromfile(folder / "pricing.f64", np.float64).reshape(-1, 2)


def read_labels(folder: Path) -> NDArray[np.uint32]:
    """`[num_products, 2]`: number of the query and of the category."""
    return np.fromfile(folder / "labels.u32", np.uint32).reshape(-1, 2)


def asin_ranks(folder: Path) -> NDArray[np.uint32]:
    """`[num_products]`: the place of each product among the asins in order."""
    order = np.argsort(np.fromfile(folder / "asins.u", _ASIN), kind="stable")
    ranks = np.empty(len(order), np.uint32)
    ranks[order] = np.arange(len(order), dtype=np.uint32)
    return ranks


def group_by(
    labels: NDArray[np.uint32], names: Sequence[str]
) -> tuple[NDArray[np.uint32], dict[str, list[int]]]:
    """Products in the order of their label, and where each label's are: `{name: [start, stop]}`."""
    order = np.argsort(labels, kind="stable").astype(np.uint32)
    ends = np.cumsum(np.bincount(labels, minlength=len(names))).tolist()
    spans = {name: [ends[i - 1] if i else 0, ends[i]] for i, name in enumerate(names)}
    return order, spans
