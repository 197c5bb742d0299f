"""The rewards `countdown` and `tool_calls`."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from envsdk.rewards.loading import load_reward
from envsdk.rewards.reward import RewardError, Sample

TASK = {"target": 10, "numbers": [2, 3, 4]}


def countdown(response: str, row: dict[str, Any] | None = None, **args: Any) -> float:
    row = {"ground_truth": json.dumps(TASK)} if row is None else row
    return load_reward("countdown", args).score(Sample(response=response, row=row)).value


@pytest.mark.parametrize(
    ("equation", "value"),
    [
        ("2*3+4", 1.0),
        ("(4 - -2) + 3 + 1 - 1", 0.1),
        ("2 + 3 + 4", 0.1),
        ("10", 0.1),
        ("2*(3+4)-4", 0.1),
        ("2*3+4 if 1 else 0", 0.1),
        ("__import__('os')", 0.1),
        ("2**3", 0.1),
        ("2/0+3+4", 0.1),
        ("((((" * 40, 0.1),
    ],
)
def test_an_equation_is_right_when_it_reaches_the_target_with_every_number_once(
    equation: str, value: float
) -> None:
    assert countdown(f"<think>hm</think><answer>{equation}</answer>") == value


@pytest.mark.parametrize("glued", ["1_2", "0x12", "12", "1 2"])
def test_numbers_cannot_be_glued_together(glued: str) -> None:
    row = {"target": 12, "nums": [1, 2]}
    assert countdown(f"<answer>{glued}</answer>", row) == 0.1
    assert countdown("<answer>2 - 1</answer>", {"target": 1, "nums": [1, 2]}) == 1.0


def test_without_an_equation_there_is_nothing_and_without_a_target_the_row_is_at_fault() -> None:
    assert countdown("2*3+4 is ten") == 0.0
    with pytest.raises(RewardError, match="no target"):
        countdown("<answer>1</answer>", {"ground_truth": "ten"})
    assert load_reward("countdown", {}).problem({"target": "ten", "numbers": [1]})


@given(st.lists(st.integers(1, 50), min_size=2, max_size=4), st.randoms(use_true_random=False))
@settings(max_examples=40, deadline=None)
def test_the_reference_of_a_task_that_can_be_solved_solves_it(numbers: list[int], rng: Any) -> None:
    target = numbers[0]
    for number in numbers[1:]:
        target = rng.choice([target + number, target - number, target * number])
    row = {"target": target, "numbers": numbers}
    reference = load_reward("countdown", {}).reference(Sample(response="", row=row))
    assert reference is not None
    assert countdown(reference, row) == 1.0


CALLS = [
    {"name": "mail", "arguments": {"to": "Bo", "copies": 2}},
    {"name": "buy", "arguments": {"what": "tea"}},
]


def tool_calls(response: str, truth: Any = CALLS, **args: Any) -> float:
    row = {"ground_truth": truth}
    return load_reward("tool_calls", args).score(Sample(response=response, row=row)).value


def tagged(value: Any) -> str:
    return f"<tool_call>{json.dumps(value)}</tool_call>"


def test_all_calls_with_all_arguments_count_in_any_order_and_notation() -> None:
    assert tool_calls("Sure." + tagged(CALLS)) == 1.0
    assert tool_calls(tagged(CALLS[1]) + "\n" + tagged(CALLS[0]), json.dumps(CALLS)) == 1.0
    assert tool_calls(tagged(CALLS[0])) == 0.0
    assert tool_calls(tagged([*CALLS, CALLS[1]])) == 0.0
    assert tool_calls(tagged([CALLS[0], {"name": "buy", "arguments": {"what": "Tea"}}])) == 0.0
    assert tool_calls("<tool_call>{'name': 'mail'}</tool_call>") == 0.0
    assert tool_calls("No tool helps.", []) == 1.0
    assert tool_calls(tagged(CALLS), []) == 0.0


def test_calls_count_in_the_formats_of_other_families_and_never_in_a_thought() -> None:
    written = '[TOOL_CALLS]mail[ARGS]{"to": "Bo", "copies": 2}[TOOL_CALLS]buy[ARGS]{"what": "tea"}'
    assert tool_calls(written) == 1.0
    assert tool_calls(f"<think>so</think>{written}", require_think=True) == 1.0
    sample = Sample(response='[TOOL_CALLS]mail[ARGS]{"to": "Bo"', row={"ground_truth": CALLS})
    assert load_reward("tool_calls", {}).score(sample).verdict == "has a call that cannot be read"
    assert tool_calls(f"<think>{tagged(CALLS)}</think>Done.") == 0.0


def test_thinking_comes_first_and_once_where_it_is_asked_for() -> None:
    assert tool_calls(tagged(CALLS), require_think=True) == 0.0
    assert tool_calls(f"<think>so</think>{tagged(CALLS)}", require_think=True) == 1.0
    assert tool_calls(f"{tagged(CALLS)}<think>so</think>", require_think=True) == 0.0
    assert tool_calls(f"<think>a<think>b</think>{tagged(CALLS)}", require_think=True) == 0.0


@pytest.mark.parametrize("think", [False, True])
def test_the_reference_makes_the_rows_calls(think: bool) -> None:
    sample = Sample(response="", row={"ground_truth": json.dumps(CALLS)})
    reference = load_reward("tool_calls", {"require_think": think}).reference(sample)
    assert tool_calls(reference or "", require_think=think) == 1.0


def test_a_row_whose_calls_cannot_be_read_is_at_fault() -> None:
    with pytest.raises(RewardError, match="no list of calls"):
        tool_calls("", "mail Bo")
    assert load_reward("tool_calls", {}).problem({"ground_truth": [{"name": "mail"}]})
