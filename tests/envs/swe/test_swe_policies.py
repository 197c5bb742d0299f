"""Policies without a model."""

from __future__ import annotations

from pathlib import Path

from envsdk.base.store.trajectories import read_trajectories
from envsdk.collect import collect
from envsdk.contracts.trajectory import Outcome
from envsdk.envs.swe.observations import read_ending
from tests.envs.swe.toy_sandbox import NAME
from tests.envs.swe.toy_tasks import MakeEnv

LOOKER = "envsdk.envs.swe.policies:LookingPolicy"


def test_the_looker_ends_every_episode_with_a_patch_of_no_use(
    make_env: MakeEnv, sandboxes: Path, tmp_path: Path
) -> None:
    overrides = [f"backend={NAME}", f"backend_settings.folder={sandboxes}"]
    collection = collect(
        "envsdk/SWE-v1", tmp_path / "looks", num_episodes=3, policy=LOOKER, overrides=overrides
    )
    for trajectory in read_trajectories(collection.shards[0]):
        assert trajectory.outcome is Outcome.TERMINATED
        assert not trajectory.success
        assert all(turn.metrics["action_is_valid"] for turn in trajectory.turns)
        ending = read_ending(trajectory.final_observation)
        assert ending is not None
        assert "+# looked at" in ending.submission
