"""Rewards are numbers that training can use, and solving a task pays."""

from __future__ import annotations

import math

from envsdk.testing.checks import NotApplicable, check
from envsdk.testing.courses import GIBBERISH, Course, play_from, play_to_the_end, short
from envsdk.testing.subject import Subject

_USELESS_TURNS = 200


@check("Rewards are int or float: other numbers do not survive JSON and Parquet.")
def rewards_are_numbers(subject: Subject, course: Course) -> None:
    for index, turn in course.steps():
        is_number = isinstance(turn.reward, int | float) and not isinstance(turn.reward, bool)
        assert is_number, (
            f"turn {index}: {short(turn.reward)} is a {type(turn.reward).__name__}, no int or float"
        )


@check("Rewards are finite: one NaN ruins the advantages of a whole batch.")
def rewards_are_finite(subject: Subject, course: Course) -> None:
    for index, turn in course.steps():
        if isinstance(turn.reward, int | float):
            assert math.isfinite(turn.reward), f"turn {index}: the reward is {turn.reward}"


@check("A reply that did not parse is no success: a policy would learn to say nothing.")
def no_success_by_an_invalid_reply(subject: Subject, course: Course) -> None:
    for index, turn in course.steps():
        assert not (turn.was_invalid and turn.success), (
            f"turn {index}: success by the reply {short(course.replies[index - 1])}, which did not parse"
        )


@check("A reply that did not parse has no reward above zero: a policy would learn to babble.")
def invalid_replies_do_not_pay(subject: Subject, course: Course) -> None:
    for index, turn in course.steps():
        if turn.was_invalid and isinstance(turn.reward, int | float):
            assert not turn.reward > 0, (
                f"turn {index}: reward {turn.reward} for {short(course.replies[index - 1])}, not parsed"
            )


@check(
    "Following the oracle pays more than gibberish: else training leads elsewhere.",
    needs=("oracle",),
    effort=0.25,
)
def solving_pays(subject: Subject, seed: int) -> None:
    if not subject.options.oracle_always_solves:
        raise NotApplicable("oracle_always_solves is off")
    limit = min(subject.options.max_turns, subject.turn_limit or _USELESS_TURNS)
    solving = play_to_the_end(subject.make(), seed, (), limit)
    if not solving[-1].success:
        return  # Another check says so.
    wasting = play_from(subject.make(), seed, [GIBBERISH] * limit)
    solved, wasted = (sum(turn.reward for turn in turns) for turns in (solving, wasting))
    assert not solved <= wasted, f"solving seed {seed} pays {solved:g}, saying nothing of use {wasted:g}"
