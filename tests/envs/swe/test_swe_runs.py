"""Whole runs with real sandboxes: evaluation by the oracle, and the training example."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from envsdk.base.store.trajectories import read_trajectories
from envsdk.envs.swe.observations import read_ending
from envsdk.envs.swe.tasks.shipped import shipped_tasks
from envsdk.evaluate import evaluate

PATIENCE_S = 300.0


@pytest.mark.slow
def test_the_oracle_solves_every_shipped_task() -> None:
    num_tasks = len(shipped_tasks())
    evaluation = evaluate("SWE", policy="oracle", num_episodes=num_tasks, overrides=["split=all"])
    unsolved = [
        trajectory.failure or trajectory.final_observation
        for trajectory in evaluation.trajectories
        if not trajectory.success
    ]
    assert unsolved == []
    endings = [read_ending(trajectory.final_observation) for trajectory in evaluation.trajectories]
    assert {ending.instance_id for ending in endings if ending} == {t.instance_id for t in shipped_tasks()}


def train(folder: Path, *overrides: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "envsdk.train", "agentic_swe_async.yaml", *overrides],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )


@pytest.mark.slow
@pytest.mark.system
@pytest.mark.timeout(900)
def test_the_example_trains_and_goes_on_after_a_kill(tmp_path: Path) -> None:
    short = (
        "max_steps=2",
        "save_steps=1",
        "eval_steps=2",
        "warm_start.num_episodes=16",
        "warm_start.epochs=1",
        "warm_start.num_layers=1",
    )
    first = train(tmp_path, *short)
    batch = tmp_path / "runs" / "agentic_swe_async" / "trajectories" / "step_000000.parquet"
    began = time.monotonic()
    while not batch.is_file():
        assert first.poll() is None, first.communicate()[0]
        assert time.monotonic() - began < PATIENCE_S
        time.sleep(0.1)
    os.killpg(first.pid, signal.SIGKILL)
    first.communicate()

    second = train(tmp_path, *short)
    output, _ = second.communicate(timeout=PATIENCE_S)
    assert second.returncode == 0, output
    trajectories = [
        trajectory
        for file in sorted(batch.parent.glob("step_*.parquet"))
        for trajectory in read_trajectories(file)
    ]
    assert len(trajectories) == 32
    assert not any(trajectory.failure for trajectory in trajectories)
