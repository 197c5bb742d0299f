"""The faults that the tests must find can be planted, and stand in every wing."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from tests.house import House
from tests.mutations import Fault, Outcome, chosen, main, read_faults, table

FAULTS = read_faults()


def planted(tmp_path: Path, text: str) -> Fault:
    (tmp_path / "sums.py").write_text(text)
    (tmp_path / "test_sums.py").write_text("def test_it_adds() -> None: ...")
    return Fault(wing="base", file="sums.py", what="wrong sign", old="+ b", new="- b", tests=["test_sums.py"])


@pytest.mark.parametrize("fault", FAULTS, ids=[each.what for each in FAULTS])
def test_each_fault_can_be_planted_and_changes_something(fault: Fault) -> None:
    assert fault.problem() == ""
    assert fault.old != fault.new
    assert fault.tests


def test_every_wing_has_two_faults_at_least_and_all_have_forty() -> None:
    house, by_wing = House.read(), Counter(each.wing for each in FAULTS)
    for fault in FAULTS:
        first, second, *_ = Path(fault.file).parts
        room = second if first == "envsdk" else first
        # Contracts and commands are modules of the package itself.
        assert house.rooms.get(room, fault.wing) == fault.wing, fault.what
    assert by_wing.keys() == house.wings.keys()
    assert min(by_wing.values()) >= 2
    assert len({each.what for each in FAULTS}) == len(FAULTS) >= 40


@pytest.mark.parametrize(("text", "times"), [("a - b", 0), ("a + b + b", 2)])
def test_a_text_that_does_not_occur_once_is_named_with_its_file(
    tmp_path: Path, text: str, times: int
) -> None:
    assert planted(tmp_path, text).problem(tmp_path) == f"sums.py has {times} times, not once: '+ b'"


def test_a_file_or_a_test_that_is_gone_is_named(tmp_path: Path) -> None:
    fault = planted(tmp_path, "a + b")
    assert fault.problem(tmp_path) == ""
    assert replace(fault, tests=["test_sums.py::test_it_adds"]).problem(tmp_path) == ""
    other = "test_sums.py::test_it_subtracts"
    assert replace(fault, tests=[other]).problem(tmp_path) == f"there is no {other}"
    (tmp_path / "test_sums.py").unlink()
    assert fault.problem(tmp_path) == "there is no test_sums.py"
    (tmp_path / "sums.py").unlink()
    assert fault.problem(tmp_path) == "there is no sums.py"


def test_faults_are_chosen_by_wing_or_by_a_part_of_their_file() -> None:
    assert {each.wing for each in chosen(FAULTS, ["buffer"])} == {"buffer"}
    assert {each.file for each in chosen(FAULTS, ["ledger.py"])} == {"managers/ledger.py"}
    assert chosen(FAULTS, []) == FAULTS


def test_the_table_says_of_each_fault_whether_it_was_found(tmp_path: Path) -> None:
    fault = planted(tmp_path, "a + b")
    rows = table(
        [
            Outcome(fault=fault, said="found", seconds=3.4),
            Outcome(fault=fault, said="NOT FOUND", seconds=26.0),
        ]
    ).splitlines()
    assert rows[2:] == [
        "| base | wrong sign | found | 3 |",
        "| base | wrong sign | NOT FOUND | 26 |",
        "",
        "1 of 2 faults found in 0.5 minutes",
    ]


def test_an_unknown_wing_is_refused_by_name(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["nothing-like-it"]) == 2
    assert "nothing-like-it" in capsys.readouterr().err
