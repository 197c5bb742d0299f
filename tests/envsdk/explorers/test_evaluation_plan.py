"""Which versions `mode: bench` evaluates."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from envsdk.explorers.bench import EvaluationPlan
from tests.by_day import examples


def evaluated(plan: EvaluationPlan, looks: list[int], last: int) -> tuple[list[int], list[int]]:
    """Steps that a bench evaluates which sees these versions as the newest, and those it says it missed."""
    done: list[int] = []
    missed: list[int] = []
    for step in [*looks, last]:
        after = done[-1] if done else None
        if plan.is_due(step, after=after, is_last=step == last):
            missed += plan.missed(step, after=after)
            done.append(step)
    return done, missed


def test_one_that_keeps_up_evaluates_as_a_single_program_does() -> None:
    assert evaluated(EvaluationPlan(20, 1), list(range(80)), 80) == ([0, 20, 40, 60, 80], [])


def test_between_two_publications_the_next_one_is_evaluated() -> None:
    assert evaluated(EvaluationPlan(10, 4), list(range(0, 40, 4)), 40) == ([0, 12, 20, 32, 40], [])


def test_one_that_falls_behind_takes_the_newest_and_names_those_it_missed() -> None:
    plan = EvaluationPlan(10, 1)
    assert evaluated(plan, [0, 35, 36], 40) == ([0, 35, 40], [10, 20, 30])


def test_one_that_starts_late_names_those_before() -> None:
    assert evaluated(EvaluationPlan(10, 1), [25], 30) == ([25, 30], [0, 10, 20])


def test_eval_steps_0_evaluates_the_first_and_the_last_version() -> None:
    assert evaluated(EvaluationPlan(0, 1), list(range(30)), 30) == ([0, 30], [])


def test_a_step_is_evaluated_once() -> None:
    plan = EvaluationPlan(10, 1)
    assert not plan.is_due(30, after=30, is_last=True)


@settings(max_examples=examples(60), deadline=None, derandomize=True)
@given(
    eval_steps=st.integers(1, 12),
    interval=st.integers(1, 5),
    number=st.integers(1, 40),
    seen=st.lists(st.booleans(), min_size=40, max_size=40),
)
def test_what_a_single_program_evaluates_is_evaluated_missed_or_in_the_next_version(
    eval_steps: int, interval: int, number: int, seen: list[bool]
) -> None:
    versions = [version * interval for version in range(number)]
    last = number * interval
    looks = [step for step, is_seen in zip(versions, seen, strict=False) if is_seen]
    done, missed = evaluated(EvaluationPlan(eval_steps, interval), looks, last)
    assert done == sorted(set(done))
    assert done[-1] == last
    assert not set(done) & set(missed)
    due = {-(-mark // interval) * interval for mark in range(0, last + 1, eval_steps)}
    assert {step for step in due if step < last} <= set(done) | set(missed)
