"""The tokens that could be drawn keep their places, whatever is cut, joined, copied, stored or read."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from envsdk.contracts.support import Support
from envsdk.contracts.trajectory import TokenLog, VersionSpan

SETS = st.lists(st.lists(st.integers(0, 9), max_size=4, unique=True).map(sorted), max_size=8)


def sets_of(support: Support | None, length: int) -> list[list[int]]:
    if support is None:
        return [[] for _ in range(length)]
    assert len(support) == length
    ends = np.cumsum(support.counts)
    return [support.ids[end - count : end].tolist() for end, count in zip(ends, support.counts, strict=True)]


@given(SETS, st.data())
def test_what_is_taken_are_the_sets_of_its_places(sets: list[list[int]], data: st.DataObject) -> None:
    support = Support.of(sets)
    assert sets_of(support, len(sets)) == sets
    places = data.draw(st.lists(st.integers(0, len(sets) - 1), max_size=9)) if sets else []
    taken = support.take(np.array(places, np.int64))
    assert sets_of(taken, len(places)) == [sets[place] for place in places]
    first, last = sorted(data.draw(st.tuples(st.integers(0, 8), st.integers(0, 8))))
    cut = slice(first, last)
    assert sets_of(support.take(cut), len(sets[cut])) == sets[cut]


@given(st.lists(SETS | st.integers(0, 3), max_size=5))
def test_parts_are_joined_in_their_order(parts: list[list[list[int]] | int]) -> None:
    """A number is a part without sets, of so many tokens."""
    supports = [None if isinstance(part, int) else Support.of(part) for part in parts]
    lengths = [part if isinstance(part, int) else len(part) for part in parts]
    joined = Support.joined(supports, lengths)
    expected = [[[]] * part if isinstance(part, int) else part for part in parts]
    assert sets_of(joined, sum(lengths)) == [each for part in expected for each in part]
    assert (joined is None) == all(support is None for support in supports)


def test_a_log_has_the_sets_at_the_places_of_its_replies_and_a_copy_of_its_end_too() -> None:
    log, spans = TokenLog(), [VersionSpan(version=0, start=0, end=2)]
    log.append_prompt([7])
    log.append_sampled([1, 2], [-0.5, -0.1], spans)
    assert log.arrays().support is None
    log.append_prompt([7, 7])
    log.append_sampled([3, 4], [-0.5, -0.1], spans, support=Support.of([[3, 5], [4]]))
    log.append_prompt([7])
    assert sets_of(log.arrays().support, 8) == [[], [], [], [], [], [3, 5], [4], []]
    copy = TokenLog()
    copy.append_prompt([9])
    copy.extend(log, 3)
    assert sets_of(copy.arrays().support, 6) == [[], [], [], [3, 5], [4], []]
    with pytest.raises(ValueError, match="lacks a token that was drawn"):
        log.append_sampled([3, 4], [-0.5, -0.1], spans, support=Support.of([[3, 5], [6]]))
    with pytest.raises(ValueError, match="lacks a token that was drawn"):
        log.append_sampled([3, 4], [-0.5, -0.1], spans, support=Support.of([[3, 5]]))
