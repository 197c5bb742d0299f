"""Timings are found again in episodes that were made by them."""

from __future__ import annotations

import numpy as np
import pytest

from envsdk.contracts.failures import ConfigurationError
from envsdk.contracts.trajectory import Task, TokenLog, Trajectory, Turn, VersionSpan
from envsdk.managers.ledger_types import Lease
from envsdk.view.planning.measured import Measured, measured
from envsdk.view.planning.workload import Timings, dropped_groups
from tests.trajectories import trajectory_with

GROUP = 4
STEP_S = 10.0


def episode(number: int, num_turns: int, num_tokens: int, start: float, generate_s: float) -> Trajectory:
    log, turns = TokenLog(), []
    for _ in range(num_turns):
        log.append_prompt([1] * 5)
        begin = len(log)
        log.append_sampled(
            [2] * num_tokens, [-1.0] * num_tokens, [VersionSpan(version=0, start=0, end=num_tokens)]
        )
        turns.append(Turn(observation="", reply="", reward=0.0, response_start=begin, response_end=len(log)))
    return trajectory_with(
        trajectory_id=str(number),
        group_id=number // GROUP,
        task=Task(tag="a", split="train", index=number // GROUP),
        turns=turns,
        tokens=log.arrays(),
        started_at=start,
        ended_at=start + generate_s + 0.2 * num_turns,
        generate_s=generate_s,
        env_s=0.1 * num_turns,
    )


def run(slope: float = 0.0, *, restart_after: int | None = None, noise: float = 0.0) -> Measured:
    """Replies of 0.5 s + 0.01 s per token, slower by `slope` for each further reply at once.

    After `restart_after` steps the run was dead for 500 s. `noise` is the sigma of a lognormal factor.
    """
    rng = np.random.default_rng(0)
    batches, rows, number = [], [], 0
    for step in range(14):
        size = GROUP * (1 + step % 4)
        batch = []
        for _ in range(size):
            num_turns, num_tokens = int(rng.integers(1, 4)), int(rng.integers(20, 200))
            seconds = num_turns * (0.5 + 0.01 * num_tokens) * (1 + slope * (size - 1))
            seconds *= float(np.exp(rng.normal(0, noise))) if noise else 1.0
            batch.append(episode(number, num_turns, num_tokens, 100.0 * step, seconds))
            number += 1
        batches.append(batch)
        rows.append(
            {
                "step": float(step),
                "time_unix_s": 100.0 * step + 60.0,
                "time/step_s": 99.0,
                "time/wait_batch_s": 87.0,
                "time/train_s": 10.0,
                "time/publish_s": 2.0,
                "rollout/sequence_tokens_mean": 250.0,
                "filter/zero_variance": 1.0,
            }
        )
    if restart_after is not None:
        rows[restart_after]["time/start_s"] = 30.0
        for row in rows[restart_after:]:
            row["time_unix_s"] += 500.0
    return measured(batches, [], rows, num_engines=1, max_running=64, train_devices=2)


def test_the_engine_without_load_is_found_again() -> None:
    engine = run().workload.timings.engine
    assert engine.first_token_s == pytest.approx(0.5, rel=0.05)
    assert engine.token_s == pytest.approx(0.01, rel=0.05)


def test_the_slowdown_under_load_is_found_again() -> None:
    found = run(slope=0.05)
    assert found.workload.timings.engine.slowdown[64] == pytest.approx(1 + 0.05 * 63, rel=0.4)
    assert found.error < 0.1


def test_the_other_times_are_those_of_the_steps() -> None:
    found = run()
    timings = found.workload.timings
    assert timings.update_s == pytest.approx(2.0 + 1.0)
    assert timings.turn_overhead_s == pytest.approx(0.1)
    assert timings.train.seconds(250.0 * GROUP * 2.5, 2) == pytest.approx(10.0)
    assert timings.train.seconds(250.0 * GROUP * 2.5, 4) == pytest.approx(5.0)
    assert found.step_s == pytest.approx(100.0)
    assert dropped_groups(found.workload.episodes, 0) is not None


def test_the_time_in_which_a_run_was_dead_is_no_part_of_a_step() -> None:
    found = run(restart_after=7)
    assert found.step_s == pytest.approx(100.0)
    assert found.workload.timings.update_s == run().workload.timings.update_s


def test_reply_times_that_follow_from_nothing_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="at most 50%"):
        run(noise=2.0)


def test_groups_are_drawn_whole() -> None:
    found = run()
    drawn = [
        found.workload.episodes.draw(
            Lease(
                lease_id=member,
                group_id=0,
                member=member,
                attempt=0,
                task=Task(tag="a", split="train", index=3),
                version=0,
                deadline=0.0,
            ),
            Timings(),
            0,
        )
        for member in range(2 * GROUP)
    ]
    assert drawn[:GROUP] == drawn[GROUP:]
    assert {each.num_tokens for each in drawn} == {each.num_tokens for each in drawn[:GROUP]}


def test_a_run_without_tokens_measures_nothing() -> None:
    with pytest.raises(ConfigurationError, match="no episodes with tokens"):
        measured([[]] * 4, [], [{"time_unix_s": 0.0}] * 4, num_engines=1, max_running=1, train_devices=1)
