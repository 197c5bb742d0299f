"""Which tokens a structure leaves."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from envsdk.engines.embedded.guide import Guides
from envsdk.engines.engine import ErrorKind
from envsdk.engines.sampling import OutputStructure, TaggedJson
from envsdk.engines.tagged_json import structural_tag
from envsdk.engines.tool_calls.formats import HERMES, OPENING, call_of, read_reply
from envsdk.engines.tool_calls.input_grammar import input_pattern
from envsdk.engines.tool_calls.reading import AttemptStatus
from envsdk.testing.engine_structures import ALPHABET, END_TOKEN, text_of, write_tokenizer
from tests.envsdk.engines.patch_grammar import PATCH, PATCH_GRAMMAR

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


PRINTABLE = "".join(map(chr, range(32, 127))) + "\n\t\r"


@pytest.fixture(scope="module")
def printable() -> Guides:
    """Of a model with a token for each printable character and each blank, and one that ends a text."""
    names = {"\n": "\u010a", "\t": "\u0109", "\r": "\u010d", " ": "\u0120"}
    vocabulary = {names.get(text, text): token for token, text in enumerate(PRINTABLE)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary | {"<end>": len(PRINTABLE)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken("<end>", special=True)])
    return Guides(tokenizer.to_str(), len(PRINTABLE) + 1)


def sampled(
    guides: Guides, structure: OutputStructure, seed: int, num_tokens: int, begun: str = ""
) -> tuple[str, bool]:
    """A reply of a policy that knows nothing and may love blanks; whether it ended."""
    end, tokens, random = len(PRINTABLE), list[int](), np.random.default_rng(seed)
    taste = random.normal(scale=4.0, size=end + 1)
    guide = guides.begin(structure, (end,))
    for letter in begun:
        guide.advance(PRINTABLE.index(letter))
    while len(tokens) < num_tokens:
        logits = np.where(guide.allowed(), taste + random.gumbel(size=end + 1), -np.inf)
        if (token := int(logits.argmax())) == end:
            return "".join(PRINTABLE[each] for each in tokens), True
        tokens.append(token)
        guide.advance(token)
    return "".join(PRINTABLE[each] for each in tokens), False


SCHEMAS: list[Any] = [
    {"type": "object", "properties": {"move": {"enum": ["Left", "Right"]}}, "required": ["move"]},
    {"type": "object"},
    True,
    {"type": "array", "items": {"type": "boolean"}, "minItems": 1, "maxItems": 4},
    {"type": "array", "items": {"$ref": "#/$defs/P"}, "$defs": {"P": {"type": "object", "properties": {
        "name": {"type": "string", "maxLength": 6}, "age": {"type": "integer", "maximum": 99}}}}},
    {"anyOf": [{"type": "null"}, {"type": "object", "properties": {"a": {"type": "array"}}}]},
]  # fmt: skip
_STRING = re.compile(r'"(?:[^"\\]|\\.)*"?')


@settings(deadline=None)
@given(st.sampled_from(SCHEMAS), st.integers(0, 2**32), st.booleans())
def test_blanks_between_the_tokens_of_json_are_those_of_json_dumps(
    printable: Guides, schema: Any, seed: int, is_tagged: bool
) -> None:
    text = json.dumps(schema)
    tagged = TaggedJson(begin="<c>", json_schema=text, end="</c>")
    structure = OutputStructure(tagged=(tagged,)) if is_tagged else OutputStructure(json_schema=text)
    reply, has_ended = sampled(printable, structure, seed, 200)
    content = reply.removeprefix("<c>").removesuffix("</c>")
    if has_ended:
        json.loads(content)
    assert re.search(r"\s", re.sub(r"(?<=[,:]) ", "", _STRING.sub("", content))) is None, reply


@given(st.integers(0, 2**32))
@settings(deadline=None)
def test_a_bounded_schema_is_ended_by_every_policy(printable: Guides, seed: int) -> None:
    moves = {"move": {"enum": ["Left", "Right"]}, "steps": {"type": "integer", "minimum": 0, "maximum": 99}}
    moves["why"] = {"type": "array", "items": {"type": "string", "maxLength": 3}, "maxItems": 2}
    schema = {"type": "object", "properties": moves, "required": [*moves]}
    reply, has_ended = sampled(printable, OutputStructure(json_schema=json.dumps(schema)), seed, 100)
    assert has_ended
    value = json.loads(reply)
    assert (value["move"] in ("Left", "Right"), 0 <= value["steps"] <= 99, len(value["why"]) <= 2) == (
        True,
    ) * 3


A, B = ({"type": "object", "properties": {name: {"const": 1}}, "required": [name]} for name in "ab")


@pytest.mark.parametrize(
    ("schema", "keys"),
    [
        ({"type": "object", "properties": {"a": A}}, {"a"}),
        ({"items": {"anyOf": [A, B]}}, {"a", "b"}),
        ({"$defs": {"a": A}, "$ref": "#/$defs/a"}, {"a"}),
        ({"additionalProperties": A, "maxProperties": 1}, None),
        (A | {"required": ["b"]}, None),
        (A | {"additionalProperties": True}, None),
        ({"allOf": [A, B]}, None),
        ({"$defs": {"a": A}, "$ref": "#/$defs/a", **B}, None),
        ({"properties": {"c": {"anyOf": [A, B], **B}}, "required": ["c"]}, None),
    ],
)
def test_objects_have_no_other_properties_than_are_named_unless_the_schema_asks_for_some(
    printable: Guides, schema: Any, keys: set[str] | None
) -> None:
    structure = OutputStructure(json_schema=json.dumps(schema | {"type": schema.get("type", "object")}))
    if "items" in schema:
        structure = OutputStructure(json_schema=json.dumps(schema | {"type": "array", "maxItems": 3}))
    assert printable.problem(structure, (len(PRINTABLE),)) is None
    written = {
        key
        for seed in range(8)
        for key in re.findall(r'"([^"]*)": ', sampled(printable, structure, seed, 60)[0])
    }
    assert keys is None or written <= keys


def test_a_schema_may_ask_for_blanks_of_its_own(printable: Guides) -> None:
    own = SCHEMAS[0] | {"x-guidance": {"whitespace_flexible": False}}
    structure = OutputStructure(json_schema=json.dumps(own))
    assert sampled(printable, structure, 0, 30)[0] in ('{"move":"Left"}', '{"move":"Right"}')


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


PATCHES = input_pattern("lark", PATCH_GRAMMAR)
CALLS = OutputStructure(
    tagged=(
        call_of(
            "edit", {"properties": {"input": {"type": "string", "pattern": PATCHES}}, "required": ["input"]}
        ),
        call_of("run", {"type": "object"}),
    ),
    opening=OPENING,
)


@settings(deadline=None, max_examples=25)
@given(
    st.integers(0, 2**32),
    st.sampled_from(
        ["", "<tool_call", "So:\n<tool_call>", '<tool_call>\n{"name": "e', '<tool_call>\n{"name": "r']
    ),
)
def test_text_is_free_until_a_call_begins_and_then_the_call_keeps_to_its_grammar(
    printable: Guides, seed: int, begun: str
) -> None:
    rest, ended = sampled(printable, CALLS, seed, 300, begun=begun)
    read = read_reply(begun + rest, HERMES, tools={"edit": {}, "run": {}})
    if OPENING not in begun + rest:
        assert read.status is AttemptStatus.NONE
        return
    assert read.status is (AttemptStatus.OK if ended else AttemptStatus.CUT) or not ended
    for call in read.calls:
        if call.name == "edit":
            assert re.fullmatch(PATCHES, json.loads(call.arguments)["input"])


def test_servers_with_xgrammar_are_told_of_text_and_calls_as_triggered_tags() -> None:
    form = structural_tag(CALLS)["format"]
    assert (form["type"], form["triggers"]) == ("triggered_tags", [OPENING])
    assert [tag["begin"].startswith(OPENING) for tag in form["tags"]] == [True, True]


def test_a_patch_as_json_writes_it_can_be_called(printable: Guides) -> None:
    patch = PATCH.replace("é", "e")
    call = f'{OPENING}\n{{"name": "edit", "arguments": {json.dumps({"input": patch})}}}\n</tool_call>'
    guide = printable.begin(CALLS, (len(PRINTABLE),))
    for letter in f"I edit.\n{call}\n{call}":
        assert guide.allowed()[PRINTABLE.index(letter)]
        guide.advance(PRINTABLE.index(letter))
    assert guide.allowed()[len(PRINTABLE)]
    assert not guide.allowed()[PRINTABLE.index(".")]


def test_a_schema_between_fixed_texts_is_json() -> None:
    with pytest.raises(ValueError, match="property name"):
        TaggedJson(begin="<c>", json_schema="{", end="</c>")


@pytest.mark.parametrize("given_kinds", [{}, {"regex": "a", "choices": ("b",)}])
def test_a_structure_is_of_one_kind(given_kinds: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="give one of"):
        OutputStructure(**given_kinds)  # type: ignore[arg-type]


def test_what_stands_between_texts_begins_with_their_opening() -> None:
    with pytest.raises(ValueError, match="must begin with '<d>'"):
        OutputStructure(tagged=(TaggedJson(begin="<c>", json_schema="true", end="."),), opening="<d>")
