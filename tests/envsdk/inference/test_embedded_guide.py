"""Which tokens a structure leaves."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from envsdk.inference.embedded.guide import Guides
from envsdk.inference.engine import ErrorKind
from envsdk.inference.sampling import OutputStructure, TaggedJson
from envsdk.testing.engine_structures import ALPHABET, END_TOKEN, text_of, write_tokenizer

VOCAB_SIZE = 70
"""Some more than the tokenizer has, as models do."""


@pytest.fixture(scope="module")
def guides(tmp_path_factory: pytest.TempPathFactory) -> Guides:
    folder = tmp_path_factory.mktemp("tokenizer")
    write_tokenizer(folder)
    found = Guides.of(folder, VOCAB_SIZE)
    assert found is not None
    return found


def texts(guides: Guides, structure: OutputStructure, stops: tuple[int, ...] = (END_TOKEN,)) -> set[str]:
    """All texts that can be sampled and ended."""
    found: set[str] = set()
    under_way: list[list[int]] = [[]]
    while under_way:
        tokens = under_way.pop()
        guide = guides.begin(structure, stops)
        for token in tokens:
            guide.advance(token)
        allowed = guide.allowed()
        assert allowed.shape == (VOCAB_SIZE,)
        assert allowed.any()
        for token in np.flatnonzero(allowed).tolist():
            if token in stops:
                found.add(text_of(tokens))
            else:
                under_way.append([*tokens, token])
    return found


@settings(max_examples=60, deadline=None)
@given(choices=st.sets(st.text(ALPHABET, min_size=1, max_size=6), min_size=1, max_size=5))
def test_choices_leave_exactly_themselves(guides: Guides, choices: set[str]) -> None:
    assert texts(guides, OutputStructure(choices=tuple(sorted(choices)))) == choices


@settings(max_examples=60, deadline=None)
@given(words=st.lists(st.text("abc", min_size=1, max_size=3), min_size=1, max_size=3), tail=st.booleans())
def test_a_regular_expression_leaves_exactly_what_it_matches(
    guides: Guides, words: list[str], tail: bool
) -> None:
    regex = f"({'|'.join(words)}){'[xy]?' if tail else ''}"
    found = texts(guides, OutputStructure(regex=regex))
    candidates = {word + end for word in words for end in ("", "x", "y", "z")}
    assert found == {text for text in candidates if re.fullmatch(regex, text)}


def test_a_schema_leaves_json_that_it_allows(guides: Guides) -> None:
    schema = {"type": "object", "properties": {"a": {"enum": ["x", "yz"]}}, "required": ["a"]}
    schema |= {"additionalProperties": False, "x-guidance": {"whitespace_flexible": False}}
    found = texts(guides, OutputStructure(json_schema=json.dumps(schema)))
    assert {json.loads(text)["a"] for text in found} == {"x", "yz"}


def test_several_stop_tokens_may_end_a_text_and_are_no_part_of_it(guides: Guides) -> None:
    letter = ALPHABET.index("b")
    assert texts(guides, OutputStructure(choices=("a",)), (END_TOKEN, letter)) == {"a"}
    guide = guides.begin(OutputStructure(choices=("a",)), (END_TOKEN, letter))
    guide.advance(ALPHABET.index("a"))
    assert np.flatnonzero(guide.allowed()).tolist() == sorted([letter, END_TOKEN])


def problem_of(guides: Guides, structure: OutputStructure, stop_token: int) -> str:
    problem = guides.problem(structure, (stop_token,))
    assert problem is not None
    assert problem.kind is ErrorKind.STRUCTURED_OUTPUT
    return problem.message


@pytest.mark.parametrize(
    ("structure", "said"),
    [
        (OutputStructure(regex="(("), "unclosed group"),
        (OutputStructure(json_schema="{"), "cannot be read"),
        (OutputStructure(json_schema='{"type": "nonsense"}'), "nonsense"),
    ],
)
def test_a_structure_that_makes_no_sense_has_its_problem_told(
    guides: Guides, structure: OutputStructure, said: str
) -> None:
    assert said in problem_of(guides, structure, END_TOKEN)
    assert guides.problem(OutputStructure(choices=("a",)), (END_TOKEN,)) is None


def test_a_stop_token_that_the_tokenizer_does_not_have_is_a_problem(guides: Guides) -> None:
    assert "range" in problem_of(guides, OutputStructure(choices=("a",)), VOCAB_SIZE - 1)


def test_a_model_without_a_tokenizer_has_no_guides(tmp_path: Path) -> None:
    assert Guides.of(tmp_path, VOCAB_SIZE) is None
    (tmp_path / "tokenizer.json").write_text("{}")
    assert Guides.of(tmp_path, VOCAB_SIZE) is None


def test_json_between_fixed_texts_has_the_spaces_of_a_template_and_references_of_its_own(
    guides: Guides,
) -> None:
    name = {"$ref": "#/$defs/N", "$defs": {"N": {"enum": ["a", "b"]}}}
    call = {
        "type": "object",
        "properties": {"n": {"$ref": "#/$defs/N"}, "m": {"const": 1}},
        "required": ["n", "m"],
        "$defs": name["$defs"],
        "additionalProperties": False,
    }
    structure = OutputStructure(
        tagged=(
            TaggedJson(begin="<c>", json_schema=json.dumps(call), end="</c>"),
            TaggedJson(begin='"', json_schema=json.dumps(name), end="-"),
        )
    )
    assert texts(guides, structure) == {
        '<c>{"n": "a", "m": 1}</c>',
        '<c>{"n": "b", "m": 1}</c>',
        '""a"-',
        '""b"-',
    }


def test_a_schema_between_fixed_texts_is_json() -> None:
    with pytest.raises(ValueError, match="property name"):
        TaggedJson(begin="<c>", json_schema="{", end="</c>")


@pytest.mark.parametrize("given_kinds", [{}, {"regex": "a", "choices": ("b",)}])
def test_a_structure_is_of_one_kind(given_kinds: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="give one of"):
        OutputStructure(**given_kinds)  # type: ignore[arg-type]
