"""Grammars of tools as regular expressions, compared with what llguidance reads of the same grammars."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from llguidance import LLMatcher, LLTokenizer
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from envsdk.engines.tool_calls.input_grammar import MAX_PATTERN_CHARS, Inexpressible, input_pattern
from tests.by_day import examples
from tests.envsdk.engines.patch_grammar import PATCH, PATCH_GRAMMAR

END = 256


def byte_tokenizer() -> Tokenizer:
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {letter: token for token, letter in enumerate(letters)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<end>"])
    return tokenizer


TOKENIZER = byte_tokenizer()
GUIDED = LLTokenizer(TOKENIZER.to_str(), eos_token=END)


def takes(grammar: str, text: str) -> bool:
    """Whether llguidance takes the whole text."""
    matcher = LLMatcher(GUIDED, grammar)
    assert not matcher.is_error(), matcher.get_error()
    ids = TOKENIZER.encode(text).ids
    return bool(matcher.try_consume_tokens(ids) == len(ids) and matcher.is_accepting())


def takes_both(lark: str, text: str) -> bool:
    pattern = input_pattern("lark", lark).removeprefix("^").removesuffix("$")
    found = takes(LLMatcher.grammar_from_regex(pattern), text)
    assert found == takes(LLMatcher.grammar_from_lark(lark), text)
    assert found == bool(re.fullmatch(pattern, text))
    return found


ATOM = st.sampled_from(['"a"', '"b"i', "/[ab]/", '"a".."b"', "T", "r", '"."', "LF", r"/c|\//"])


def _wider(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    return st.one_of(
        st.tuples(inner, inner).map(" ".join),
        st.tuples(inner, inner).map(lambda both: f"({' | '.join(both)})"),
        st.tuples(inner, st.sampled_from("?*+")).map(lambda both: f"({both[0]}){both[1]}"),
        inner.map(lambda each: f"[{each}]"),
    )


@settings(max_examples=examples(50), deadline=None)
@given(st.recursive(ATOM, _wider, max_leaves=5), st.text("aBb.c/\n", max_size=4))
def test_the_expression_of_a_grammar_takes_the_texts_that_the_grammar_takes(body: str, text: str) -> None:
    takes_both(f'start: {body} // or\n\nr: T | "c"\n  | "ab"\nT: "ba"\n%import common.LF\n', text)


def test_codex_patches_are_taken_and_nothing_else() -> None:
    assert takes_both(PATCH_GRAMMAR, PATCH)
    assert takes_both(PATCH_GRAMMAR, PATCH + "\n")
    for wrong in ("", "hello", PATCH.replace("+", "!"), PATCH.replace("Begin", "Start"), PATCH + "\n\n"):
        assert not takes_both(PATCH_GRAMMAR, wrong)


def test_a_regular_expression_stays_as_it_is() -> None:
    assert input_pattern("regex", r"\d+|x") == r"^(?:\d+|x)$"


@pytest.mark.parametrize(
    ("grammar", "error", "said"),
    [
        ('start: item\n"a"', ValueError, "`item` is not defined"),
        ('item: "a"', ValueError, "`start` is not defined"),
        ('start: "a"\nitem ^ "b"', ValueError, 'line 2 cannot be read from `^ "b"` on'),
        ('"a"', ValueError, 'line 1: `"a"` stands in no rule'),
        (r'start: "\x"', ValueError, "is no string"),
        ('start: "a" start | "b"', Inexpressible, "`start` holds itself"),
        ('start: "a"\n%ignore " "', Inexpressible, "line 2: `%ignore`"),
        ("start: DATE\n%import common.DATE", Inexpressible, "line 2: `DATE` of `common`"),
    ],
)
def test_what_is_wrong_with_a_grammar_is_told(grammar: str, error: type[ValueError], said: str) -> None:
    with pytest.raises(ValueError, match=re.escape(said)) as told:
        input_pattern("lark", grammar)
    assert type(told.value) is error


def test_a_grammar_that_doubles_with_each_rule_ends_early() -> None:
    rules = [f"r{number}: r{number + 1} r{number + 1}" for number in range(40)]
    grammar = "\n".join(["start: r0", *rules, 'r40: "a"'])
    with pytest.raises(Inexpressible, match=str(MAX_PATTERN_CHARS)):
        input_pattern("lark", grammar)


def test_a_long_chain_of_rules_is_no_recursion_error() -> None:
    grammar: Any = "\n".join(["start: r0", *(f"r{n}: r{n + 1}" for n in range(5000)), 'r5000: "a"'])
    with pytest.raises(Inexpressible):
        input_pattern("lark", grammar)
