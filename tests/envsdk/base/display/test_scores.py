"""Rates in words: never without their denominator and their failures, and no gain over different tasks."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envsdk.base.display.scores import MEAN, Score, change, failed_kinds, held_out, too_many_failed


def score(solved: int, scored: int, failed: int = 0) -> Score:
    return Score(rate=solved / scored if scored else None, num_scored=scored, num_failed=failed)


counted = st.tuples(st.integers(0, 50), st.integers(0, 50), st.integers(0, 50)).map(
    lambda n: score(n[0], n[0] + n[1], n[2])
)


@pytest.mark.parametrize(
    ("found", "text"),
    [
        (score(97, 97, 415), "100.0% of 97, 415 of 512 failed"),
        (score(16, 64), "25.0% of 64"),
        (score(0, 0, 256), "all 256 failed"),
        (score(0, 0), "-"),
        (Score(rate=0.5, num_scored=None), "50.0%"),
        (Score(rate=0.5, num_scored=None, num_failed=3), "50.0%, 3 failed"),
    ],
)
def test_a_rate_says_of_how_many_it_is_and_how_many_failed(found: Score, text: str) -> None:
    assert str(found) == text


@given(counted)
def test_every_counted_rate_has_its_denominator_and_its_failures(found: Score) -> None:
    text = str(found)
    assert "nan" not in text
    assert ("%" in text) == bool(found.num_scored)
    if found.num_scored:
        assert f"% of {found.num_scored}" in text
    assert ("failed" in text) == bool(found.num_failed)
    assert str(found.num_failed or "") in text


@given(counted, counted)
def test_a_gain_is_stated_only_where_the_same_tasks_have_an_outcome(before: Score, after: Score) -> None:
    text = change(before, after)
    assert "nan" not in text
    is_gain = re.fullmatch(r"[+-]\d+\.\d points", text) is not None
    is_whole = not before.num_failed and not after.num_failed
    assert is_gain == (is_whole and before.num_scored == after.num_scored and bool(before.num_scored))
    assert is_gain or text.startswith("no gain is stated: ")


@given(counted, counted, st.integers(0, 50), st.integers(0, 50))
def test_the_range_of_a_change_holds_whatever_the_failed_episodes_would_have_been(
    before: Score, after: Score, one: int, two: int
) -> None:
    def as_if(found: Score, solved: int) -> float:
        assert found.num_scored is not None
        total = found.num_scored + found.num_failed
        return ((found.rate or 0) * found.num_scored + min(solved, found.num_failed)) / total

    if (found := re.search(r"from ([+-][\d.]+) to ([+-][\d.]+) points", change(before, after))) is not None:
        really = 100 * (as_if(after, two) - as_if(before, one))
        assert float(found[1]) - 0.06 <= really <= float(found[2]) + 0.06


def test_a_mean_over_tags_is_compared_only_over_the_same_tags() -> None:
    one = {"val/success/mean": 0.5, "val/success/a": 0.5, "val/num_scored/a": 8.0}
    two = {"val/success/mean": 0.9, "val/success/b": 0.9, "val/num_scored/b": 8.0}
    assert "other tasks" in change(held_out(one)[MEAN], held_out(two)[MEAN])


def test_the_scores_of_an_evaluation_come_from_its_metrics_the_mean_first() -> None:
    metrics = {
        "val/success/sums": 1.0,
        "val/success/mean": 1.0,
        "val/num_scored/sums": 97.0,
        "val/num_failed/sums": 159.0,
        "val/num_scored/comparisons": 0.0,
        "val/num_failed/comparisons": 256.0,
        "val/failures/engine/turn_timeout": 412.0,
        "val/failures/environment/raised": 3.0,
    }
    assert {tag: str(found) for tag, found in held_out(metrics).items()} == {
        "mean": "100.0% of 97, 415 of 512 failed",
        "comparisons": "all 256 failed",
        "sums": "100.0% of 97, 159 of 256 failed",
    }
    assert failed_kinds(metrics) == "412 engine/turn_timeout, 3 environment/raised"
    assert held_out({"success/mean": 0.5}) == {}


def test_metrics_of_earlier_runs_have_rates_without_counts() -> None:
    before, after = ({"val/success/mean": rate, "val/success/Lake": rate} for rate in (0.25, 0.5))
    assert str(held_out(before)["Lake"]) == "25.0%"
    assert change(held_out(before)[MEAN], held_out(after)[MEAN]) == "+25.0 points"


@given(st.integers(0, 100), st.integers(1, 100), st.floats(0, 1))
def test_an_evaluation_counts_for_nothing_when_a_larger_share_than_allowed_failed(
    failed: int, total: int, max_share: float
) -> None:
    failed = min(failed, total)
    problem = too_many_failed(failed, total, max_share, "3 x engine/turn_timeout")
    assert bool(problem) == (failed > max_share * total)
    assert not problem or f"{failed} of {total} episodes failed" in problem
    assert not problem or problem.endswith("Failures: 3 x engine/turn_timeout")
