"""The `math` reward."""

from __future__ import annotations

import json
from collections import Counter
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from envsdk.rewards.mathematics import MathArgs, MathReward, same_number
from envsdk.rewards.notation import expression, number, quantity
from envsdk.rewards.reward import Reward, RewardError, Sample
from envsdk.rewards.shapes import shape_of
from tests.by_day import by_day

MATH = MathReward(MathArgs())
ANSWERS = Path(__file__).with_name("math_answers.jsonl")
"""Kind, ground truth, response, and whether it is right: written and labeled before any was scored."""


def score(response: str, truth: object) -> Reward:
    return MATH.score(Sample(response=response, row={"ground_truth": truth}))


def boxed(answer: str, truth: str) -> float:
    return score(f"\\boxed{{{answer}}}", truth).value


@pytest.mark.parametrize(
    ("answer", "truth"),
    [
        ("1,234", "1234"),
        ("0.50", "\\frac{1}{2}"),
        ("½", "1/2"),
        ("５", "5"),
        ("٥", "5"),
        ("−3", "-3"),
        ("50\\%", "0.5"),
        ("1.5e3", "1500"),
        ("1e-3", "0.001"),
        ("2E-05", "0.00002"),
        ("-1+2e", "2e-1"),
        ("(-\\infty, 3) \\cup [5, \\infty)", "(-∞,3)∪[5,∞)"),
        ("11,\\! 111", "11111"),
        ("\\left(3, \\dfrac{\\pi}{2}\\right)", "(3, \\frac{\\pi}{2})"),
        ("1.5 \\times 10^{3}", "1500"),
        ("\\$5.00", "5"),
        ("5\\text{ cm}", "5"),
        ("90^\\circ", "90"),
        ("3\\frac{1}{2}", "3.5"),
        ("0.3333333", "1/3"),
        ("2(x+1)", "2x+2"),
        ("x²+1", "x^2+1"),
        ("√2", "\\sqrt{2}"),
        ("π/2", "\\frac{\\pi}{2}"),
        ("(1, 2]", "(1,2]"),
        ("\\{2, 1\\}", "\\{1,2\\}"),
        ("x=1 \\text{ or } x=2", "x=2, x=1"),
        ("x = 5", "5"),
        ("\\begin{pmatrix}1&2\\\\3&4\\end{pmatrix}", "\\begin{bmatrix}1&2\\\\3&4\\end{bmatrix}"),
        ("\\text{East}", "east"),
        ("5", "3 + 2 = 5\n#### 5"),
        ("5", "The value is $\\boxed{5}$."),
    ],
)
def test_equal_answers_in_other_notations_are_right(answer: str, truth: str) -> None:
    assert boxed(answer, truth) == 1.0


@pytest.mark.parametrize(
    ("answer", "truth"),
    [
        ("4", "5"),
        ("0.33", "1/3"),
        ("(1,2)", "(1,2]"),
        ("(2,1)", "(1,2)"),
        ("\\{1,2,3\\}", "\\{1,2\\}"),
        ("5, 6", "5"),
        ("5 or 6", "5"),
        ("x+1", "x+2"),
        ("х", "x"),  # Cyrillic
        ("nevE", "even"),
        ("sey", "Yes"),
        ("", "5"),
        ("{" * 400 + "5" + "}" * 400, "5"),
        ("5" * 900, "5"),
        ("\\frac{", "5"),
    ],
)
def test_different_values_are_wrong(answer: str, truth: str) -> None:
    assert boxed(answer, truth) == 0.0


@given(st.fractions(-(10**6), 10**6, max_denominator=1000))
def test_a_number_equals_itself_as_integer_fraction_and_decimal(value: Fraction) -> None:
    assert number(str(value)) == value
    assert number(f"{value.numerator:,}/{value.denominator}") == value
    as_decimal = f"{float(value):.3f}"
    assert number(as_decimal) == Fraction(as_decimal)


@settings(max_examples=25, deadline=None)
@given(st.integers(-50, 50), st.integers(1, 9), st.integers(-50, 50), st.integers(1, 9))
def test_numbers_compare_as_math_verify_compares_them(a: int, b: int, c: int, d: int) -> None:
    from math_verify import parse, verify

    parsed = [parse(f"${n}/{m}$", parsing_timeout=None) for n, m in ((a, b), (c, d))]
    is_same = same_number(f"{c}/{d}", f"{a}/{b}")
    assert is_same is not None
    assert is_same == verify(*parsed, timeout_seconds=None)


@settings(max_examples=30, deadline=None)
@given(st.integers(-99, 99), st.integers(-99, 99))
def test_a_response_is_right_exactly_when_its_value_is(said: int, truth: int) -> None:
    for response in (f"The answer is {said}.", f"{said}", f"#### {said}", f"We get $x={said}$"):
        assert score(response, truth).value == (said == truth)
    for response in (f"The answer is not {truth}", f"{truth} is not it", f"{truth} or {truth + 1}"):
        assert score(response, truth).value == 0


