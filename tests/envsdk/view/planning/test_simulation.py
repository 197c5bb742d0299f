"""The simulation keeps the books, and agrees with arithmetic where arithmetic knows the answer."""

from __future__ import annotations

import math
from dataclasses import replace
from statistics import fmean

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from envsdk.managers.ledger_types import Lease, LedgerConfig
from envsdk.view.planning.engines import Engine, Reply, speeds
from envsdk.view.planning.simulation import EpisodeDraw, Prediction, RunStalls, Simulated, TurnDraw, simulate
from envsdk.view.planning.workload import EngineTime, StatedEpisodes, Timings


def constant(reply_s: float = 1.0, env_s: float = 0.0, num_turns: int = 1) -> EpisodeDraw:
    return EpisodeDraw(turns=[TurnDraw(reply_s, env_s)] * num_turns, num_tokens=10)


def simulated(
    *, alpha: float = 0.0, batch_size: int = 8, group_size: int = 4, **changes: object
) -> Simulated:
    ledger = LedgerConfig(
        batch_size=batch_size,
        group_size=group_size,
        alpha=alpha,
        tag_weights={"a": 1},
        episode_deadline_s=1e6,
        max_fruitless_batches=100,
    )
    plain = Simulated(
        ledger=ledger,
        num_slots=round(batch_size * (1 + alpha)),
        num_engines=1,
        draw=lambda lease: constant(),
        train_s=lambda num_tokens: 2.0,
    )
    return replace(plain, **changes)  # type: ignore[arg-type]


def test_a_synchronous_step_takes_the_longest_episode_and_the_training() -> None:
    found = simulate(simulated(draw=lambda lease: constant(1.0 + lease.member, 0.5, 2)), num_steps=3)
    assert found.step_s == pytest.approx(2 * (4.0 + 0.5) + 2.0)
    assert found.trainer_idle == pytest.approx(9 / 11)
    assert (found.staleness_max, found.waste, found.tokens_per_step) == (0, 0.0, 80)


def test_a_reset_takes_its_time_before_the_first_reply() -> None:
    slow = simulate(simulated(draw=lambda lease: replace(constant(), reset_s=3.0)), num_steps=2)
    assert slow.step_s == pytest.approx(3.0 + 1.0 + 2.0)


@pytest.mark.parametrize(("reply_s", "step_s"), [(1.0, 2.0), (5.0, 5.0)])
def test_an_asynchronous_step_takes_the_longer_of_playing_and_training(reply_s: float, step_s: float) -> None:
    found = simulate(
        simulated(alpha=1, num_slots=8, draw=lambda lease: constant(reply_s)), num_steps=4, warmup=6
    )
    assert found.step_s == pytest.approx(step_s)
    assert found.staleness_max <= 1


def test_replies_beyond_the_places_of_an_engine_wait_for_one() -> None:
    found = simulate(simulated(max_running=2), num_steps=2)
    assert found.step_s == pytest.approx(8 / 2 + 2.0)
    assert found.places_used == pytest.approx(4 / 6)


def test_replies_slow_each_other_down() -> None:
    found = simulate(simulated(slowdown={1: 1.0, 9: 5.0}), num_steps=2)
    assert found.step_s == pytest.approx(4.5 + 2.0)


@pytest.mark.parametrize(("mode", "step_s"), [("continue", 2.5), ("restart", 3.0)])
def test_a_weight_update_interrupts_a_reply_or_begins_it_again(mode: str, step_s: float) -> None:
    """A pause of 0.5 s in each step of 2.5 s; replies of 1 s are never the bottleneck."""
    run = simulated(
        alpha=1,
        update_s=0.5,
        pause_s=0.5,
        weight_update=mode,
        max_running=8,
        num_slots=8,
        draw=lambda lease: constant(2.5),
    )
    found = simulate(run, num_steps=6, warmup=6)
    assert found.step_s >= step_s - 1e-9
    assert found.trainer_idle >= 0.2 - 1e-9


def test_a_group_filter_costs_another_group() -> None:
    plain = simulate(simulated(num_slots=8), num_steps=4)
    filtered = simulate(simulated(num_slots=8, is_rejected=lambda index: index % 2 == 0), num_steps=4)
    assert filtered.step_s > plain.step_s
    assert filtered.waste == pytest.approx(0.5, abs=0.1)


def test_a_run_that_cannot_deliver_says_why() -> None:
    failing = replace(constant(), is_failed=True)
    with pytest.raises(RunStalls, match="no batch could be delivered"):
        simulate(simulated(draw=lambda lease: failing), num_steps=1)


def test_a_run_that_takes_no_time_has_no_throughput() -> None:
    run = simulated(draw=lambda lease: constant(0.0), train_s=lambda num_tokens: 0.0)
    with pytest.raises(RunStalls, match="no time at all"):
        simulate(run, num_steps=1)


