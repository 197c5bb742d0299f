"""A catalogue on disk, read-only: products, goals with their prices, and the search index.

    store = open_store(folder)
    store.search("red sandals")           # positions of products, best first
    store.goal("human", 0)

Everything is read by mmap, so that the processes of a machine share the memory. `manifest.json` is written
last, by a rename: a folder that has it is complete.
"""

from __future__ import annotations

import hashlib
import json
import mmap
from collections.abc import Sequence
from dataclasses import astuple, fields
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import TypeAdapter

from envsdk.envs.webshop.goals import DrawnGoal, Goal, GoalKind, make_goal
from envsdk.envs.webshop.index import DOCUMENTS, RANKS, SCORES, STARTS, TERMS, Index, load_shared
from envsdk.envs.webshop.json_stream import BadData
from envsdk.envs.webshop.products import HumanInstruction, Product

FORMAT = 1
MANIFEST = "manifest.json"
PRODUCTS, CARDS = "products", "cards"
PRICES = "prices.npy"
BY_QUERY, BY_CATEGORY, LABELS = "by_query.npy", "by_category.npy", "labels.json"
GOALS: dict[GoalKind, str] = {"human": "goals_human.npy", "synthetic": "goals_synthetic.npy"}
FILES = (
    *(f"{name}.{part}" for name in (PRODUCTS, CARDS) for part in ("bin", "offsets")),
    *(PRICES, BY_QUERY, BY_CATEGORY, LABELS),
    *GOALS.values(),
    *(TERMS, STARTS, DOCUMENTS, SCORES, RANKS),
)
"""Files of a complete store, besides the manifest."""

GOAL_DTYPE = np.dtype([("product", "<u4"), ("variant", "<u4"), ("price_upper", "<f8"), ("cumulative", "<f8")])
"""A goal on disk; `cumulative` is the sum of the weights up to and including it."""

MAX_RESULTS = 50
"""Products that a search finds at most, best first."""
_SEPARATOR = "\x1f"
_PRODUCT = TypeAdapter(Product)
_PRODUCT_FIELDS, _HUMAN_FIELDS = (
    [each.name for each in fields(kind)] for kind in (Product, HumanInstruction)
)


def encode_product(product: Product) -> bytes:
    """The values of all fields, in their order."""
    values = [getattr(product, name) for name in _PRODUCT_FIELDS]
    # Escaped, because a title may hold half of a surrogate pair, which UTF-8 cannot.
    return json.dumps(values, default=astuple, separators=(",", ":")).encode()


def decode_product(data: bytes) -> Product:
    values = dict(zip(_PRODUCT_FIELDS, json.loads(data), strict=True))
    values["human"] = [dict(zip(_HUMAN_FIELDS, each, strict=True)) for each in values["human"]]
    return _PRODUCT.validate_python(values)


def encode_card(product: Product) -> bytes:
    """What a results page shows of a product."""
    text = _SEPARATOR.join((product.asin, product.price_tag, product.title))
    return text.encode("utf-8", "surrogatepass")


class Records:
    """Byte strings one behind the other in `NAME.bin`, with their ends in `NAME.offsets` (64-bit)."""

    def __init__(self, folder: Path, name: str) -> None:
        offsets = np.memmap(folder / f"{name}.offsets", np.uint64, mode="r")
        self._offsets: NDArray[np.uint64] = offsets.view(np.ndarray)
        with (folder / f"{name}.bin").open("rb") as file:
            self._data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)

    def __len__(self) -> int:
        return len(self._offsets)

    def __getitem__(self, index: int) -> bytes:
        start = int(self._offsets[index - 1]) if index else 0
        return self._data[start : int(self._offsets[index])]