@pytest.mark.parametrize(
    "truth",
    ["5", "1,234", "\\frac{3}{4}", "(1,2]", "x^2+1", "north", "\\{1,2\\}", "50\\%", "\\text{No}", "1 or 2"],
)
@pytest.mark.parametrize("way", ["boxed", "tag", "hash", "answer_is", "last"])
def test_the_reference_is_right_for_every_row_without_a_problem(truth: str, way: str) -> None:
    reward = MathReward(MathArgs.model_validate({"extract": [way]}))
    sample = Sample(response="", row={"ground_truth": truth})
    assert reward.problem(sample.row) is None
    reference = reward.reference(sample)
    assert reference is not None
    assert reward.score(Sample(response=reference, row=sample.row)).value == 1.0


@pytest.mark.parametrize(
    "truth", ["", None, "{{{ 4", "see the picture: ?? {", "{" * 50 + "}" * 50, "9" * 2000]
)
def test_a_ground_truth_that_does_not_parse_is_the_rows_problem_and_no_responses(truth: str | None) -> None:
    assert MATH.problem({"ground_truth": truth})
    with pytest.raises(RewardError):
        score("5", truth)


def test_the_verdict_says_what_was_found() -> None:
    assert score("The answer is 7", 12).verdict == "7 is not 12"
    assert score("The answer is 12", 12).verdict == "12 is right"
    assert score("The answer is not 12", 12).verdict == "no answer: 12 is denied"
    assert len(score("x" * 900, 12).verdict) < 200


def test_it_scores_off_the_main_thread() -> None:
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(boxed, "\\frac{2}{4}", "\\frac{1}{2}").result() == 1.0


@pytest.mark.parametrize(
    ("answer", "truth"),
    [
        ("0.0000002", "0.0000001"),
        ("0.0000014", "0.000001"),
        ("0.0", r"\frac{1}{10000000}"),
        ("0.0000000016", r"1.5\times 10^{-9}"),
        ("1=2=3=4=5", "5"),
        ("6=5", "5"),
        (r"4 \vee 5", "5"),
        ("5?6", "5"),
        (r"5\\6", "5"),
        ("5_6", "5"),
        (r"5 \mod 6", "5"),
        (r"\neq 5", "5"),
        (r"\geq 5", "5"),
        ("x > 5", "5"),
    ],
)
def test_what_is_another_number_or_none_is_wrong(answer: str, truth: str) -> None:
    assert (
        MathReward(MathArgs())
        .score(Sample(response=rf"\boxed{{{answer}}}", row={"ground_truth": truth}))
        .value
        == 0
    )


@pytest.mark.parametrize(
    ("answer", "truth"),
    [
        ("x = 5", "5"),
        (r"f(2) = 5", "5"),
        (r"\theta = 5", "5"),
        (r"\log_2 32", "5"),
        (r"1.5\times 10^{-9}", r"0.0000000015"),
        ("0.333333", r"\frac{1}{3}"),
        ("-5", "-5.0"),
    ],
)
def test_a_value_in_another_form_is_right(answer: str, truth: str) -> None:
    assert (
        MathReward(MathArgs())
        .score(Sample(response=rf"\boxed{{{answer}}}", row={"ground_truth": truth}))
        .value
        == 1
    )


@pytest.mark.parametrize("every", by_day([4], [1, 4]))
def test_of_two_thousand_answers_few_are_judged_wrongly_and_hardly_any_is_paid_for_nothing(
    every: int,
) -> None:
    all_cases = [json.loads(line) for line in ANSWERS.read_text(encoding="utf-8").splitlines()]
    kinds = {kind for kind, *_ in all_cases}
    cases = [
        case for kind in sorted(kinds) for case in [each for each in all_cases if each[0] == kind][::every]
    ]
    paid_for_nothing, refused = Counter[str](), Counter[str]()
    for kind, truth, response, is_right in cases:
        try:
            value = score(response, truth).value
        except RewardError:
            value = 0.0
        (refused if is_right else paid_for_nothing)[kind] += value != is_right
    assert len(cases) * every >= 1000
    assert len(kinds) >= 60
    assert paid_for_nothing.total() <= 0.01 * len(cases), paid_for_nothing
    assert paid_for_nothing.total() + refused.total() <= 0.04 * len(cases), refused


