"""Explorers without the newest weights are named, once and not too early."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from envsdk.explorers.weight_lag import WeightLag

NAMES = ["a", "b", "c"]


def test_an_explorer_is_named_with_the_seconds_since_the_first_version_that_it_lacks() -> None:
    lag = WeightLag(10)
    lag.published(1, now=100.0)
    lag.published(2, now=105.0)
    assert lag.slow({"a": 2, "b": 0}, now=109.0) == []
    (line,) = lag.slow({"a": 2, "b": 0}, now=111.0)
    assert line.startswith("explorer 'b' plays with version 0 and has not got version 1 for 11 s")
    assert lag.slow({"a": 2, "b": 0}, now=112.0) == []
    lag.published(3, now=120.0)
    assert [line[:12] for line in lag.slow({"a": 2, "b": 0}, now=121.0)] == ["explorer 'b'"]
    assert lag.slow({"a": 3, "b": 3}, now=500.0) == []


@given(st.lists(st.tuples(st.sampled_from([*NAMES, "publish"]), st.integers(0, 9)), max_size=40))
def test_nobody_is_named_who_has_the_newest_or_still_has_time_and_nobody_twice(events) -> None:
    lag, now, newest = WeightLag(10), 0.0, -1
    published: dict[int, float] = {}
    held = dict.fromkeys(NAMES, -1)
    named: set[tuple[str, int]] = set()
    for what, seconds in events:
        now += seconds
        if what == "publish":
            newest += 1
            published[newest] = now
            lag.published(newest, now=now)
        else:
            held[what] = newest
        late = {
            name
            for name, version in held.items()
            if version < newest and now - published[version + 1] > 10 and (name, newest) not in named
        }
        lines = lag.slow(held, now=now)
        assert {line.split("'")[1] for line in lines} == late
        named |= {(name, newest) for name in late}
