"""How many workers the load asks for."""

from __future__ import annotations

import pytest

from envsdk.managers.worker_pool import WorkerDemand, WorkerDemandConfig, WorkerLoad


def demand(max_node_cpu: float = 0.9) -> WorkerDemand:
    config = WorkerDemandConfig(slots_per_worker=10, max_node_cpu=max_node_cpu, grow_s=10, idle_s=60)
    return WorkerDemand(config)


def load(
    *,
    workers: int = 2,
    waiting: int = 0,
    playing: int = 0,
    is_awaited: bool = True,
    may_run_ahead: bool = False,
    engines_are_full: bool = False,
    worker_cpu: float = 0.0,
    node_cpu: float = 0.0,
) -> WorkerLoad:
    return WorkerLoad(
        num_workers=workers,
        num_waiting=waiting,
        num_playing=playing,
        is_awaited=is_awaited,
        may_run_ahead=may_run_ahead,
        engines_are_full=engines_are_full,
        worker_cpu=worker_cpu,
        node_cpu=node_cpu,
    )


CROWDED = load(waiting=5, playing=20)


def after(looks: WorkerDemand, each: WorkerLoad, seconds: int) -> WorkerDemand:
    for _ in range(seconds):
        looks.look(each, 1.0)
    return looks


def test_episodes_that_wait_for_a_slot_ask_for_more_after_a_while() -> None:
    assert after(demand(), CROWDED, 9).num_more == 0
    assert after(demand(), CROWDED, 10).num_more == 1


def test_as_many_are_asked_for_as_the_queue_fills_but_not_more_than_there_are() -> None:
    assert after(demand(), load(workers=8, waiting=31, playing=80), 10).num_more == 4
    assert after(demand(), load(workers=3, waiting=310, playing=30), 10).num_more == 3


def test_a_trainer_that_hardly_waits_asks_for_nothing() -> None:
    seldom, often = demand(), demand()
    for _ in range(40):
        after(seldom, load(waiting=5, playing=20, is_awaited=False), 6)
        after(seldom, CROWDED, 1)
        after(often, load(waiting=5, playing=20, is_awaited=False), 2)
        after(often, CROWDED, 2)
    assert (seldom.num_more, often.num_more) == (0, 1)


def test_a_node_whose_cpu_is_in_use_gets_no_more_workers() -> None:
    busy = load(waiting=5, playing=20, node_cpu=0.95)
    assert after(demand(), busy, 100).num_more == 0
    assert after(demand(max_node_cpu=1.0), busy, 100).num_more == 1


def test_full_engines_are_helped_by_no_worker() -> None:
    assert after(demand(), load(waiting=5, playing=20, engines_are_full=True), 100).num_more == 0


def test_full_event_loops_ask_for_one_more_although_no_episode_waits() -> None:
    assert after(demand(), load(playing=20, worker_cpu=1.9), 10).num_more == 1
    assert after(demand(), load(playing=20, worker_cpu=1.5), 100).num_more == 0


def test_slots_and_cpu_to_spare_for_long_enough_ask_for_one_fewer() -> None:
    spare = load(workers=3, playing=16, worker_cpu=1.0)
    assert not after(demand(), spare, 59).wants_fewer
    assert after(demand(), spare, 60).wants_fewer
    assert not after(demand(), load(workers=3, playing=17), 600).wants_fewer
    assert not after(demand(), load(workers=3, playing=16, worker_cpu=1.1), 600).wants_fewer
    assert not after(demand(), load(workers=3, waiting=1), 600).wants_fewer


def test_one_full_moment_while_the_trainer_waits_starts_the_wait_for_fewer_anew() -> None:
    looks = after(demand(), load(playing=5), 59)
    after(looks, load(playing=15), 1)
    assert not after(looks, load(playing=5), 59).wants_fewer


def test_while_a_synchronous_trainer_learns_no_worker_is_too_many() -> None:
    assert not after(demand(), load(is_awaited=False), 600).wants_fewer


@pytest.mark.parametrize(("full_s", "wants_fewer"), [(1, True), (3, False)])
def test_short_full_moments_in_which_nobody_waits_do_not_keep_a_worker(
    full_s: int, wants_fewer: bool
) -> None:
    looks = demand()
    for _ in range(30):
        after(looks, load(playing=20, is_awaited=False, may_run_ahead=True), full_s)
        after(looks, load(is_awaited=False, may_run_ahead=True), 9)
    assert looks.wants_fewer is wants_fewer
