"""Counting how episodes went."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envsdk.base.store.tally import MAX_NAMED, Tally, wilson_interval
from envsdk.contracts.failures import Boundary, Failure
from envsdk.contracts.trajectory import Outcome, Task, Trajectory, Turn
from tests.trajectories import trajectory_with


def an_episode(
    *,
    success: bool = False,
    failure: str | None = None,
    num_turns: int = 2,
    name: str = "",
    why: str = "boom",
) -> Trajectory:
    return trajectory_with(
        trajectory_id="x",
        task=Task(tag="Lake", split="val", index=0),
        outcome=Outcome.FAILED if failure else Outcome.TERMINATED,
        success=success and failure is None,
        turns=[
            Turn(observation="", reply="", reward=0.25, response_start=0, response_end=0)
            for _ in range(num_turns)
        ],
        failure=Failure(boundary=Boundary.ENVIRONMENT, kind=failure, message=why) if failure else None,
        ended_at=0.0,
        task_name=name,
    )


episodes = st.lists(
    st.builds(
        an_episode,
        success=st.booleans(),
        failure=st.none() | st.sampled_from(["step_raised", "reset_timeout"]),
        num_turns=st.integers(0, 4),
    )
)


# From Newcombe (1998), table I, method 3, and by hand for the ends.
@pytest.mark.parametrize(
    ("num_successes", "num_trials", "low", "high"),
    [(81, 263, 0.2553, 0.3662), (15, 148, 0.0624, 0.1605), (0, 20, 0.0, 0.1611), (1, 29, 0.0061, 0.1718)],
)
def test_wilson_intervals_are_those_of_the_literature(
    num_successes: int, num_trials: int, low: float, high: float
) -> None:
    assert wilson_interval(num_successes, num_trials) == pytest.approx((low, high), abs=5e-5)


@given(st.integers(1, 10_000).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))))
def test_a_wilson_interval_holds_the_rate_and_stays_within_zero_and_one(counts: tuple[int, int]) -> None:
    num_successes, num_trials = counts
    low, high = wilson_interval(num_successes, num_trials)
    assert 0 <= low <= num_successes / num_trials <= high <= 1
    assert low < high


def test_without_a_trial_nothing_is_known() -> None:
    assert wilson_interval(0, 0) == (0.0, 1.0)


def test_failed_episodes_are_counted_but_never_scored() -> None:
    tally = Tally.of([an_episode(success=True), an_episode(), an_episode(failure="step_raised", num_turns=9)])
    assert (tally.num_episodes, tally.num_failed, tally.num_scored) == (3, 1, 2)
    assert tally.success_rate == 0.5
    assert tally.mean_reward == 0.5
    assert tally.mean_turns == 2
    assert tally.failures == {"environment/step_raised": 1}
    assert "environment/step_raised (boom)" in tally.describe_failures()


def test_each_task_that_failed_is_named_with_why() -> None:
    told = [("a", "no image"), ("b", "no image"), ("c", "no test"), ("c", "something else")]
    tally = Tally.of([an_episode(failure="reset_raised", name=name, why=why) for name, why in told])
    tally.add(an_episode(failure="step_timeout"))
    assert list(tally.failed_tasks()) == [
        "failed: 4 x environment/reset_raised",
        "  a, b: no image",
        "  c: no test",
        "failed: 1 x environment/step_timeout",
        "  Lake val 0 (seed 0): boom",
    ]
    assert Tally.from_json(tally.to_json()).messages == tally.messages


def test_a_tally_of_many_failures_stays_small() -> None:
    many = [an_episode(failure="raised", name=f"{n}", why=f"{n}") for n in range(MAX_NAMED + 5)]
    tally = Tally.of(many)
    assert (tally.failures["environment/raised"], len(tally.messages["environment/raised"])) == (505, 500)
    assert list(tally.failed_tasks())[-1].startswith("  further tasks are not named")


def test_counts_of_an_older_manifest_are_read() -> None:
    written = Tally.of([an_episode(failure="raised")]).to_json()
    written["failures"] = {"environment/raised": {"count": 1, "example": "boom"}}
    assert Tally.from_json(written).describe_failures() == "1 x environment/raised (boom)"


def test_rates_of_nothing_are_unknown_rather_than_zero() -> None:
    tally = Tally.of([an_episode(failure="step_raised")])
    assert tally.success_rate is tally.mean_reward is tally.mean_turns is None


@given(episodes)
def test_a_tally_survives_json(trajectories: list[Trajectory]) -> None:
    tally = Tally.of(trajectories)
    assert Tally.from_json(json.loads(json.dumps(tally.to_json()))) == tally


@given(episodes, episodes)
def test_merging_tallies_counts_all_their_episodes(one: list[Trajectory], other: list[Trajectory]) -> None:
    merged = Tally.sum([Tally.of(one), Tally.of(other)])
    assert merged == Tally.of([*one, *other])
