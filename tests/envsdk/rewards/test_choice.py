"""The `choice` and `exact` rewards."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envsdk.rewards.choice import LETTERS, ChoiceArgs, ChoiceReward
from envsdk.rewards.exact import ExactArgs, ExactReward
from envsdk.rewards.reward import Reward, RewardError, Sample

PROMPT = [{"role": "user", "content": "Which?\nA) a cat\nB) a dog\nC) Paris"}]


def choose(response: str, truth: str = "B", **settings: object) -> Reward:
    reward = ChoiceReward(ChoiceArgs.model_validate(settings))
    return reward.score(Sample(response=response, messages=PROMPT, row={"ground_truth": truth}))


@pytest.mark.parametrize(
    "response",
    [
        "B",
        "b",
        "B.",
        "(B)",
        "**B**",
        "B) a dog",
        "a dog",
        "Option B",
        "\\boxed{B}",
        "\\boxed{\\text{(B)}}",
        "<answer>B</answer>",
        "The answer is B.",
        "The correct answer is option B, since A is wrong.",
        "A is tempting, but I choose **B**",
        "I think\nB",
        "The answer is: **(B)**",
        "Answer: B - a dog",
        "B is correct.",
        "It's B",
        "It is B.",
        "Therefore, B.",
        "B\n\nExplanation: the other (A) sleeps.",
        "答案是B",
        "答案：B，因为它会叫。",
        "The answer is B because 5 > 3",
        "<think>\\boxed{A}</think>B",
    ],
)
def test_a_choice_is_understood_by_letter_and_by_text(response: str) -> None:
    assert choose(response).correct


@pytest.mark.parametrize(
    "response",
    [
        "A",
        "",
        "A or B",
        "\\boxed{A, B}",
        "B or A",
        "The answer is not B",
        "not (B)",
        "Bravo",
        "A boy",
        "B is wrong",
        "It's not B",
        "Therefore, A.",
        "答案是A",
        "答案不是B",
        "\\boxed{A}\nB",
        "В",
        "<think>B",
        "{" * 10_000,
        "B? " * 60_000 + "C",
        "(A)" * 60_000,
    ],
)
def test_other_choices_hedges_and_denials_are_wrong(response: str) -> None:
    assert not choose(response).correct


def test_a_question_may_have_several_right_options() -> None:
    assert choose("\\boxed{A, C}", "AC").correct
    assert choose("AC", "A, C").correct
    assert not choose("AB", "A, C").correct
    assert choose("The answer is C and A", "A, C").correct
    assert choose("\\boxed{CA}", "AC").correct
    assert not choose("\\boxed{A}", "AC").correct


@pytest.mark.parametrize(
    ("reward_type", "values"),
    [
        ("binary", [1, 1, 0, 0]),
        ("boxed", [1, 0, 0, 0]),
        ("loose", [1, 1, -1, -1]),
        ("soft", [1, 0.5, -0.5, -1]),
        ("strict", [1, -1, -1, -1]),
    ],
)
def test_the_reward_type_says_what_a_box_is_worth(reward_type: str, values: list[float]) -> None:
    responses = ["\\boxed{B}", "The answer is B", "\\boxed{A}", "The answer is A"]
    assert [choose(each, reward_type=reward_type).value for each in responses] == values


@given(st.sampled_from(LETTERS))
def test_the_reference_choice_is_right(letter: str) -> None:
    reward = ChoiceReward(ChoiceArgs())
    sample = Sample(response="", row={"ground_truth": letter})
    assert reward.problem(sample.row) is None
    assert reward.score(Sample(response=reward.reference(sample) or "", row=sample.row)).value == 1


def test_options_may_stand_in_the_row() -> None:
    row = {"ground_truth": "a dog", "options": ["a cat", "a dog"]}
    reward = ChoiceReward(ChoiceArgs())
    assert reward.problem(row) is None
    assert reward.score(Sample(response="(B)", row=row)).correct
    assert reward.problem({"ground_truth": "a dog"})


def exact(response: str, truth: str, **settings: object) -> float:
    reward = ExactReward(ExactArgs.model_validate(settings))
    return reward.score(Sample(response=response, row={"ground_truth": truth})).value


def test_exact_compares_to_the_letter_unless_something_is_ignored() -> None:
    assert exact(" Paris\n", "Paris") == 1
    assert exact("paris", "Paris") == 0
    assert exact("paris", "Paris", ignore=["case"]) == 1
    assert exact("New  York!", "new york", ignore=["case", "space", "punctuation"]) == 1
    assert exact("<think>Rome?</think>Paris", "Paris") == 1
    assert exact("I say \\boxed{Paris}", "Paris", extract=["boxed"]) == 1
    assert exact("Paris", "Paris", extract=["boxed"]) == 0
    assert exact("<think>Paris", "Paris") == 0


@given(st.text(alphabet=st.characters(exclude_characters="<>"), min_size=1))
def test_the_exact_reference_is_right(truth: str) -> None:
    reward = ExactReward(ExactArgs())
    sample = Sample(response="", row={"ground_truth": truth})
    if reward.problem(sample.row) is None:
        assert exact(reward.reference(sample) or "", truth) == 1


@pytest.mark.parametrize("text", [r"\boxed{B. red}", r"\boxed{B: red}", "The answer is (B) red"])
def test_a_letter_beside_another_options_text_chooses_nothing(text: str) -> None:
    row = {"ground_truth": "B", "options": {"A": "red", "B": "blue"}}
    assert ChoiceReward(ChoiceArgs()).score(Sample(response=text, row=row)).value == 0
    right = text.replace("red", "blue")
    assert ChoiceReward(ChoiceArgs()).score(Sample(response=right, row=row)).value == 1


@pytest.mark.parametrize(("text", "truth"), [("5", "-5"), ("15", "1.5"), ("", "a")])
def test_signs_and_points_of_numbers_are_no_punctuation(text: str, truth: str) -> None:
    reward = ExactReward(ExactArgs.model_validate({"ignore": ["punctuation"]}))
    assert reward.score(Sample(response=text, row={"ground_truth": truth})).value == 0
    assert reward.score(Sample(response=f"{truth}!", row={"ground_truth": truth})).value == 1


@pytest.mark.parametrize("truth", ["", "!!"])
def test_a_row_with_nothing_to_compare_with_is_masked(truth: str) -> None:
    reward = ExactReward(ExactArgs.model_validate({"ignore": ["punctuation"]}))
    with pytest.raises(RewardError):
        reward.score(Sample(response="", row={"ground_truth": truth}))


@pytest.mark.parametrize("truth", [float("nan"), {"answer": "B"}, ["B", "C"]])
def test_a_ground_truth_that_is_no_text_is_the_rows_problem(truth: object) -> None:
    row = {"ground_truth": truth, "prompt": "Which?"}
    for reward in (ChoiceReward(ChoiceArgs()), ExactReward(ExactArgs())):
        assert reward.problem(row)
        with pytest.raises(RewardError):
            reward.score(Sample(response="B", row=row))
