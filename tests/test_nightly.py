"""The nightly run knows every target of the Makefile that tests, and says what came of each."""

from __future__ import annotations

import itertools
import re

import pytest

from tests.by_day import by_day
from tests.nightly import ROOT, TARGETS, Outcome, counted, main, table

BY_HAND = {"test-docker", "test-gpu", "test-versions", "test-nightly", "test-times"}
"""Need a service, a device, another Python, or are not runs of their own."""


def test_every_target_that_tests_is_in_the_nightly_run() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"^(test-[a-z]+):", makefile, re.MULTILINE))
    assert targets - BY_HAND == {target for target in TARGETS if target != "docs"}


def test_each_test_without_a_gpu_is_run_once_by_day_or_by_night() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    daily = re.findall(r"call pytest_twice,([a-z ]+),", makefile)
    (nightly,) = re.findall(r"^test-slow:.*\n.*pytest -m \"([a-z ]+)\" --timeout", makefile, re.MULTILINE)
    assert "test-slow" in TARGETS
    for marks in itertools.product([False, True], repeat=3):
        has = dict(zip(["system", "slow", "gpu"], marks, strict=True))
        assert sum(eval(each, {}, has) for each in [*daily, nightly]) == (not has["gpu"]), has


def test_a_case_that_is_not_run_by_day_is_slow() -> None:
    one, other = by_day(["TP"], ["TP", "PP"])
    assert (one.marks, [mark.name for mark in other.marks]) == ((), ["slow"])
    assert [each.values for each in by_day([("a", 1)], [("a", 1), ("b", 2)])] == [("a", 1), ("b", 2)]
    with pytest.raises(ValueError, match="DP"):
        by_day(["DP"], ["TP", "PP"])


def test_the_table_has_a_row_for_each_target_with_what_each_run_of_pytest_counted() -> None:
    output = (
        "..F\n=========== 1 failed, 2 passed, 3 skipped in 5.44s ===========\n"
        "...\n12 passed, 1 warning in 61.00s (0:01:01)\nmake: *** [test] Error 1\n"
    )
    counts = counted(output)
    assert counts == "1 failed, 2 passed, 3 skipped + 12 passed, 1 warning"
    rows = table([Outcome("docs", 0, 30.0, ""), Outcome("test-peers", 2, 90.0, counts)]).splitlines()
    assert rows[2:] == ["| docs | passed | 0.5 | - |", f"| test-peers | FAILED (2) | 1.5 | {counts} |"]


def test_an_unknown_target_is_refused_by_name(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["test-nothing"]) == 2
    said = capsys.readouterr().err
    assert "test-nothing" in said
    assert "test-postgres" in said, "what there is"
