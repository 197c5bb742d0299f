"""Reports of test runs: what is believed, and what is not."""

from __future__ import annotations

import hashlib
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envsdk.envs.swe.evaluator.canaries import Canary, make_canary
from envsdk.envs.swe.evaluator.report import distrust, look_up, read_report
from envsdk.envs.swe.tasks.task import Outcome

KEY = b"k" * 32
CANARY = Canary(path="t.py", text="", must_pass=("t.py::good",), must_fail=("t.py::bad",))


def lines(*records: tuple[str, ...], key: bytes = KEY) -> bytes:
    """As the launcher writes them; fields: kind, id, phase, outcome, seconds, message."""
    data = b""
    for number, record in enumerate(records):
        fields = [*record, *[""] * (6 - len(record))]
        fields[4] = fields[4] or "0"
        text = b" ".join(field.encode().hex().encode() for field in fields)
        mac = hashlib.blake2b(b"%d %s" % (number, text), key=key, digest_size=16).hexdigest()
        data += mac.encode() + b" " + text + b"\n"
    return data


def ran(test: str, *outcomes: str) -> list[tuple[str, ...]]:
    return [
        ("test", test, when, outcome, "0.5")
        for when, outcome in zip(("setup", "call", "teardown"), outcomes, strict=False)
    ]


END = ("end", "", "", "1")
WHOLE = [*ran("t.py::good", *["passed"] * 3), *ran("t.py::bad", "passed", "failed", "passed"), END]


@pytest.mark.parametrize(
    ("outcomes", "outcome"),
    [
        (("passed", "passed", "passed"), Outcome.PASSED),
        (("passed", "failed", "passed"), Outcome.FAILED),
        (("failed",), Outcome.ERROR),
        (("passed", "passed", "failed"), Outcome.ERROR),
        (("skipped",), Outcome.SKIPPED),
        (("passed", "skipped", "passed"), Outcome.SKIPPED),
        (("passed", "xfailed", "passed"), Outcome.XFAILED),
        (("passed", "xpassed", "passed"), Outcome.XPASSED),
        (("passed", "passed"), Outcome.ERROR),
    ],
)
def test_only_three_passed_phases_are_a_pass(outcomes: tuple[str, ...], outcome: Outcome) -> None:
    report = read_report(lines(*ran("t.py::x", *outcomes), END), KEY)
    assert report.outcomes == {"t.py::x": outcome}
    assert report.flaws == ()


def test_a_whole_report_is_believed() -> None:
    report = read_report(lines(*WHOLE), KEY)
    assert distrust(report, [CANARY], 1) is None
    assert report.seconds["t.py::good"] == 1.5


@given(st.data())
def test_no_change_of_a_report_is_believed(data: st.DataObject) -> None:
    good = lines(*WHOLE)
    position = data.draw(st.integers(0, len(good) - 1))
    kind = data.draw(st.sampled_from(["flip", "cut", "insert", "drop line", "swap lines"]))
    parts = good.split(b"\n")[:-1]
    number = data.draw(st.integers(0, len(parts) - 2))
    if kind == "flip":
        changed = good[:position] + bytes([good[position] ^ 1]) + good[position + 1 :]
    elif kind == "cut":
        changed = good[:position]
    elif kind == "insert":
        changed = good[:position] + b"\n" + good[position:]
    elif kind == "drop line":
        changed = b"".join(part + b"\n" for part in parts[:number] + parts[number + 1 :])
    else:
        parts[number], parts[number + 1] = parts[number + 1], parts[number]
        changed = b"".join(part + b"\n" for part in parts)
    assert distrust(read_report(changed, KEY), [CANARY], 1) is not None


def test_lines_under_another_key_or_after_the_end_are_not_believed() -> None:
    assert read_report(lines(*WHOLE, key=b"x" * 32), KEY).flaws
    assert read_report(lines(*WHOLE, *ran("t.py::late", "passed")), KEY).flaws


@pytest.mark.parametrize("status", [0, 2, 5, 137, None])
def test_an_exit_status_other_than_that_of_failed_tests_is_not_believed(status: int | None) -> None:
    assert distrust(read_report(lines(*WHOLE), KEY), [CANARY], status) is not None


def test_a_test_that_passes_twice_is_not_believed() -> None:
    twice = ran("t.py::good", *["passed"] * 3)
    assert read_report(lines(*twice, *twice, END), KEY).flaws


@pytest.mark.parametrize("changed", ["good", "bad"])
def test_canaries_that_came_out_otherwise_are_not_believed(changed: str) -> None:
    outcome = {"good": "failed", "bad": "passed"}[changed]
    records = [record if record[1] != f"t.py::{changed}" else (*record[:3], outcome) for record in WHOLE]
    assert "canary" in str(distrust(read_report(lines(*records), KEY), [CANARY], 1))


def test_ids_cut_at_a_space_are_found() -> None:
    outcomes = {"a.py::t[x y]": Outcome.PASSED, "a.py::t[x z]": Outcome.FAILED, "a.py::u": Outcome.PASSED}
    assert look_up(outcomes, "a.py::t[x y]") is Outcome.PASSED
    assert look_up(outcomes, "a.py::t[x") is Outcome.FAILED
    assert look_up(outcomes, "a.py::t[q") is Outcome.MISSING
    assert look_up(outcomes, "a.py::v") is Outcome.MISSING


@given(st.integers())
def test_canaries_are_valid_and_have_names_of_their_own(seed: int) -> None:
    source = random.Random(seed)
    first = make_canary("tests", frozenset(), source)
    last = make_canary("tests", frozenset({first.path}), source)
    compile(first.text, first.path, "exec")
    ids = [*first.must_pass, *first.must_fail]
    assert len(set(ids)) == len(ids) == 12
    assert all(test.startswith(f"{first.path}::") for test in ids)
    assert first.path != last.path
