"""A real run whose prompts show a part of the episode: what is trained is what the engine was shown."""

from __future__ import annotations

from pathlib import Path

import pytest

from envsdk.base.store.trajectories import read_trajectories
from envsdk.contracts.prompts import SUMMARY
from envsdk.tracking import read_metrics
from tests.system.jobs import Job

pytestmark = [pytest.mark.system, pytest.mark.slow, pytest.mark.timeout(600)]


def test_a_run_learns_from_windows_and_summaries(tmp_path: Path, model: Path) -> None:
    job = Job(tmp_path, model, max_steps=2)
    code, output = job.finish(
        "async_generation_ratio=0",
        "custom_envs.Lake.context=window",
        "custom_envs.Lake.context_window=2",
        "custom_envs.Room.context=compact",
        "custom_envs.Room.compact_at=8",
        "custom_envs.Room.compact_prompt=Sum up",
    )
    assert code == 0, output
    job.assert_each_step_once(2)
    lines, summaries = 0, 0
    for step in range(2):
        for trajectory in read_trajectories(job.batch(step)):
            assert trajectory.tokens is not None
            lines += len(trajectory.segments())
            summaries += sum(turn.role == SUMMARY for turn in trajectory.turns)
    assert summaries > 0
    for row in read_metrics(job.run / "metrics.jsonl"):
        if "actor/loss" in row:
            # Under the weights that sampled them, what the trainer computes is what the engine said.
            assert row["actor/logprob_gap_max"] < 1e-4
            assert row["rollout/num_segments_mean"] > 1
    assert lines > summaries
