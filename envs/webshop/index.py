"""A search index that ranks as Lucene's BM25 does, read by mmap. `index_builder` makes it.

Lucene's scores are reproduced: k1 = 0.9 and b = 0.4, document lengths rounded to one byte, 32-bit
arithmetic, ties at the fourth decimal broken by asin. Terms are kept as 64-bit hashes, so that no
vocabulary has to be held in memory; two of a million terms share a hash with probability 3e-8.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import regex
import Stemmer
from numpy.typing import NDArray

_STOP_WORDS = """
    a an and are as at be but by for if in into is it no not of on or such that the their then there
    these they this to was will with
"""
STOP_WORDS = frozenset(_STOP_WORDS.split())

_LETTER = r"[^\W\d_]"
_HAN_OR_KANA = "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff"
_WORD_CHARACTER = rf"(?![{_HAN_OR_KANA}])\w"
_EMOJI = (
    r"(?:[\p{Extended_Pictographic}\u2605-\u2685\u2690-\u2705\u2708-\u2712]"
    r"[\ufe0f\u20e3\U0001F3FB-\U0001F3FF]*(?:\u200d\p{Extended_Pictographic}\ufe0f?)*)"
)
_BETWEEN_LETTERS = rf"(?<={_LETTER})['’.:·：](?={_LETTER})"
_BETWEEN_DIGITS = r"(?<=\d)['’.,;](?=\d)"
_TOKEN = regex.compile(
    rf"{_EMOJI}|[{_HAN_OR_KANA}]"
    rf"|(?:{_WORD_CHARACTER})+(?:(?:{_BETWEEN_LETTERS}|{_BETWEEN_DIGITS})(?:{_WORD_CHARACTER})+)*"
)
_IS_EMOJI = regex.compile(_EMOJI)
_APOSTROPHES = "'’\uff07"
_MAX_TERMS = 100_000
_MAX_TOKEN_LENGTH = 255

_porter = Stemmer.Stemmer("porter")
_porter.maxCacheSize = 0
_terms: dict[str, str] = {}
"""Terms of the words that were seen first, among which are the frequent ones."""


def tokens(text: str) -> list[str]:
    """The terms of `text`, in order.

        words by Unicode's rules -> possessive 's -> lower case -> stop words -> Porter's stemmer

    Needs the extra `webshop` (PyStemmer, regex).
    """
    terms: list[str] = []
    for word in _TOKEN.findall(text):
        term = _terms.get(word)
        if term is None:
            if len(word) > _MAX_TOKEN_LENGTH:
                terms += filter(None, map(_term, _cut(word)))
                continue
            term = _term(word)
            if len(_terms) < _MAX_TERMS:
                _terms[word] = term
        if term:
            terms.append(term)
    return terms


def _cut(word: str) -> Iterator[str]:
    """A long word in parts of the length that Lucene takes."""
    for start in range(0, len(word), _MAX_TOKEN_LENGTH):
        yield word[start : start + _MAX_TOKEN_LENGTH]


def _term(token: str) -> str:
    """The term of a token; empty when it has none."""
    if not (token.isascii() and token.isalnum()) and not _is_term(token):
        return ""
    if len(token) > 2 and token[-1] in "sS" and token[-2] in _APOSTROPHES:
        token = token[:-2]
    token = token.lower()
    return "" if token in STOP_WORDS else stem(token)


def stem(term: str) -> str:
    """Porter's stem of a word in lower case, with the two departures of his own program, as in Lucene."""
    if len(term) < 3:
        return term
    stemmed: str = _porter.stemWord(term)
    if stemmed.endswith("logi") and len(stemmed) > 6:
        stemmed = stemmed[:-1]
    elif stemmed.endswith("bli") and len(stemmed) > 4:
        stemmed = _porter.stemWord(stemmed[:-1] + "e")
    return stemmed


def _is_term(token: str) -> bool:
    # A token of marks alone, such as "__", is none.
    return any(c.isalpha() or c.isdecimal() for c in token) or _IS_EMOJI.match(token) is not None


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
