"""The checks of the ledger's promises are checked: each fault is found, as the promise that it breaks."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test
from ledger_faults import FAULTS, FaultyLedger
from ledger_machine import LedgerMachine
from ledger_model import PromiseBroken
from ledger_scenarios import SCENARIOS

from tests.by_day import examples


def run_all(make_ledger: Any) -> None:
    class Machine(LedgerMachine):
        make = staticmethod(make_ledger)

    for scenario in SCENARIOS:
        scenario(make_ledger)
    run_state_machine_as_test(
        Machine,
        settings=settings(
            max_examples=examples(60),
            stateful_step_count=60,
            deadline=None,
            database=None,
            derandomize=True,
            report_multiple_bugs=False,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        ),
    )


@pytest.mark.parametrize("name", FAULTS)
def test_a_broken_promise_is_found(name: str) -> None:
    promise, faulty = FAULTS[name]
    with pytest.raises(PromiseBroken) as caught:
        run_all(faulty)
    assert caught.value.number == promise, caught.value


def test_a_ledger_behind_the_same_wrapper_keeps_its_promises() -> None:
    for scenario in SCENARIOS:
        scenario(FaultyLedger)  # type: ignore[arg-type]


def test_the_documentation_counts_promises_and_faults() -> None:
    page = (Path(__file__).parents[2] / "docs" / "ledger.md").read_text()
    assert re.findall(r"^(\d)\. ", page, re.MULTILINE) == [str(n) for n in range(1, 10)]
    assert f"{len(FAULTS)} faults" in page


def test_every_promise_is_broken_at_least_once() -> None:
    assert {promise for promise, _ in FAULTS.values()} == set(range(1, 10))
