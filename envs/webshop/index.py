"""A search index that ranks as Lucene's BM25 does, read by mmap. `index_builder` makes it.

Lucene's scores are reproduced: k1 = 0.9 and b = 0.4, document lengths rounded to one byte, 32-bit
arithmetic, ties at the fourth decimal broken by asin. Terms are kept as 64-bit hashes, so that no
vocabulary has to be held in memory; two of a million terms share a hash with probability 3e-8.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

K1 = 0.9
B = 0.4

TERMS, STARTS, DOCUMENTS, SCORES, RANKS = (
    "index_terms.npy",
    "index_starts.npy",
    "index_documents.npy",
    "index_scores.npy",
    "index_ranks.npy",
)

_TIE = 1e4
"""Scores are compared in steps of its inverse."""


def term_hash(term: str) -> bytes:
    """Eight bytes, a number in little-endian order."""
    return hashlib.blake2b(term.encode("utf-8", "surrogatepass"), digest_size=8).digest()


def load_shared(path: Path) -> NDArray[Any]:
    """The array in a .npy file, read by mmap; a plain one, because to index a `np.memmap` costs far more."""
    shared: NDArray[Any] = np.load(path, mmap_mode="r").view(np.ndarray)
    return shared


def lucene_length(length: int) -> int:
    """A document's number of tokens after Lucene has stored it in one byte: exact below 40."""
    exact = 24  # 255 - int4(2**31 - 1): this many of the byte's values stand for themselves
    if length < exact:
        return length
    rest = length - exact
    shift = max(rest.bit_length() - 4, 0)
    return exact + (rest >> shift << shift)


class Index:
    """A built index, read by mmap: processes that open the same files share their memory."""

    def __init__(self, folder: Path) -> None:
        import bm25s

        self._terms: NDArray[np.uint64] = load_shared(folder / TERMS)
        self._ranks: NDArray[np.uint32] = load_shared(folder / RANKS)
        self._bm25: Any = bm25s.BM25(method="lucene", k1=K1, b=B)
        self._bm25.scores = {
            "data": load_shared(folder / SCORES),
            "indices": load_shared(folder / DOCUMENTS),
            "indptr": load_shared(folder / STARTS),
            "num_docs": len(self._ranks),
        }
        self._bm25.nonoccurrence_array = None

    def search(self, tokens: Sequence[str], k: int) -> list[int]:
        """The `k` best documents that hold any of `tokens`, best first."""
        ids = self._term_ids(tokens)
        if not ids:
            return []
        scores: NDArray[np.float32] = self._bm25.get_scores_from_ids(ids)
        found = np.flatnonzero(scores)
        if len(found) > k:
            least = np.partition(scores[found], len(found) - k)[len(found) - k]
            # Near the limit the rounding below decides.
            found = found[scores[found] >= least - 2 / _TIE]
        rounded = np.rint(scores[found].astype(np.float64) * _TIE)
        best: list[int] = found[np.lexsort((self._ranks[found], -rounded))][:k].tolist()
        return best

    def _term_ids(self, tokens: Sequence[str]) -> list[int]:
        if not len(self._terms):
            return []
        hashes = np.frombuffer(b"".join(map(term_hash, tokens)), "<u8")
        places = np.minimum(np.searchsorted(self._terms, hashes), len(self._terms) - 1)
        ids: list[int] = places[self._terms[places] == hashes].tolist()
        return ids
