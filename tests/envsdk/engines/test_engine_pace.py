"""Slow engines are found, and load of any kind makes none of a healthy one."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from envsdk.engines.engine import EngineHealth
from envsdk.engines.engine_pace import Pace, Rates, slow_engines

IDLE = EngineHealth(version=0, num_running=0, num_queued=0, num_tokens_sampled=0)


def rates(batch: int, prompt_share: float, *, fixed_s: float = 0.01, prompt_cost: float = 0.2) -> Rates:
    """A step takes `fixed_s` and 1 ms for each request; a prompt's token costs less than a reply's."""
    steps_per_s = 1 / (fixed_s + 0.001 * batch * (1 + prompt_cost * prompt_share))
    sampled = steps_per_s * batch
    return Rates(
        sampled=sampled,
        computed=sampled * (1 + prompt_share),
        sampled_per_request=steps_per_s,
        computed_per_request=steps_per_s * (1 + prompt_share),
    )


def slower(rates: Rates, times: float) -> Rates:
    return Rates(
        sampled=rates.sampled / times,
        computed=rates.computed / times,
        sampled_per_request=rates.sampled_per_request / times,
        computed_per_request=rates.computed_per_request / times,
    )


LOADS = st.lists(st.tuples(st.integers(1, 512), st.floats(0, 100)), min_size=1, max_size=8)


@given(loads=LOADS, fixed_s=st.floats(0, 1), prompt_cost=st.floats(0, 1))
def test_no_load_makes_a_healthy_engine_slow(
    loads: list[tuple[int, float]], fixed_s: float, prompt_cost: float
) -> None:
    found = {
        str(number): rates(batch, share, fixed_s=fixed_s, prompt_cost=prompt_cost)
        for number, (batch, share) in enumerate(loads)
    }
    assert slow_engines(found, 1.001) == set()


@given(load=st.tuples(st.integers(1, 512), st.floats(0, 100)), num_others=st.integers(1, 7))
def test_an_engine_slower_than_the_others_under_the_same_load_is_found(
    load: tuple[int, float], num_others: int
) -> None:
    usual = rates(*load)
    found: dict[str, Rates | None] = {str(number): usual for number in range(num_others)}
    assert slow_engines(found | {"slow": slower(usual, 9.9)}, 10) == set()
    assert slow_engines(found | {"slow": slower(usual, 10.1)}, 10) == {"slow"}
    assert slow_engines(found | {"slow": slower(usual, 10.1)}, 0) == set()


def test_one_fast_engine_does_not_make_the_others_slow() -> None:
    usual = rates(8, 1)
    assert slow_engines({"fast": usual, "two": slower(usual, 20), "three": slower(usual, 20)}, 10) == set()


def test_an_engine_alone_or_among_idle_ones_is_not_slow() -> None:
    assert slow_engines({"one": rates(8, 1)}, 10) == set()
    assert slow_engines({"one": slower(rates(8, 1), 100), "two": None}, 10) == set()
    assert slow_engines({}, 10) == set()


def test_the_rates_are_those_of_the_time_with_requests() -> None:
    pace = Pace()
    busy = replace(IDLE, num_running=4, num_prefilled_tokens=100)
    pace.look(busy, 1.0)
    for second in range(1, 6):
        pace.look(replace(busy, num_tokens_sampled=20 * second, num_prefilled_tokens=100 + 10 * second), 1.0)
    found = pace.end_stretch()
    assert found == Rates(sampled=20, computed=30, sampled_per_request=5, computed_per_request=7.5)
    assert pace.end_stretch() is None


def test_an_engine_idle_most_of_the_stretch_is_not_judged() -> None:
    pace = Pace()
    pace.look(IDLE, 1.0)
    for _ in range(5):
        pace.look(IDLE, 1.0)
    pace.look(replace(IDLE, num_running=1), 1.0)
    pace.look(replace(IDLE, num_running=1, num_tokens_sampled=9), 1.0)
    assert pace.end_stretch() is None


def test_it_stands_still_while_it_has_requests_and_computes_nothing() -> None:
    pace = Pace()
    stuck = replace(IDLE, num_running=1, num_queued=2)
    for _ in range(6):
        pace.look(stuck, 1.0)
    assert pace.stalled_s == 5
    pace.look(replace(stuck, num_prefilled_tokens=1), 1.0)
    assert pace.stalled_s == 0
    pace.look(replace(stuck, num_prefilled_tokens=1), 1.0)
    pace.look(replace(stuck, num_prefilled_tokens=1, version=1), 1.0)
    assert pace.stalled_s == 0


def test_without_requests_or_while_paused_nothing_stands_still() -> None:
    pace = Pace()
    for _ in range(9):
        pace.look(IDLE, 1.0)
    assert pace.stalled_s == 0
    waiting = replace(IDLE, num_queued=1)
    for _ in range(9):
        pace.look(waiting, 1.0)
        pace.skip()
    assert pace.stalled_s == 0
    assert pace.end_stretch() is None
