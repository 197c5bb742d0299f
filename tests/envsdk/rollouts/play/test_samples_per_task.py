"""Several episodes of each task: groups on disk, pass@k, and policies that are objects."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from envsdk.base.store.trajectories import read_trajectories
from envsdk.collect import collect
from envsdk.contracts.failures import ConfigurationError
from envsdk.contracts.policy import TurnContext
from envsdk.contracts.turn_env import TurnEnv, TurnResult
from envsdk.evaluate import evaluate, passes_table, results_table
from envsdk.rollouts.results.trajectories import Trajectories

LAKE = "envsdk/FrozenLake-v1"


async def wander(observation: str, context: TurnContext) -> str:
    return f"<answer>{('Left', 'Down', 'Right', 'Up')[context.seed % 4]}</answer>"


def test_a_collection_holds_complete_groups_whatever_interrupts_it(tmp_path: Path) -> None:
    asked = {"policy": wander, "num_episodes": 60, "samples_per_task": 6, "shard_size": 20}
    whole = collect(LAKE, tmp_path / "whole", **asked)
    episodes = [each for shard in whole.shards for each in read_trajectories(shard)]
    assert [each.group_id for each in episodes] == [number // 6 for number in range(60)]
    assert [each.task.index for each in episodes] == [number // 6 for number in range(60)]
    assert len({each.trajectory_id for each in episodes}) == 60
    groups = Trajectories(episodes).groups
    assert any(len({tuple(turn.reply for turn in each.turns) for each in group}) > 1 for group in groups)
    assert all(len({each.turns[0].observation for each in group}) == 1 for group in groups)
    # Shards are of complete groups, and a missing one is played again as it was.
    assert Counter(len(read_trajectories(shard)) for shard in whole.shards) == {24: 2, 12: 1}
    missing = whole.shards[1]
    before = [each.turns for each in read_trajectories(missing)]
    missing.unlink()
    collect(LAKE, tmp_path / "whole", **asked)
    assert [each.turns for each in read_trajectories(missing)] == before
    assert "each task 6 times" in (tmp_path / "whole" / "README.md").read_text()
    assert whole.manifest.config["policy"] == f"{__name__}.wander"


class Coin(TurnEnv[str]):
    """Say head or tail."""

    max_steps = 1

    def start(self, rng: np.random.Generator, options: Mapping[str, Any]) -> None:
        self.side = ("head", "tail")[int(rng.integers(2))]

    def parse(self, reply: str) -> str:
        return reply

    def play(self, action: str) -> TurnResult:
        return TurnResult(success=action == self.side, reward=float(action == self.side))

    def observe(self) -> str:
        return "head or tail?"


def test_an_environment_that_a_program_brings_along_is_evaluated_and_collected(tmp_path: Path) -> None:
    found = evaluate(Coin, policy=lambda observation: "head", num_episodes=20, samples_per_task=2)
    assert 0 < found.pass_at(1).rate < 1
    collected = collect(Coin, tmp_path / "coins", policy=lambda observation: "head", num_episodes=20)
    assert collected.manifest.tally.num_episodes == 20
    with pytest.raises(ConfigurationError, match="plays in this process alone; register"):
        collect(Coin, tmp_path / "more", num_episodes=4, policy="random", num_workers=2)


def test_what_does_not_go_with_groups_is_refused(tmp_path: Path) -> None:
    for options, message in (
        ({"num_episodes": 10, "samples_per_task": 4}, "10 is no multiple of --samples-per-task 4"),
        ({"num_episodes": 8, "samples_per_task": 4, "deduplicate": "task"}, "use --deduplicate episode"),
        ({"num_episodes": 8, "policy": wander, "num_workers": 2}, "plays in this process alone"),
    ):
        with pytest.raises(ConfigurationError, match=message):
            collect(LAKE, tmp_path / "refused", **options)


def test_an_evaluation_of_several_samples_shows_pass_at_k() -> None:
    found = evaluate(LAKE, policy=wander, num_episodes=12, samples_per_task=4)
    assert len(found.trajectories) == 48
    assert [each.task.index for each in found.trajectories] == [number // 4 for number in range(48)]
    solved = [any(each.success for each in found.trajectories[4 * task :][:4]) for task in range(12)]
    assert found.pass_at(4).rate == pytest.approx(sum(solved) / 12)
    assert found.pass_at(1).rate == pytest.approx(found.total.success_rate)
    shown = found.to_json()["total"]
    assert list(shown["pass_at"]) == ["1", "2", "4"]
    assert shown["success_rate_95"] == shown["pass_at"]["1"]["rate_95"]
    assert passes_table(found).row_count == 3
    assert results_table(found).row_count == 1
    with pytest.raises(ValueError, match="needs samples_per_task of at least 8"):
        found.pass_at(8)
    alone = evaluate(LAKE, policy=wander, num_episodes=12)
    assert "pass_at" not in alone.to_json()["total"]
    assert "samples_per_task" not in alone.config
    # The first sample of a task is the one that a single sample is.
    assert [each.turns for each in found.trajectories[::4]] == [each.turns for each in alone.trajectories]
