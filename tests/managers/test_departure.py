"""Episodes on a node that goes away: which may end there, and which are handed over."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envsdk.managers.worker_pool import Departures, EpisodeTimes, PlayedEpisode

SECONDS = st.floats(0.1, 100.0)
ENDS = [(0, 9, False), (0, 10, True), (5, 5, True), (11, 18, False), (11, 19, True), (31, 1, True)]


def times(*seconds: float) -> EpisodeTimes:
    known = EpisodeTimes()
    for each in seconds:
        known.add("a", each)
    return known


def handed_over(departures: Departures, known: EpisodeTimes, *, began: float, now: float) -> bool:
    episode = PlayedEpisode("slot", "a", began)
    return departures.cannot_end("worker", [episode], known, now) == ["slot"]


@pytest.mark.parametrize(("age_s", "left_s", "may_end"), ENDS)
def test_an_episode_may_end_in_the_time_that_the_shortest_of_the_longer_ones_took(
    age_s: float, left_s: float, may_end: bool
) -> None:
    assert times(10, 30).may_end("a", age_s=age_s, left_s=left_s) is may_end
    assert times(10, 30).may_end("b", age_s=age_s, left_s=left_s) is (left_s > 0)


def test_what_cannot_end_is_handed_over_at_once_and_the_rest_before_the_node_goes() -> None:
    departures = Departures()
    departures.leave("worker", now=100.0, grace_s=20.0)
    assert handed_over(departures, times(30), began=99.0, now=100.0)
    assert not handed_over(departures, times(12), began=99.0, now=100.0)
    assert not handed_over(departures, times(12), began=99.0, now=115.9)
    assert handed_over(departures, times(12), began=99.0, now=116.0), "4 of the 20 seconds are kept"


def test_a_second_notice_counts_when_it_is_shorter() -> None:
    departures = Departures()
    departures.leave("worker", now=0.0, grace_s=100.0)
    departures.leave("worker", now=0.0, grace_s=10.0)
    departures.leave("worker", now=0.0, grace_s=50.0)
    assert not handed_over(departures, times(), began=0.0, now=7.9)
    assert handed_over(departures, times(), began=0.0, now=8.0)
    departures.forget("worker")
    assert departures.names == []


@given(
    st.lists(st.floats(0.1, 100.0), max_size=20),
    st.floats(0.1, 100.0),
    st.floats(1.0, 60.0),
    st.floats(0.0, 50.0),
)
def test_no_episode_is_handed_over_that_would_end_as_another_did(
    others: list[float], lasts_s: float, grace_s: float, age_s: float
) -> None:
    """The episode lasts as long as one of the known ones did, and that fits into the grace."""
    departures = Departures()
    departures.leave("worker", now=0.0, grace_s=grace_s)
    ends = lasts_s - age_s
    if not 0 < ends <= grace_s - min(5.0, 0.2 * grace_s) - 1e-6:
        return
    known = times(*others, lasts_s)
    for now in (0.0, ends / 2, ends * 0.999):
        assert not handed_over(departures, known, began=-age_s, now=now)