class Store:
    """A complete store, which sessions read; products go by their position. Use `open_store`.

    Products that were read are kept, a few thousand of them: a page that is shown again costs no decoding.
    """

    def __init__(self, folder: Path) -> None:
        from envsdk.envs.webshop.analyzer import tokens

        self._tokens = tokens
        self.folder = folder
        self.manifest = _read_manifest(folder)
        self._products = Records(folder, PRODUCTS)
        self._cards = Records(folder, CARDS)
        self._prices: NDArray[np.float64] = load_shared(folder / PRICES)
        self._index = Index(folder)
        self._goals = {kind: load_shared(folder / name) for kind, name in GOALS.items()}
        self._labels: dict[str, dict[str, list[int]]] | None = None
        self.product = lru_cache(4096)(self._product)
        self.card = lru_cache(32768)(self._card)
        self.search = lru_cache(4096)(self._search)

    @property
    def num_products(self) -> int:
        return len(self._products)

    def price(self, index: int) -> float:
        """Dollars."""
        return float(self._prices[index])

    def by_query(self, query: str) -> Sequence[int]:
        """Every product that was found by `query` when the catalogue was made."""
        return self._labeled("query", query, BY_QUERY)

    def by_category(self, category: str) -> Sequence[int]:
        return self._labeled("category", category, BY_CATEGORY)

    def num_goals(self, kind: GoalKind) -> int:
        """How many goals there are; `goal` takes the numbers below."""
        return int(self.manifest["num_goals"][kind])

    def goal(self, kind: GoalKind, number: int) -> Goal:
        """The goal at this position of upstream's order."""
        product, variant, price_upper, _ = self._goals[kind][number].item()
        drawn = DrawnGoal(product=product, variant=variant, price_upper=price_upper)
        return make_goal(kind, drawn, self.product(product))

    def draw_goal(self, kind: GoalKind, start: int, stop: int, draw: float) -> int:
        """A goal in [start, stop), in proportion to the weights; `draw` is uniform on [0, 1)."""
        cumulative = self._goals[kind]["cumulative"]
        low = float(cumulative[start - 1]) if start else 0.0
        wanted = low + draw * (float(cumulative[stop - 1]) - low)
        number = start + int(np.searchsorted(cumulative[start:stop], wanted, side="right"))
        return min(number, stop - 1)

    def _product(self, index: int) -> Product:
        return decode_product(self._products[index])

    def _card(self, index: int) -> tuple[str, str, str]:
        """Asin, title and price tag: what a results page shows of a product."""
        text = self._cards[index].decode("utf-8", "surrogatepass")
        asin, price_tag, title = text.split(_SEPARATOR, 2)
        return asin, title, price_tag

    def _search(self, query: str) -> tuple[int, ...]:
        return tuple(self._index.search(self._tokens(query), MAX_RESULTS))

    def _labeled(self, kind: str, label: str, file: str) -> Sequence[int]:
        if self._labels is None:
            self._labels = json.loads((self.folder / LABELS).read_text(encoding="utf-8"))
        assert self._labels is not None
        start, stop = self._labels[kind].get(label, (0, 0))
        found: list[int] = np.load(self.folder / file, mmap_mode="r")[start:stop].tolist()
        return found


@lru_cache(maxsize=8)
def open_store(folder: Path) -> Store:
    """The store in `folder`, one object per process. BadData says what is wrong with the folder."""
    return Store(folder)


def is_complete(folder: Path) -> bool:
    return (folder / MANIFEST).is_file()


def file_digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "blake2b").hexdigest()[:32]


def verify(folder: Path) -> None:
    """Read every file of a store; BadData names the first whose checksum is not the manifest's."""
    for name, entry in _read_manifest(folder)["files"].items():
        if file_digest(folder / name) != entry["blake2b"]:
            raise BadData(f"{folder / name}: damaged, its checksum is not the one in {MANIFEST}; build again")


def _read_manifest(folder: Path) -> dict[str, Any]:
    path = folder / MANIFEST
    try:
        manifest: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise BadData(
            f"{folder}: holds no WebShop store (no {MANIFEST}); build one with "
            "`python -m envsdk.envs.webshop.build --data DIR`"
        ) from None
    except (OSError, ValueError) as error:
        raise BadData(f"{path}: cannot be read: {error}") from error
    if not isinstance(manifest, dict) or not {"format", "files"} <= manifest.keys():
        raise BadData(f"{path}: is not the manifest of a WebShop store; build again")
    if manifest["format"] != FORMAT:
        raise BadData(
            f"{path}: the store has format {manifest['format']}, this version reads {FORMAT}; build again"
        )
    for name, entry in manifest["files"].items():
        size = (folder / name).stat().st_size if (folder / name).exists() else -1
        if size != entry["size"]:
            problem = "missing" if size < 0 else f"{size} bytes, not {entry['size']}"
            raise BadData(f"{folder / name}: {problem}; build the store again")
    return manifest
