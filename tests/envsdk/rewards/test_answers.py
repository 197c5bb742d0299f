"""Which words of a response are its answer."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from envsdk.rewards.answers import Extraction, find_answer
from tests.by_day import examples


def answer(response: str, **choices: object) -> str | None:
    return find_answer(response, Extraction.model_validate(choices)).answer


@pytest.mark.parametrize(
    ("response", "expected"),
    [
        ("4", "4"),
        ("-1,234.5", "-1,234.5"),
        ("so \\boxed{12}.", "12"),
        ("\\boxed{1}, no: \\boxed{\\frac{1}{2}}", "\\frac{1}{2}"),
        ("\\boxed{\\boxed{5}}", "5"),
        ("\\boxed{1} and $\\boxed{2}$", "1, 2"),
        ("\\boxed{5}" * 1000, "5"),
        ("<answer> 7 </answer>", "7"),
        ("She has 3 + 4 = 7 eggs.\n#### 7", "7"),
        ("The answer is $x+1$.", "x+1"),
        ("**Answer:** 5", "5"),
        ("The answer to the riddle is 5 eggs.", "5"),
        ("The answer is 7. The answer is not 5.", "7"),
        ("The answer is 7, not 5.", "7"),
        ("The answer is not 5 but 7", "7"),
        ("With 3 apples and 4 pears there are 7 pieces", "7"),
        ("it follows that $y = 2$", "y = 2"),
        ("The answer is 5 or 6", "5 or 6"),
        ("<think>the answer is 5</think>The answer is 6", "6"),
        ("north-east", "north-east"),
        ("Final Answer: The largest $n$ is 34.", "34"),
        ("Final Answer: The volume of $ABCDEFGH$ is 120. I hope it is correct.", "120"),
        ("\\boxed{(2, 2)} \\quad \\text{and} \\quad \\boxed{(6, 2)}", "(2, 2), (6, 2)"),
        ("$m = \\boxed{2}$ and $n = \\boxed{5}$", "2, 5"),
        ("$\\boxed{2}$, $\\boxed{5}$, and $\\boxed{7}$", "2, 5, 7"),
        ("The solutions are $x=3$ and $x=-3$.", "x=3, x=-3"),
        ("The answer is 5. Actually, it should be 6.", "6"),
        ("答案是 25", "25"),
        ("答案:25", "25"),
        ("答えは25です", "25"),
        ("La respuesta es 25.", "25"),
        ("\\fbox{5}", "5"),
    ],
)
def test_the_answer_is_found_in_each_usual_form(response: str, expected: str) -> None:
    assert answer(response) == expected


@pytest.mark.parametrize(
    "response",
    [
        "",
        "The answer is not 5",
        "The answer isn't 5",
        "I don't think the answer is 5, it is not 5",
        "not \\boxed{5}",
        "\\boxed{5} is wrong",
        "\\boxed{5}? No, that is not right.",
        "\\boxed{5}. Wait, that's wrong.",
        "The answer is 5. No, this is incorrect.",
        "The answer cannot be 5",
        "No solution exists, so 5 is impossible.",
        "The answer is at least 5",
        "答案不是 25",
        "no es 25",
        "Die Antwort ist nicht 25",
        "La réponse n'est pas 25",
        "Ответ не 25",
        "답은 25이 아닙니다",
        "5 is not the answer",
        "≠ 5",
        "<think>5",
        "\\boxed{5",
        "\\boxed 5 \\boxed",
        "not " * 1000 + "5",
    ],
)
def test_a_denied_or_unfinished_answer_is_none(response: str) -> None:
    found = find_answer(response, Extraction())
    assert found.answer is None
    assert found.problem


def test_only_the_chosen_ways_are_tried_in_their_order() -> None:
    response = "\\boxed{1} <answer>2</answer>\n#### 3"
    assert answer(response, extract=["hash", "boxed"]) == "3"
    assert answer(response, extract=["tag"]) == "2"
    assert answer("The answer is 4", extract=["boxed", "tag"]) is None


@pytest.mark.parametrize(
    "piece",
    [
        "\\boxed{",
        "\\boxed{5}",
        "\\boxed{a}\\boxed{b}",
        "{",
        "}",
        "$",
        "\\(",
        "$x$",
        "1",
        "1,111",
        "answer ",
        "the answer is 5. ",
        "the answer is not 5 ",
        "not ",
        "5 or ",
        "#### ",
        "<answer>",
        "<answer>5</answer>",
        "</think>",
        "<think>",
        " ",
        "\n",
    ],
)
def test_a_piece_repeated_to_200_kB_gives_a_short_answer_or_none(piece: str) -> None:
    found = find_answer(piece * (200_000 // len(piece)), Extraction())
    assert found.answer is None or len(found.answer) <= 1000


def test_nested_braces_end_at_the_limit() -> None:
    deep = "\\boxed{" + "{" * 10_000 + "5" + "}" * 10_000 + "}"
    found = find_answer(deep, Extraction())
    assert found.answer is None
    assert "longer than 1000" in found.problem


@settings(max_examples=examples(60), deadline=None)
@given(
    st.lists(
        st.sampled_from(
            [
                "\\boxed{",
                "}",
                "{",
                "$",
                "5",
                "-7/3",
                " or ",
                "not ",
                "the answer is ",
                "####",
                "<answer>",
                "\\",
                "x",
            ]
        )
        | st.text(max_size=5)
    )
)
def test_any_text_has_an_answer_or_a_reason(pieces: list[str]) -> None:
    found = find_answer("".join(pieces), Extraction())
    assert (found.answer is None) == bool(found.problem)


@given(st.text(max_size=50), st.integers(-999, 999))
def test_a_final_box_decides_whatever_stands_before_it(before: str, number: int) -> None:
    assert answer(f"{before.replace('<think>', '')}.\n\nTherefore: \\boxed{{{number}}}") == str(number)
