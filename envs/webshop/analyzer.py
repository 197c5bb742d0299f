"""Lucene's English analyzer, which upstream's search engine applies to products and queries.

    words by Unicode's rules -> possessive 's -> lower case -> stop words -> Porter's stemmer

Needs the extra `webshop` (PyStemmer, regex).
"""

from __future__ import annotations

from collections.abc import Iterator

import regex
import Stemmer

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
    """The terms of `text`, in order."""
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
