"""How many engines the load asks for."""

from __future__ import annotations

from envsdk.engines.engine import EngineHealth
from envsdk.engines.engine_pace import Demand, DemandConfig


def demand() -> Demand:
    return Demand(DemandConfig(places=10, max_queued=2, grow_s=5, idle_s=20))


def engine(*, running: int = 0, queued: int = 0, kv_usage: float = 0.0) -> EngineHealth:
    return EngineHealth(
        version=0, num_running=running, num_queued=queued, num_tokens_sampled=0, kv_usage=kv_usage
    )


def test_a_queue_longer_than_allowed_for_long_enough_asks_for_one_more() -> None:
    looks = demand()
    for _ in range(4):
        looks.look([engine(running=10, queued=5), engine(running=10)], 1.0)
    assert not looks.wants_more
    looks.look([engine(running=10, queued=5), engine(running=10)], 1.0)
    assert looks.wants_more
    looks.look([engine(running=10, queued=4), engine(running=10)], 1.0)
    assert not looks.wants_more


def test_a_load_that_half_of_one_engine_fewer_takes_asks_for_one_fewer() -> None:
    looks = demand()
    for _ in range(20):
        looks.look([engine(running=4), engine(running=1), engine(running=5)], 1.0)
    assert looks.wants_fewer
    looks.look([engine(running=5), engine(running=1), engine(running=5)], 1.0)
    assert not looks.wants_fewer


def test_requests_that_wait_and_a_full_kv_cache_keep_all_engines() -> None:
    looks = demand()
    for _ in range(30):
        looks.look([engine(queued=1), engine(), engine()], 1.0)
    assert not looks.wants_fewer
    for _ in range(30):
        looks.look([engine(running=1, kv_usage=0.6), engine()], 1.0)
    assert not looks.wants_fewer


def test_one_engine_is_never_one_too_many_while_it_has_requests() -> None:
    looks = demand()
    for _ in range(30):
        looks.look([engine(running=1)], 1.0)
    assert not looks.wants_fewer


def test_what_was_seen_before_the_number_changed_counts_for_nothing() -> None:
    looks = demand()
    for _ in range(5):
        looks.look([engine(queued=9)], 1.0)
    looks.begin_again()
    assert not looks.wants_more
