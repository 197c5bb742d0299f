"""Seeds are the same on every machine, and differ where their parts do."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envsdk.contracts.seeds import stable_seed

parts = st.lists(st.integers(-(2**40), 2**40) | st.text(max_size=4), max_size=3)


@pytest.mark.parametrize(
    ("given_parts", "seed"),
    [
        ((42, "train", "maze", 0), 565111371),
        ((0, "val", "envsdk/Sokoban-v1", 7), 1334599985),
        ((), 1918062635),
    ],
)
def test_the_tasks_of_a_seed_stay_those_that_were_recorded(
    given_parts: tuple[str | int, ...], seed: int
) -> None:
    assert stable_seed(*given_parts) == seed


@given(parts, parts)
def test_other_parts_give_another_seed_within_31_bits(one: list[str | int], other: list[str | int]) -> None:
    assert 0 <= stable_seed(*one) < 2**31
    assert (stable_seed(*one) == stable_seed(*other)) == (one == other)


@pytest.mark.parametrize(
    ("one", "other"),
    [(("a", 1), ("a1",)), (("ab", "c"), ("a", "bc")), ((1,), ("1",)), (("a", "b"), ("astr:b",))],
)
def test_parts_do_not_run_into_each_other(one: tuple[str | int, ...], other: tuple[str | int, ...]) -> None:
    assert stable_seed(*one) != stable_seed(*other)