def stated(sigma: float, seed: int, num_turns: int = 2) -> Simulated:
    episodes = StatedEpisodes.model_validate(
        {
            "num_turns": num_turns,
            "reply_tokens": {"kind": "lognormal", "mean": 100, "sigma": sigma},
            "env_s": 0.3,
        }
    )
    timings = Timings(engine=EngineTime(token_s=0.01))

    def draw(lease: Lease) -> EpisodeDraw:
        return episodes.draw(lease, timings, seed)

    return simulated(batch_size=16, num_slots=32, alpha=1, draw=draw, slowdown={1: 1, 16: 2}, max_running=8)


@settings(max_examples=25, deadline=None)
@given(
    alpha=st.sampled_from([0.0, 0.5, 1.0, 2.0]),
    num_engines=st.integers(1, 4),
    sigma=st.floats(0, 1.2),
    redundancy=st.integers(0, 2),
    mode=st.sampled_from(["continue", "restart", "finish"]),
    update_s=st.floats(0, 1),
    seed=st.integers(0, 1000),
)
def test_the_books_balance(
    alpha: float, num_engines: int, sigma: float, redundancy: int, mode: str, update_s: float, seed: int
) -> None:
    run = stated(sigma, seed)
    run = replace(
        run,
        num_engines=num_engines,
        ledger=replace(run.ledger, alpha=alpha, num_groups_redundancy=redundancy, max_group_attempts=100),
        update_s=update_s,
        pause_s=update_s / 2,
        weight_update=mode,  # type: ignore[arg-type]
    )
    found = simulate(run, num_steps=4)
    for share in (found.trainer_idle, found.engine_idle, found.places_used, found.slot_idle, found.waste):
        assert 0.0 <= share <= 1.0
    assert found.staleness_max <= math.ceil(alpha)
    assert found.step_s >= 2.0 + update_s - 1e-9, "the trainer trains and updates one step at a time"
    assert found.places_used <= 1 - found.engine_idle + 1e-9


@settings(max_examples=15, deadline=None)
@given(sigma=st.floats(0, 1.0), alpha=st.sampled_from([0.0, 1.0]), seed=st.integers(0, 1000))
def test_more_engines_are_not_slower(sigma: float, alpha: float, seed: int) -> None:
    run = stated(sigma, seed)
    run = replace(run, ledger=replace(run.ledger, alpha=alpha))
    one, four = (simulate(replace(run, num_engines=n), num_steps=6).step_s for n in (1, 4))
    assert four <= one * 1.02


def test_the_aggregate_of_the_routers_is_near_the_exact_one() -> None:
    """On average: each run is one of many, as the engine of one session changes what all others meet."""
    runs = [replace(stated(0.8, seed, num_turns=4), num_engines=4) for seed in range(4)]
    exact, aggregate = (
        [simulate(replace(run, routing=routing), num_steps=10) for run in runs]
        for routing in ("router", "least_loaded")
    )
    assert all(each.is_exact for each in exact)
    assert not any(each.is_exact for each in aggregate)
    assert fmean(each.step_s for each in aggregate) == pytest.approx(
        fmean(each.step_s for each in exact), rel=0.05
    )


def test_the_same_simulation_twice_is_the_same() -> None:
    results: list[Prediction] = [simulate(stated(0.5, 7), num_steps=3) for _ in range(2)]
    assert results[0] == results[1]


@given(st.lists(st.tuples(st.floats(0.1, 10), st.floats(0, 3)), min_size=1, max_size=12), st.integers(1, 4))
def test_an_engine_serves_all_work_and_none_twice(replies: list[tuple[float, float]], places: int) -> None:
    """Without slowdown, busy places sum up to the work, whatever arrives when."""
    engine = Engine(speeds=speeds({}, places))
    now, ended = 0.0, 0
    for work, gap in replies:
        until = now + gap
        while (end := engine.next_end()) is not None and end <= until:
            engine.advance(end)
            ended += len(engine.take_ended())
        now = until
        engine.advance(now)
        engine.submit(Reply(owner=None, session="", group=None, work=work, num_tokens=1, worker=0))
    while (end := engine.next_end()) is not None:
        engine.advance(end)
        ended += len(engine.take_ended())
    assert ended == len(replies)
    assert engine.served_s == pytest.approx(sum(work for work, _ in replies))
    assert engine.num_running == engine.num_queued == 0


def test_many_small_workers_use_all_engines() -> None:
    """Each worker's router knows only its own requests."""
    run = replace(stated(0.5, 0, num_turns=4), num_engines=8, slowdown={1: 1.0, 8: 8.0}, routing="router")
    large, small = (simulate(replace(run, slots_per_worker=size), num_steps=4).step_s for size in (32, 2))
    assert small <= 1.2 * large
