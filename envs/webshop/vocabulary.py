"""The words of the generated catalogue, out of `vocabulary.toml`."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of product."""

    query: str
    path: str
    noun: str
    """As titles have it."""
    options: tuple[str, ...]
    """Names of `OPTIONS`."""


_WORDS: dict[str, Any] = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))

BRANDS, ADJECTIVES = tuple(_WORDS["brands"]), tuple(_WORDS["adjectives"])
BULLETS, SENTENCES, REQUESTS = (tuple(_WORDS[name]) for name in ("bullets", "sentences", "requests"))
ATTRIBUTES = {category: tuple(words) for category, words in _WORDS["attributes"].items()}
OPTIONS = {name: tuple(values) for name, values in _WORDS["options"].items()}
KINDS = {
    category: tuple(Kind(query, path, noun, tuple(options)) for query, path, noun, options in kinds)
    for category, kinds in _WORDS["kinds"].items()
}
