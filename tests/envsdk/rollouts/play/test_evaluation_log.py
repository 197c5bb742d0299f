"""The log of an evaluation: what a killed process left of it, and what is played again."""

from __future__ import annotations

import asyncio
import itertools
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envsdk.base.store.trajectories import SCHEMA, read_trajectories, to_record_batch
from envsdk.contracts.failures import ConfigurationError
from envsdk.contracts.policy import TurnContext
from envsdk.contracts.trajectory import Trajectory
from envsdk.evaluate import evaluate
from envsdk.rollouts.play.evaluation_log import EPISODES, appended_episodes

LAKE = "envsdk/FrozenLake-v1"
PLAYED = evaluate(LAKE, policy="random", num_episodes=4).trajectories
STAMP = SCHEMA.with_metadata({"envsdk.collection": "of this one"})
PIECES = [
    STAMP.serialize().to_pybytes(),
    *(to_record_batch([each]).serialize().to_pybytes() for each in PLAYED),
]
CONTENT = b"".join(PIECES)
ENDS = [*itertools.accumulate(map(len, PIECES), initial=0)]


@given(st.integers(0, len(CONTENT)))
def test_a_file_that_was_cut_anywhere_has_the_episodes_before_the_cut(cut: int) -> None:
    episodes, end = appended_episodes(CONTENT[:cut], STAMP)
    num_pieces = max(number for number, piece_end in enumerate(ENDS) if piece_end <= cut)
    assert end == ENDS[num_pieces]
    expected = [each.trajectory_id for each in PLAYED[: max(0, num_pieces - 1)]]
    assert [each.trajectory_id for each in episodes] == expected


def test_episodes_of_another_evaluation_do_not_count() -> None:
    other = SCHEMA.with_metadata({"envsdk.collection": "of another"})
    assert appended_episodes(CONTENT, other) == ([], 0)
    assert appended_episodes(b"no Arrow at all", STAMP) == ([], 0)


def test_only_what_has_no_outcome_is_played_again(tmp_path: Path) -> None:
    """The first process ends early, in the second some episodes fail, and the third plays those."""
    began: list[str] = []
    is_moody = False

    async def wander(observation: str, context: TurnContext) -> str:
        await asyncio.sleep(0)
        if context.turn_index == 0:
            began.append(context.session_id)
        if is_moody and context.session_id.endswith("7"):
            raise RuntimeError("not now")
        return f"<answer>{('Left', 'Down', 'Right', 'Up')[context.seed % 4]}</answer>"

    class Stop(Exception):
        pass

    num_played = itertools.count(1)

    def stop(trajectory: Trajectory) -> None:
        if next(num_played) == 30:
            raise Stop

    asked = {"policy": wander, "num_episodes": 40, "samples_per_task": 2}
    with pytest.raises(Stop):
        evaluate(LAKE, out=tmp_path, on_played=stop, **asked)
    assert (tmp_path / EPISODES).exists()
    is_moody = True
    starts: list[tuple[int, int]] = []
    found = evaluate(LAKE, out=tmp_path, on_start=lambda *numbers: starts.append(numbers), **asked)
    assert 30 <= starts[0][0] < 60
    failed = [each.trajectory_id for each in found.trajectories if each.failure]
    assert failed
    assert not (tmp_path / EPISODES).exists()

    is_moody = False
    began.clear()
    found = evaluate(LAKE, out=tmp_path, **asked)
    assert sorted(began) == sorted(failed)
    straight = evaluate(LAKE, **asked)
    assert _without_clocks(found.trajectories) == _without_clocks(straight.trajectories)
    on_disk = [each for path in sorted(tmp_path.glob("part-*.parquet")) for each in read_trajectories(path)]
    assert _without_clocks(on_disk) == _without_clocks(straight.trajectories)
    assert found.versions["envsdk"] == straight.versions["envsdk"]


def _without_clocks(episodes: list[Trajectory]) -> list[tuple[object, ...]]:
    return [(each.trajectory_id, each.seed, [turn.reply for turn in each.turns]) for each in episodes]


def test_a_log_of_something_else_is_refused(tmp_path: Path) -> None:
    evaluate(LAKE, policy="random", num_episodes=2, out=tmp_path)
    with pytest.raises(ConfigurationError, match="seed: 42 there, 7 now"):
        evaluate(LAKE, policy="random", num_episodes=2, out=tmp_path, seed=7)
