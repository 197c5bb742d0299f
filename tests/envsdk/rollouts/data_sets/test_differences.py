"""The first difference between an episode and its replay."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envsdk.contracts.failures import Boundary, Failure
from envsdk.contracts.trajectory import Outcome, Trajectory
from envsdk.rollouts.datasets.differences import SCORES, first_difference
from tests.envsdk.rollouts.data_sets.episodes import episode, episodes


def changed(trajectory: Trajectory, turn: int, **fields: Any) -> Trajectory:
    turns = list(trajectory.turns)
    turns[turn] = dataclasses.replace(turns[turn], **fields)
    return dataclasses.replace(trajectory, turns=tuple(turns))


@given(episodes)
def test_an_episode_is_like_itself_whatever_the_clock_says(played: Trajectory) -> None:
    later = dataclasses.replace(played, started_at=5.0, ended_at=7.0, env_s=1.0, worker="other")
    assert first_difference(played, later) is None


CHANGES = {
    "observation": "something else",
    "reward": 7.5,
    "metrics": {"valid": 1.0},
}


@given(st.data())
def test_the_first_of_several_differences_is_reported(data: st.DataObject) -> None:
    recorded = episode("a", "b", "c", "d", index=3)
    replayed = recorded
    changes = data.draw(
        st.lists(st.tuples(st.integers(0, 3), st.sampled_from(list(CHANGES))), min_size=1, unique=True)
    )
    for turn, field in changes:
        replayed = changed(replayed, turn, **{field: CHANGES[field]})
    found = first_difference(recorded, replayed)
    assert found is not None
    assert (found.turn, found.field) == min(changes, key=lambda at: (at[0], list(CHANGES).index(at[1])))
    assert (found.index, found.seed, found.trajectory_id) == (3, 3, "train-3")
    assert f"turn {found.turn}: {found.field}" in str(found)


@pytest.mark.parametrize(
    ("replayed", "field", "turn", "got"),
    [
        (episode("a", outcome=Outcome.TRUNCATED), "outcome", 0, "truncated"),
        (dataclasses.replace(episode("a"), final_observation="x"), "final_observation", None, "x"),
        (dataclasses.replace(episode("a"), success=False), "success", None, False),
    ],
)
def test_the_end_is_compared(replayed: Trajectory, field: str, turn: int | None, got: object) -> None:
    found = first_difference(episode("a"), replayed)
    assert found is not None
    assert (found.field, found.turn, found.got) == (field, turn, got)


def test_an_end_that_comes_too_early_is_told() -> None:
    found = first_difference(episode("a", "b", rewards=[0, 1]), episode("a", rewards=[0]))
    assert found is not None
    assert (found.field, found.turn, found.expected, found.got) == (
        "outcome", 0, "goes on to turn 1", "terminated",
    )  # fmt: skip


def test_what_the_environment_raised_is_told() -> None:
    broken = dataclasses.replace(
        episode(),
        outcome=Outcome.FAILED,
        failure=Failure(boundary=Boundary.ENVIRONMENT, kind="reset_raised", message="no such level"),
    )
    found = first_difference(episode("a"), broken)
    assert found is not None
    assert (found.turn, found.got) == (None, "environment/reset_raised: no such level")


def test_numbers_may_be_as_far_apart_as_is_said_and_nan_is_itself() -> None:
    recorded = episode("a", "b", rewards=[math.nan, 1.0])
    replayed = episode("a", "b", rewards=[math.nan, 1.0 + 1e-9])
    assert first_difference(recorded, replayed) is not None
    assert first_difference(recorded, replayed, tolerance=1e-6) is None


def test_scores_can_be_left_out() -> None:
    recorded = episode("a", "b", rewards=[0, 1])
    replayed = dataclasses.replace(episode("a", "b", rewards=[5, 5]), success=False)
    assert first_difference(recorded, replayed, ignored=SCORES) is None


def test_a_hash_counts_where_both_have_one() -> None:
    recorded = changed(episode("a"), 0, state_hash="1")
    assert first_difference(recorded, episode("a")) is None
    found = first_difference(recorded, changed(episode("a"), 0, state_hash="2"))
    assert found is not None
    assert found.field == "state_hash"
