"""Which of the groups that wait a batch takes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envsdk.buffer.selection import Selection, WaitingGroup, choose, shares_of


def waiting(group_id: int, version: int, *, uses: int = 0, tag: str = "a") -> WaitingGroup:
    return WaitingGroup(
        group_id=group_id,
        tag=tag,
        explorer="east",
        oldest_version=version,
        leased_at=0.0,
        ready_at=float(group_id),
        uses=uses,
    )


READY = [waiting(1, 5), waiting(2, 4), waiting(3, 6, uses=1), waiting(4, 6)]


@pytest.mark.parametrize(
    ("order", "chosen"), [("oldest", [1, 2]), ("freshest", [3, 4]), ("priority", [1, 4])]
)
def test_the_order_decides_who_is_taken(order: str, chosen: list[int]) -> None:
    assert choose(READY, 2, Selection(order=order)) == chosen


def test_groups_that_are_due_go_before_the_order() -> None:
    assert choose(READY, 2, Selection(order="freshest"), first={2}) == [2, 4]


def test_too_few_groups_are_no_batch() -> None:
    assert choose(READY, 5, Selection()) is None
    assert choose(READY, 2, Selection(mixture={"a": 1, "b": 1})) is None


def test_a_mixture_takes_its_share_of_each_tag() -> None:
    ready = [*READY, waiting(5, 9, tag="b"), waiting(6, 9, tag="b")]
    assert choose(ready, 3, Selection(mixture={"a": 2, "b": 1})) == [1, 2, 5]


@given(st.integers(0, 50), st.dictionaries(st.sampled_from("abcd"), st.integers(1, 9), min_size=1))
def test_shares_add_up_and_are_within_one_of_their_proportion(count: int, mixture: dict[str, int]) -> None:
    shares = shares_of(count, mixture)
    assert sum(shares.values()) == count
    for name, weight in mixture.items():
        assert abs(shares[name] - count * weight / sum(mixture.values())) < 1
