"""The plan of a soak: the same seed gives the same faults, and every kind comes up."""

from __future__ import annotations

from itertools import islice

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.soak_parts.patience import MOST_SLOWED, Patience
from benchmarks.soak_parts.plan import LASTING, WEIGHTS, Kind, faults


@given(seed=st.integers(0, 2**32), count=st.integers(1, 50), longest=st.floats(1, 60))
def test_the_same_seed_gives_the_same_faults(seed: int, count: int, longest: float) -> None:
    first = list(islice(faults(seed, longest_stop_s=longest), count))
    assert first == list(islice(faults(seed, longest_stop_s=longest), count))
    assert [fault.number for fault in first] == list(range(count))
    for fault in first:
        assert 0 <= fault.choice < 1
        if fault.kind in LASTING:
            assert 1 <= fault.lasts_s <= (longest if fault.kind is Kind.STOP else 4)


def test_a_thousand_faults_hold_every_kind() -> None:
    drawn = {(fault.kind, fault.target) for fault in islice(faults(1, longest_stop_s=12), 1000)}
    assert drawn == {(kind, target) for kind, target, _ in WEIGHTS}


@given(crowding=st.floats(0, 100))
def test_a_busy_machine_is_given_more_time_and_not_for_ever(crowding: float) -> None:
    now = 0.0
    patience = Patience(10.0, clock=lambda: now, crowding=lambda: crowding)
    while not patience.is_over():
        now += 0.5
    assert now == pytest.approx(10.0 * min(MOST_SLOWED, max(1.0, crowding)), abs=1.0)
