"""pass@k against counting, and its interval."""

from __future__ import annotations

import itertools
import random
from statistics import fmean

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envsdk.base.store.tally import wilson_interval
from envsdk.contracts.trajectory import Task
from envsdk.rollouts.play.pass_at_k import paired_difference, pass_at_k, shown_ks

samples = st.lists(st.booleans(), min_size=1, max_size=7)
some_samples = st.lists(st.booleans(), max_size=4)


def outcomes_of(per_task: list[list[bool]]) -> dict[Task, list[bool]]:
    return {Task(tag="t", split="val", index=index): each for index, each in enumerate(per_task)}


@given(st.lists(samples, min_size=1, max_size=6), st.integers(1, 7))
def test_it_is_the_share_of_choices_of_k_samples_that_hold_a_solution(
    per_task: list[list[bool]], k: int
) -> None:
    found = pass_at_k(outcomes_of(per_task), k)
    enough = [each for each in per_task if len(each) >= k]
    assert (found.num_tasks, found.num_left_out) == (len(enough), len(per_task) - len(enough))
    if not enough:
        assert found.rate is None
        assert found.interval == (0.0, 1.0)
        return
    counted = []
    for each in enough:
        choices = list(itertools.combinations(each, k))
        counted.append(sum(map(any, choices)) / len(choices))
    assert found.rate == pytest.approx(sum(counted) / len(counted))
    low, high = found.interval
    assert 0 <= low <= found.rate + 1e-9
    assert found.rate - 1e-9 <= high <= 1


@given(st.lists(st.booleans(), min_size=1, max_size=40))
def test_with_one_sample_a_task_it_is_the_rate_with_about_wilsons_interval(solved: list[bool]) -> None:
    found = pass_at_k(outcomes_of([[each] for each in solved]), 1)
    low, high = wilson_interval(sum(solved), len(solved))
    assert found.rate == pytest.approx(sum(solved) / len(solved))
    # The variance over tasks divides by one less than their number.
    assert found.interval == pytest.approx((low, high), abs=0.08)


def test_samples_that_are_alike_make_nothing_surer() -> None:
    per_task = [[True], [False], [True], [True], [False], [False]]
    one = pass_at_k(outcomes_of(per_task), 1).interval
    eight = pass_at_k(outcomes_of([each * 8 for each in per_task]), 1).interval
    assert eight == pytest.approx(one)


def test_the_ks_that_are_shown() -> None:
    assert [shown_ks(number) for number in (1, 2, 6, 8)] == [[1], [1, 2], [1, 2, 4, 6], [1, 2, 4, 8]]
    with pytest.raises(ValueError, match="at least 1"):
        pass_at_k({}, 0)


@given(st.lists(st.tuples(some_samples, some_samples), min_size=1, max_size=20))
def test_a_paired_difference_is_of_the_tasks_with_an_outcome_under_both(
    pairs: list[tuple[list[bool], list[bool]]],
) -> None:
    first, second = (outcomes_of([pair[number] for pair in pairs]) for number in range(2))
    both = [(fmean(a), fmean(b)) for a, b in pairs if a and b]
    found, reverse = paired_difference(first, second), paired_difference(second, first)
    if found is None or reverse is None:
        assert not both
        return
    assert found.num_tasks == len(both)
    assert found.mean == pytest.approx(fmean(a - b for a, b in both))
    assert reverse.interval == pytest.approx([-bound for bound in reversed(found.interval)])
    low, high = found.interval
    # An interval has a width even where all tasks agree.
    assert -1 <= low < high <= 1


def test_the_interval_of_a_paired_difference_covers_the_truth_as_often_as_it_says() -> None:
    rng = random.Random(0)
    covered = 0
    for _ in range(1000):
        # Tasks are easy or hard for both; the first policy solves a tenth more of all.
        rates = [rng.random() * 0.9 for _ in range(60)]
        first = outcomes_of([[rng.random() < rate + 0.1] for rate in rates])
        second = outcomes_of([[rng.random() < rate] for rate in rates])
        found = paired_difference(first, second)
        assert found is not None
        covered += found.interval[0] <= 0.1 <= found.interval[1]
    assert 930 <= covered <= 975
