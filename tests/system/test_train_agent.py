"""An outside agent plays in a real training run, over the HTTP endpoint of the workers."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from envsdk.base.store.trajectories import read_trajectories
from envsdk.contracts.trajectory import Outcome
from envsdk.tracking import read_metrics
from tests.system.jobs import Job

pytestmark = [pytest.mark.system, pytest.mark.timeout(600)]

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_a_run_learns_from_what_an_outside_agent_was_answered(
    tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = [str(ROOT), os.environ.get("PYTHONPATH")]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, paths)))
    job = Job(tmp_path, model, max_steps=2)
    agents = "tests.managers.lake_agents"
    code, output = job.finish(
        f"custom_envs.Lake.env_manager_cls={agents}:Delegating",
        f"custom_envs.Room.env_manager_cls={agents}:Program",
    )
    assert code == 0, output
    job.assert_each_step_once(2)
    num_segments = set()
    for step in range(2):
        for trajectory in read_trajectories(job.batch(step)):
            assert trajectory.outcome is not Outcome.FAILED, trajectory.failure
            tokens = trajectory.tokens
            assert tokens is not None
            assert tokens.response_mask.sum() == sum(
                turn.response_end - turn.response_start for turn in trajectory.turns
            )
            num_segments.add((trajectory.task.tag, len(trajectory.segments())))
            sampled = tokens.response_mask == 1
            assert set(tokens.versions[sampled]) <= set(range(step + 1))
            assert (tokens.behavior_logprobs[sampled] < 0).all()
    rows = [row for row in read_metrics(job.run / "metrics.jsonl") if "actor/loss" in row]
    assert num_segments == {("Lake", 3), ("Room", 1)}
    shares = [row["rollout/merged_share"] for row in rows if "rollout/merged_share" in row]
    assert shares
    assert all(0 < share < 1 for share in shares)
    # What the trainer computes for the tokens is what the engine said when it sampled them.
    assert rows[0]["actor/logprob_gap_max"] < 1e-4
