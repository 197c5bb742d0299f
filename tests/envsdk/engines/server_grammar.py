"""Replies held to a grammar, for servers of tests, by llguidance and the suite's tokenizer."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from envsdk.engines.embedded.guide import Guide, Guides
from envsdk.engines.sampling import OutputStructure, TaggedJson
from envsdk.testing.engine_structures import END_TOKEN

VOCAB_SIZE = 64


class Grammar:
    """Where one reply is in its grammar, from the first token that is sampled for it."""

    def __init__(self, guide: Guide) -> None:
        self._guide = guide
        self.is_over = False

    def allowed(self) -> np.ndarray[Any, Any]:
        """`[VOCAB_SIZE]`, booleans."""
        return self._guide.allowed()

    def advance(self, token: int) -> None:
        """`token` was sampled."""
        self.is_over = token == END_TOKEN
        if not self.is_over:
            self._guide.advance(token)


def begin_grammar(params: Mapping[str, Any], tokenizer: Path | None) -> Grammar | None:
    """For one reply; None when its parameters ask for none. ValueError says why it cannot be kept to."""
    asked: dict[str, Any] = {
        kind: params[kind] for kind in ("regex", "json_schema", "choices") if params.get(kind)
    }
    if tag := params.get("structural_tag"):
        asked["tagged"] = read_structural_tag(tag)
    if not asked:
        return None
    if tokenizer is None:
        raise ValueError(
            "Grammar-based generation (json_schema, regex, ebnf, structural_tag) is not supported"
        )
    guides = _guides(tokenizer)
    structure = OutputStructure(**asked)
    if problem := guides.problem(structure, (END_TOKEN,)):
        reason = problem.message.partition(": ")[2]
        raise ValueError(f"Failed to compile {next(iter(asked))} grammar: {reason}")
    return Grammar(guides.begin(structure, (END_TOKEN,)))


def read_structural_tag(text: str) -> tuple[TaggedJson, ...]:
    """One tag around JSON, or one of several, as XGrammar understands it."""
    tag = json.loads(text)
    assert tag["type"] == "structural_tag"
    part = tag["format"]
    parts = part["elements"] if part["type"] == "or" else [part]
    for each in parts:
        assert (each["type"], each["content"]["type"]) == ("tag", "json_schema")
    return tuple(
        TaggedJson(
            begin=each["begin"], json_schema=json.dumps(each["content"]["json_schema"]), end=each["end"]
        )
        for each in parts
    )


@functools.cache
def _guides(folder: Path) -> Guides:
    guides = Guides.of(folder, VOCAB_SIZE)
    assert guides is not None
    return guides


def biased(logits: np.ndarray[Any, Any], fields: dict[str, Any]) -> np.ndarray[Any, Any]:
    """The logits with a request's `logit_bias`."""
    logits = logits.copy()
    for token, value in fields.get("logit_bias", {}).items():
        logits[int(token)] += value
    return logits
