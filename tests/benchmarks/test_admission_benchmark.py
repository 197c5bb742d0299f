"""Hardly anything is played in vain, whatever a step takes, and tags are trained in the shares asked for."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.admission import Case, simulate
from tests.by_day import by_day

CASES = [
    Case(num_explorers=1, step_s=0.2, num_steps=20),
    Case(num_explorers=4, step_s=10.0, num_steps=20),
    Case(num_explorers=2, step_s=1.0, num_steps=20, alpha=0.5),
    Case(num_explorers=2, step_s=0.5, num_steps=20, alpha=2.0, max_staleness=1, travel_s=2.0),
]


@pytest.mark.parametrize("case", by_day([CASES[1], CASES[3]], CASES))
def test_what_is_played_is_trained_in_the_shares_asked_for(tmp_path: Path, case: Case) -> None:
    found = simulate(case, str(tmp_path / "buffer.db"))
    assert found["dropped"] <= 0.03
    assert abs(found["shares"]["slow"] - 0.5) <= 0.02 + 1 / (case.num_steps * case.groups_per_batch)
    assert found["step_s"] <= 1.5 * found["ideal_step_s"]
