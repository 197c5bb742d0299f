"""Keeping replies to their `OutputStructure`: which tokens may come next. Pure, on llguidance.

guides = Guides.of(folder, vocab_size)
guide = guides.begin(structure, stop_token_ids)
guide.allowed() -> sampled token -> guide.advance(token) -> guide.allowed() ...
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from llguidance import LLMatcher, LLTokenizer
from llguidance.numpy import allocate_token_bitmask, fill_next_token_bitmask
from numpy.typing import NDArray

from envsdk.engines.engine import EngineFailure
from envsdk.engines.refusals import bad_structure
from envsdk.engines.sampling import OutputStructure
from envsdk.engines.tagged_json import held_schema, lark_grammar

_MOST_TOKENIZERS = 8
"""Clients may name stop tokens of their own, and each set of them needs a tokenizer of its own."""


class Guides:
    """Makes guides for one model. Owner: one thread at a time."""

    def __init__(self, tokenizer: str, vocab_size: int) -> None:
        """`tokenizer` is the text of a tokenizer.json; ValueError when it is of a kind not understood.

        Tokens of the model's `vocab_size` that the tokenizer does not have are never allowed.
        """
        self._text = tokenizer
        self._vocab_size = vocab_size
        self._tokenizers: dict[tuple[int, ...], LLTokenizer] = {}
        self._tokenizer(())

    @classmethod
    def of(cls, folder: Path, vocab_size: int) -> Guides | None:
        """For the tokenizer in a Hugging Face folder; None when it has none that is understood."""
        try:
            return cls((folder / "tokenizer.json").read_text(encoding="utf-8"), vocab_size)
        except (ValueError, OSError):
            return None

    def problem(self, structure: OutputStructure, stop_token_ids: tuple[int, ...]) -> EngineFailure | None:
        """Why no reply can be kept to this structure; None when one can."""
        try:
            tokenizer, grammar = self._tokenizer(stop_token_ids), _grammar(structure)
        except ValueError as error:
            return bad_structure(f"it cannot be read: {error}")
        problem = LLMatcher.validate_grammar(grammar, tokenizer)
        return bad_structure(f"it cannot be kept to: {' '.join(problem.split())}") if problem else None

    def begin(self, structure: OutputStructure, stop_token_ids: tuple[int, ...]) -> Guide:
        """For one reply, whose structure has no problem."""
        tokenizer = self._tokenizer(stop_token_ids)
        return Guide(LLMatcher(tokenizer, _grammar(structure)), self._vocab_size)

    def _tokenizer(self, stop_token_ids: tuple[int, ...]) -> LLTokenizer:
        """One whose texts end with these tokens."""
        found = self._tokenizers.get(stop_token_ids)
        if found is None:
            ends = list(stop_token_ids) or None
            found = LLTokenizer(self._text, n_vocab=self._vocab_size, eos_token=ends)
            while len(self._tokenizers) >= _MOST_TOKENIZERS:
                self._tokenizers.pop(next(iter(self._tokenizers)))
            self._tokenizers[stop_token_ids] = found
        return found


class Guide:
    """Where one reply is in its structure."""

    def __init__(self, matcher: LLMatcher, vocab_size: int) -> None:
        self._matcher = matcher
        self._vocab_size = vocab_size
        self._bits = allocate_token_bitmask(1, vocab_size)

    def allowed(self) -> NDArray[np.bool_]:
        """`[vocab_size]`; at least one is: a stop token where the text is complete."""
        fill_next_token_bitmask(self._matcher, self._bits, 0)
        bits = np.unpackbits(self._bits.view(np.uint8), bitorder="little")
        return bits[: self._vocab_size].astype(np.bool_)

    def advance(self, token: int) -> None:
        """`token` was sampled; it was allowed and is no stop token."""
        self._matcher.consume_token(token)


def _grammar(structure: OutputStructure) -> str:
    """In llguidance's own form. ValueError for a schema that is not JSON."""
    if structure.regex is not None:
        return str(LLMatcher.grammar_from_regex(structure.regex))
    if structure.json_schema is not None:
        return str(LLMatcher.grammar_from_json_schema(held_schema(structure.json_schema)))
    if structure.tagged:
        return str(LLMatcher.grammar_from_lark(lark_grammar(structure)))
    # JSON's escapes are those of the grammar's strings.
    return str(LLMatcher.grammar_from_lark("start: " + " | ".join(map(json.dumps, structure.choices))))
