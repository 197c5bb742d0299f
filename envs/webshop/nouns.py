"""The nouns of a title, which the reward compares. A store keeps them with the tagger's name.

Upstream tags with spaCy's `en_core_web_sm`; where that is not installed a tagger of rules stands in. It
sees most nouns, but not the same ones, so rewards for products *other* than the one asked for may differ.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

SPACY_MODEL = "en_core_web_sm"
_INSTALL = "pip install 'spacy>=3.8'"
_DOWNLOAD = "python -m spacy download"

_TOKEN = re.compile(r"[^\W_]+(?:[&'’.][^\W_]+)*")
_NOT_NOUNS = frozenset(Path(__file__).with_name("no_nouns.txt").read_text(encoding="utf-8").split())
"""Adjectives and function words."""
_NOT_NOUN_ENDINGS = ("able", "ible", "ful", "less", "ously", "proof")


class Tagger(Protocol):
    """Finds nouns; `name` says which one did it."""

    name: str

    def nouns(self, titles: Sequence[str]) -> Iterator[list[str]]:
        """For each title its nouns in lower case, in order and as often as they stand there."""


class RuleTagger:
    """Words that are no number, no function word and no usual adjective."""

    name = "rules-1"

    def nouns(self, titles: Sequence[str]) -> Iterator[list[str]]:
        for title in titles:
            words = (word.lower() for word in _TOKEN.findall(title))
            yield [word for word in words if _may_be_noun(word)]


class SpacyTagger:
    """Upstream's tagger: a model by its name, or the folder of one.

    Raises ImportError when spaCy is not installed, OSError when the model is not, ValueError when the
    model tags no parts of speech.
    """

    def __init__(self, model: str = SPACY_MODEL) -> None:
        # A folder with that name in the working directory can be imported too, but has no such function.
        from spacy import load

        self._nlp: Any = load(model, disable=["parser", "ner", "lemmatizer"])
        if not {"attribute_ruler", "morphologizer"} & set(self._nlp.pipe_names):
            raise ValueError(
                f"tagger: the model {model!r} gives words no part of speech (its parts: "
                f"{', '.join(self._nlp.pipe_names) or 'none'}); take one such as {SPACY_MODEL}"
            )
        meta = self._nlp.meta
        self.name = f"spacy:{meta['lang']}_{meta['name']}-{meta['version']}"

    def nouns(self, titles: Sequence[str]) -> Iterator[list[str]]:
        # Without a zone spaCy keeps every word that it has ever seen.
        with self._nlp.memory_zone():
            found = [
                [token.text.lower() for token in parsed if token.pos_ in ("NOUN", "PROPN")]
                for parsed in self._nlp.pipe(titles)
            ]
        yield from found


def make_tagger(name: str = "auto") -> Tagger:
    """`rules`, `spacy`, `spacy:MODEL`, or `auto`: spaCy with upstream's model where installed, else rules.

    MODEL is a package or a folder. Raises ValueError for another name and for a model that is not installed
    or cannot be used; the message says what to do.
    """
    if name == "rules":
        return RuleTagger()
    kind, _, model = name.partition(":")
    if kind not in ("auto", "spacy"):
        raise ValueError(f"tagger: must be rules, spacy, spacy:MODEL or auto, not {name!r}")
    model = model or SPACY_MODEL
    try:
        return SpacyTagger(model)
    except (ImportError, OSError) as error:
        if kind == "auto":
            return RuleTagger()
        if isinstance(error, ImportError):
            problem, remedy = "cannot import spaCy", f"{_INSTALL}, then {_DOWNLOAD} {model}"
        else:
            problem, remedy = f"has no model {model!r}", f"{_DOWNLOAD} {model}, or name the folder of a model"
        raise ValueError(f"tagger: {name!r} {problem} ({error}): {remedy}; or take --tagger rules") from error


def _may_be_noun(word: str) -> bool:
    if word[0].isdigit() or word in _NOT_NOUNS:
        return False
    # Short words with such an ending are nouns more often than not: table, cable.
    return len(word) < 7 or not word.endswith(_NOT_NOUN_ENDINGS)