@pytest.mark.parametrize(
    ("answer", "truth"),
    [
        ("(-1,4)", r"\{-1,4\}"),
        (r"\{2,-3\}", "(2,-3)"),
        ("[2,-3]", "(2,-3)"),
        ("(-3,3)", r"\pm 3"),
        (r"\pm 3", "(-3,3)"),
        ("82", "19, 46, and 82"),
        ("21, 36, and 82", "19, 46, and 82"),
        ("32, 349", "32349"),
        ("11/", "11"),
        (r"12\text{ m}^2", r"12\text{ cm}^2"),
        ("101_8", "101_2"),
        (r"x \equiv 2 \pmod{6}", r"x \equiv 2 \pmod{5}"),
        ("2:5:3", "2:3:5"),
        (r"13\text{ is wrong}", "13"),
        (r"\text{not } 13", "13"),
        (r"\text{at least } 13", "13"),
        ("2x = 13", "13"),
        ("5! = 24", "120"),
        ("f(8) = 0", "f(0) = 0"),
        ("0.4", r"4\%"),
    ],
)
def test_other_collections_units_bases_and_bounds_are_wrong(answer: str, truth: str) -> None:
    assert boxed(answer, truth) == 0


@pytest.mark.parametrize(
    ("answer", "truth"),
    [
        ("19,46,82", "19, 46, and 82"),
        (r"19, 46, \text{ and } 82", "82, 46, 19"),
        (r"1, -3", r"x=1 \text{ or } x=-3"),
        (r"x_1 = 3, x_2 = -3", r"\pm 3"),
        (r"x \ge 0", r"[0, \infty)"),
        (r"|x| < 3", "(-3, 3)"),
        (r"(-\infty,-2)\cup(2,\infty)", r"x<-2 \text{ or } x>2"),
        (r"\;11\;", "11"),
        ("~11~", "11"),
        (r"\color{red}{11}", "11"),
        (r"1\,000\,000", "1000000"),
        (r"40.0\%", "40"),
        ("18 dollars", "18"),
        ("2 3/4", "2.75"),
        ("5½", "5.5"),
        ("5! = 120", "120"),
        (r"\frac34 = 0.75", r"\frac{3}{4}"),
        (r"\angle A = 45^\circ", "45"),
        (r"\sqrt{5} \approx 2.24", r"\sqrt{5}"),
        (r"n \text{ is } 34", "34"),
        (r"\textbf{(C)}\ 42", "42"),
        (r"\textbf{(C)}\ 42", "C"),
        (r"0.\overline{45}", r"\frac{5}{11}"),
        (r"a + b = 9", "9"),
        (r"\begin{bmatrix}1&2\\[2pt]3&4\end{bmatrix}", r"\begin{pmatrix}1&2\\3&4\end{pmatrix}"),
    ],
)
def test_lists_ranges_layout_and_words_around_a_value_are_read(answer: str, truth: str) -> None:
    assert boxed(answer, truth) == 1


@pytest.mark.parametrize("truth", [float("nan"), float("inf"), {"x": 1}, [5, 6]])
def test_a_ground_truth_that_is_no_text_or_number_is_the_rows_problem(truth: Any) -> None:
    problem = MATH.problem({"ground_truth": truth})
    assert problem is not None
    assert problem.startswith("its ground_truth is")
    with pytest.raises(RewardError):
        score("5", truth)


@given(st.lists(st.integers(-99, 99), min_size=2, max_size=6, unique=True), st.randoms())
def test_a_list_equals_itself_in_any_order_and_no_list_with_another_number(
    values: list[int], random: Any
) -> None:
    truth = ", ".join(map(str, values[:-1])) + f", and {values[-1]}"
    shuffled = random.sample(values, len(values))
    assert boxed(", ".join(map(str, shuffled)), truth) == 1
    assert boxed(r"\{" + ",".join(map(str, shuffled)) + r"\}", truth) == 1
    assert boxed(", ".join(map(str, [*values[:-1], 100])), truth) == 0
    assert boxed(str(values[-1]), truth) == 0


@settings(deadline=None)
@given(st.lists(st.sampled_from([*"{}()[],;:=<>|_^%.$& 19x", "\\text{", "\\frac", "\\pm", "\\cup", "\\\\"])))
def test_any_answer_has_a_notation_and_a_shape(pieces: list[str]) -> None:
    text = expression("".join(pieces))
    assert isinstance(shape_of(quantity(text).value).parts, tuple)


@pytest.mark.parametrize(
    ("said", "is_right"),
    [
        ("34", True),
        ("28 + 6 = 34", True),
        ("The answer is 34 coins.", True),
        ("34.0", True),
        ("28 + 6", False),
        ("The answer is 28 + 6", False),
        ("28 + 6 = 28 + 6", False),
        ("28 + 6 \u2248 8", False),
        ("28 + 7 = 34", False),
    ],
)
def test_a_sum_that_is_only_repeated_is_no_answer_where_evaluated_is_set(said: str, is_right: bool) -> None:
    reward = MathReward(MathArgs(evaluated=True))
    assert reward.score(Sample(response=said, row={"ground_truth": "34"})).correct == is_right
    assert MATH.score(Sample(response="28 + 6", row={"ground_truth": "34"})).correct


def test_a_formula_need_not_be_evaluated() -> None:
    reward = MathReward(MathArgs(evaluated=True))
    assert reward.score(Sample(response="$x + 1$", row={"ground_truth": "1 + x"})).correct
