"""Instructions that a program verifies: a response built to follow one passes, a broken one fails."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from envsdk.rewards.ifeval import IFEval
from envsdk.rewards.ifeval_checks import count_sentences, instruction, instruction_names
from envsdk.rewards.loading import load_reward
from envsdk.rewards.reward import Reward, RewardError, Sample

WORDS = ["river", "stone", "garden", "letter", "window", "summer", "paper", "music"]
words = st.lists(st.sampled_from(WORDS), min_size=1, max_size=12)
numbers = st.integers(1, 6)


@dataclass(frozen=True)
class Case:
    """Arguments of an instruction, a text that follows it and one that does not."""

    arguments: dict[str, Any]
    good: str
    bad: str


Build = Callable[[int, list[str]], Case]


def _exact(n: int, kind: str, good: str, bad: str, **arguments: Any) -> Case:
    return Case({kind: n, **arguments}, good, bad)


ENGLISH = "the committee will meet again on tuesday to discuss the plans for the school garden"
FRENCH = "le comité se réunira de nouveau mardi pour discuter des projets pour le jardin de l'école"

PUBLISHED: dict[str, Build] = {
    "keywords:existence": lambda n, w: Case({"keywords": ["Lamp", *w]}, " ".join([*w, "lamp"]), " ".join(w)),
    "keywords:frequency": lambda n, w: _exact(
        n, "frequency", "lamp " * n, "lamp " * (n - 1) + "x", keyword="Lamp", relation="at least"
    ),
    "keywords:forbidden_words": lambda n, w: Case(
        {"forbidden_words": ["lamp", "cat"]}, " ".join([*w, "category"]), " ".join([*w, "Cat."])
    ),
    "keywords:letter_frequency": lambda n, w: _exact(
        n, "let_frequency", "q" * (n - 1) + "x", "Q" * n, letter="q", let_relation="less than"
    ),
    "language:response_language": lambda n, w: Case({"language": "fr"}, FRENCH, ENGLISH),
    "length_constraints:number_sentences": lambda n, w: _exact(
        n, "num_sentences", "Dr. Who came home. " * n, "One came. " * (n - 1) + " ", relation="at least"
    ),
    "length_constraints:number_paragraphs": lambda n, w: _exact(
        n, "num_paragraphs", "\n***\n".join(["text"] * n), "\n***\n".join(["text"] * (n + 1))
    ),
    "length_constraints:number_words": lambda n, w: _exact(
        len(w), "num_words", " ".join(w), " ".join(w[1:]) + ".", relation="at least"
    ),
    "length_constraints:nth_paragraph_first_word": lambda n, w: Case(
        {"num_paragraphs": n + 1, "nth_paragraph": n, "first_word": "Lamp"},
        "\n\n".join([*["x"] * (n - 1), "lamp, it is", "end"]),
        "\n\n".join([*["x"] * n, "lamp"]),
    ),
    "detectable_content:number_placeholders": lambda n, w: _exact(
        n, "num_placeholders", "[name] " * n, "[name] " * (n - 1) + "[open\n]"
    ),
    "detectable_content:postscript": lambda n, w: Case(
        {"postscript_marker": "P.S."}, "text\n\nP. S. more", "text\n\nPS more"
    ),
    "detectable_format:number_bullet_lists": lambda n, w: _exact(
        n, "num_bullets", "* point\n" * n, "- point\n" * (n + 1) + "**bold**"
    ),
    "detectable_format:constrained_response": lambda n, w: Case(
        {}, "My answer is maybe.", "My answer is perhaps."
    ),
    "detectable_format:number_highlighted_sections": lambda n, w: _exact(
        n, "num_highlights", "*this* and **that** " * n, "* * *part* " * (n - 1) + "** **"
    ),
    "detectable_format:multiple_sections": lambda n, w: _exact(
        n,
        "num_sections",
        "\n".join(f"Section {i}\ntext" for i in range(n)),
        "Section one " * n,
        section_spliter="Section",
    ),
    "detectable_format:json_format": lambda n, w: Case(
        {}, f"```json\n{json.dumps({'a': w})}\n```", "a: " + json.dumps(w)
    ),
    "detectable_format:title": lambda n, w: Case({}, f"<<{w[0]}>>\n\ntext", "<< >> and <<\nopen>>"),
    "combination:two_responses": lambda n, w: Case({}, "this\n******\nthat", "same\n******\nsame"),
    "combination:repeat_prompt": lambda n, w: Case(
        {"prompt_to_repeat": "What is it?"}, "what is it? " + " ".join(w), "You ask: What is it?"
    ),
    "startend:end_checker": lambda n, w: Case(
        {"end_phrase": "Any questions?"}, " ".join([*w, "any questions?\n"]), "Any questions? No."
    ),
    "startend:quotation": lambda n, w: Case({}, ' "quoted" ', '"half'),
    "change_case:capital_word_frequency": lambda n, w: _exact(
        n,
        "capital_frequency",
        "NATO-WIDE plans " * n,
        "NATO plans " * (n - 1) + "Lower",
        capital_relation="at least",
    ),
    "change_case:english_capital": lambda n, w: Case({}, ENGLISH.upper(), ENGLISH),
    "change_case:english_lowercase": lambda n, w: Case({}, ENGLISH, FRENCH),
    "punctuation:no_comma": lambda n, w: Case({}, " ".join(w), ",".join([*w, "x"])),
}

OF_ROLL: dict[str, Build] = {
    "verify_keywords": lambda n, w: Case({"keyword_list": ["Lamp"]}, "a LAMP", "a light"),
    "verify_keyword_frequency": lambda n, w: _exact(n, "N", "Lamp, " * n, "lamps " * n, word="lamp"),
    "validate_forbidden_words": lambda n, w: Case({"forbidden_words": ["lamp"]}, " ".join(w), "LAMPS"),
    "verify_letter_frequency": lambda n, w: _exact(n, "N", "q" * n, "q" * (n + 1), letter="q"),
    "validate_response_language": lambda n, w: Case({"language": "en"}, ENGLISH, FRENCH),
    "verify_paragraph_count": lambda n, w: _exact(
        n, "N", " * * * ".join(["text"] * n), " * * * ".join(["text"] * (n + 1))
    ),
    "validate_word_constraint": lambda n, w: _exact(
        n * 20, "N", "word " * (n * 20 + 1), "word " * (n * 20 + 3 * n), quantifier="around"
    ),
    "verify_sentence_constraint": lambda n, w: _exact(
        n, "N", "It is so. " * n, "It is so. " * (n + 1), quantifier="at most"
    ),
    "validate_paragraphs": lambda n, w: Case(
        {"N": 2, "first_word": "Lamp", "i": 2}, "one\n\nLamp two", "Lamp one\n\ntwo"
    ),
    "verify_postscript": lambda n, w: Case({"postscript_marker": "P.S."}, "text P.S. more", "text P.S."),
    "validate_placeholders": lambda n, w: _exact(n, "N", "[name] " * n, "[name] " * (n - 1) + "[open"),
    "verify_bullet_points": lambda n, w: _exact(n, "N", "- point\n" * n, "- point\n" * (n + 1)),
    "validate_title": lambda n, w: Case({}, "<<poem>>", "<poem>"),
    "validate_choice": lambda n, w: Case({"options": ["yes", "no"]}, " yes.\n", "yes or no"),
    "validate_highlighted_sections": lambda n, w: _exact(n, "N", "*part* " * n, "*part* " * (n - 1) + "*"),
    "validate_sections": lambda n, w: _exact(
        n, "N", "Part x\n" * n, "Part x\n" * (n + 1), section_splitter="Part"
    ),
    "validate_json_format": lambda n, w: Case({}, json.dumps(w), " ".join(w)),
    "validate_repeat_prompt": lambda n, w: Case({"original_prompt": "What?"}, "What? That.", "That. What?"),
    "validate_two_responses": lambda n, w: Case({}, "this******that", "this***that"),
    "validate_uppercase": lambda n, w: Case({}, "LOUD 1", "LOUd 1"),
    "validate_lowercase": lambda n, w: Case({}, "quiet 1", "Quiet 1"),
    "validate_frequency_capital_words": lambda n, w: _exact(
        n, "N", "LOUD words " * n, "LOUD words " * (n + 1), quantifier="around"
    ),
    "validate_end": lambda n, w: Case({"end_phrase": "The end"}, "text The end", "The end."),
    "validate_quotation": lambda n, w: Case({}, '"quoted"', '"half'),
    "validate_no_commas": lambda n, w: Case({}, "no comma", "a, comma"),
}


def test_every_instruction_is_tested_and_the_published_ones_are_25() -> None:
    assert sorted({**PUBLISHED, **OF_ROLL}) == instruction_names()
    assert len(PUBLISHED) == len(OF_ROLL) == 25


@pytest.mark.parametrize("name", instruction_names())
@settings(max_examples=12, deadline=None, derandomize=True)
@given(n=numbers, w=words)
def test_a_text_built_to_follow_an_instruction_follows_it_and_a_broken_one_does_not(
    name: str, n: int, w: list[str]
) -> None:
    case = {**PUBLISHED, **OF_ROLL}[name](n, w)
    follows = instruction(name, case.arguments)
    assert follows(case.good)
    assert not follows(case.bad)


HOSTILE = {
    "brackets": "[" * 200_000,
    "braces": "{" * 200_000,
    "angles": "<" * 200_000,
    "stars": "* " * 100_000,
    "dots": "." * 200_000 + "a",
    "quotes": "." + '"' * 200_000 + "a",
    "newlines": "\n" * 200_000,
    "spaces": " " * 200_000 + "-",
    "nested": "[" * 100_000 + "]" * 100_000,
    "surrogates": "\ud800" * 1000 + "\U0001f600" * 1000,
    "nul": "\0" * 1000,
    "empty": "",
}


@pytest.mark.timeout(60)  # a quadratic check takes minutes
@pytest.mark.parametrize("kind", HOSTILE)
def test_hostile_texts_are_scored_in_time_linear_in_their_length(kind: str) -> None:
    checks = [instruction(name, case(3, WORDS).arguments) for name, case in {**PUBLISHED, **OF_ROLL}.items()]
    for check in checks:
        assert check(HOSTILE[kind]) in (True, False)


def score(row: dict[str, Any], response: str, **arguments: Any) -> Reward:
    return load_reward("envsdk.rewards.ifeval:IFEval", arguments).score(Sample(response=response, row=row))


TWO = {
    "instruction_id_list": ["punctuation:no_comma", "length_constraints:number_words"],
    "kwargs": [{"num_words": None}, {"num_words": 3.0, "relation": "at least", "keyword": None}],
}


def test_the_value_is_the_share_of_instructions_that_are_followed() -> None:
    reward = score(TWO, "one, two")
    assert (reward.value, reward.correct) == (0.0, False)
    reward = score(TWO, "one two")
    assert (reward.value, reward.success) == (0.5, False)
    assert reward.parts == {"punctuation:no_comma": 1.0, "length_constraints:number_words": 0.0}
    assert reward.verdict == "follows 1 of 2 instructions, not length_constraints:number_words"
    assert score(TWO, "one two three").success


def test_all_or_nothing_gives_no_share() -> None:
    assert score(TWO, "one two", value="all").value == 0
    assert score(TWO, "one two three", value="all").value == 1


@pytest.mark.parametrize(
    "row",
    [
        {"instruction_id_list": json.dumps(TWO["instruction_id_list"]), "kwargs": json.dumps(TWO["kwargs"])},
        {"ground_truth": json.dumps([{**TWO, "instruction_id": TWO["instruction_id_list"]}])},
    ],
)
def test_rows_may_hold_their_instructions_as_json_text(row: dict[str, Any]) -> None:
    assert score(row, "one two").value == 0.5


def test_a_row_of_roll_names_a_function_and_carries_the_arguments_of_all() -> None:
    truth = {"func_name": "validate_lowercase", "N": 7, "quantifier": None, "end_phrase": None}
    row = {"ground_truth": json.dumps(truth), "tag": "ifeval"}
    assert score(row, "<think>Hm, ABC</think>\n\nquiet").value == 1
    assert score(row, "Loud").value == 0
    assert score(row, "<think>Hm</think>\n\nquiet", after_think=False).value == 0


def test_the_same_instruction_twice_has_two_parts() -> None:
    row = {"instruction_id_list": ["startend:end_checker"] * 2, "kwargs": [{"end_phrase": p} for p in "ab"]}
    assert score(row, "b").parts == {"startend:end_checker": 0.0, "startend:end_checker 2": 1.0}


def test_loose_accepts_a_preamble_and_asterisks_and_strict_does_not() -> None:
    row = {"instruction_id_list": ["startend:quotation"], "kwargs": [{}]}
    for response in ('Sure, here it is:\n"quoted"', '**"quoted"**', '"quoted"\nHope this helps'):
        assert score(row, response).value == 0
        assert score(row, response, strictness="loose").value == 1


def test_an_empty_response_follows_nothing() -> None:
    row = {"instruction_id_list": ["punctuation:no_comma"]}
    assert score(row, "").value == score(row, " \n").value == score(row, "<think>no</think>\n").value == 0
    assert score(row, "<think>not finished").value == 0
    assert score(row, "", strictness="loose").value == 0


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({}, "needs instruction_id_list and kwargs"),
        ({"ground_truth": "12"}, "needs instruction_id_list"),
        ({"ground_truth": "{"}, "ground_truth is no JSON"),
        ({"instruction_id_list": []}, "must be a list of names"),
        ({"instruction_id_list": ["punctuation:no_coma"]}, "did you mean `punctuation:no_comma`"),
        ({"instruction_id_list": ["punctuation:no_comma"], "kwargs": []}, "one section for each of the 1"),
        ({"instruction_id_list": ["length_constraints:number_words"]}, "num_words: Field required"),
        (
            {"instruction_id_list": ["keywords:existence"], "kwargs": [{"keywords": ["a"], "x": 1}]},
            "x: Extra inputs are not permitted",
        ),
        ({"ground_truth": '{"func_name": "verify_keywords", "keyword_list": null}'}, "keyword_list"),
    ],
)
def test_a_row_that_cannot_be_checked_is_named_and_never_scored(row: dict[str, Any], message: str) -> None:
    reward = load_reward("envsdk.rewards.ifeval:IFEval", {})
    problem = reward.problem(row)
    assert problem is not None
    assert message in problem
    with pytest.raises(RewardError):
        reward.score(Sample(response="text", row=row))
    assert IFEval.Args is not None
    assert reward.reference(Sample(response="", row=row)) is None


@pytest.mark.parametrize(
    "options",
    [
        "('It is so.', \"It isn't so.\", 'no')",
        ["It is so.", "It isn't so.", "no"],
        "[It is so, It isn't so, no]",
    ],
)
def test_options_may_be_listed_in_a_text(options: object) -> None:
    is_followed = instruction("validate_choice", {"options": options})
    assert all(map(is_followed, ("It is so.", "It isn't so", "no")))
    assert not any(map(is_followed, ("", ".", "so", "It is", "It is so. no", "(", "'", ",", "No")))


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("", 0),
        ("...", 0),
        ("One", 1),
        ("One. Two! Three?", 3),
        ("Mr. Smith paid 3.50 to J. Doe, e.g. in cash.", 1),
        ('He said "Stop." Then he left.', 2),
        ("So do I. You too.", 2),
        ("Wait... what?! Yes", 3),
    ],
)
def test_sentences_are_counted(text: str, count: int) -> None:
    assert count_sentences(text) == count
