"""`python -m envsdk.train` as a process in a folder of its own, on a tiny model and small environments."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from safetensors.numpy import load_file

from envsdk.base.store.trajectories import read_trajectories
from envsdk.contracts.trajectory import Outcome
from envsdk.tracking import read_metrics

CONFIG = """
exp_name: run
seed: 3
async_generation_ratio: {alpha}
rollout_batch_size: 8
val_batch_size: 4
sequence_length: 256
max_steps: {max_steps}
entropy_loss_coef: 0.01  # a random policy's groups often agree: something to learn in every batch
eval_steps: 3
save_steps: 2
pretrain: {model}
custom_envs:
  Lake:
    env_type: envsdk/FrozenLake-v1
    env_config: {{size: 3, legend: false, invalid_penalty: 0.1}}
    max_steps: 3
    agent_system_template: {system}
  Room:
    env_type: envsdk/Sokoban-v1
    env_config: {{dim: [5, 5], legend: false, invalid_penalty: 0.1}}
    max_steps: 2
    agent_system_template: ''
train_env_manager: {{tags: [Lake, Room], num_env_groups: 4, group_size: 4}}
val_env_manager: {{tags: [Lake, Room], num_env_groups: 4}}
actor_train: {{training_args: {{learning_rate: 1.0e-3}}}}
actor_infer: {{generating_args: {{max_new_tokens: 3}}}}
"""

REPOSITORY = Path(__file__).resolve().parents[2]


class Job:
    """One training run in a folder of its own."""

    def __init__(
        self,
        folder: Path,
        model: Path,
        *,
        max_steps: int = 5,
        alpha: float = 1,
        system: str = "Go.",
        config: str = CONFIG,
    ) -> None:
        self.folder = folder
        self.run = folder / "runs" / "run"
        text = config.format(model=model, max_steps=max_steps, alpha=alpha, system=system)
        (folder / "run.yaml").write_text(text)

    def start(self, *overrides: str) -> subprocess.Popen[str]:
        return self.start_program("-m", "envsdk.train", "run.yaml", *overrides)

    def start_program(self, *arguments: str) -> subprocess.Popen[str]:
        """Python with these arguments, in the job's folder and in a session of its own."""
        command = [sys.executable, *arguments]
        path = os.pathsep.join(filter(None, [str(REPOSITORY), os.environ.get("PYTHONPATH")]))
        return subprocess.Popen(
            command,
            cwd=self.folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
            env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": path},
        )

    def finish(self, *overrides: str) -> tuple[int, str]:
        process = self.start(*overrides)
        output, _ = process.communicate(timeout=300)
        return process.returncode, output

    def batch(self, step: int) -> Path:
        return self.run / "trajectories" / f"step_{step:06d}.parquet"

    def checkpoint(self, step: int) -> Path:
        return self.run / "checkpoints" / f"step_{step:06d}"

    def weights(self, step: int) -> dict[str, bytes]:
        arrays = load_file(self.checkpoint(step) / "model" / "model.safetensors")
        return {name: array.tobytes() for name, array in arrays.items()}

    def assert_each_step_once(self, num_steps: int) -> None:
        """Every batch trained once and kept, no trajectory in two of them, no metric lost or doubled."""
        lines = [json.loads(line) for line in (self.run / "metrics.jsonl").read_text().splitlines()]
        assert [row["step"] for row in lines if "actor/loss" in row] == list(range(num_steps))
        ids = [t.trajectory_id for step in range(num_steps) for t in read_trajectories(self.batch(step))]
        assert len(ids) == 8 * num_steps
        assert len(set(ids)) == len(ids)


def wait_until(happened: Callable[[], bool], process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + 200
    while not happened():
        assert process.poll() is None, process.stdout and process.stdout.read()
        assert time.monotonic() < deadline
        time.sleep(0.01)


def stop_and_check(job: Job, process: subprocess.Popen[str]) -> str:
    """Ends the run; its batches are whole and hold each trajectory once. What it printed."""
    os.killpg(process.pid, signal.SIGINT)
    output, _ = process.communicate(timeout=120)
    assert process.returncode == 130, output
    job_rows = rows(job)
    assert [row["step"] for row in job_rows] == list(range(len(job_rows)))
    assert all(row["staleness/max"] <= 1 for row in job_rows)
    ids = []
    for step in range(len(job_rows)):
        batch = read_trajectories(job.batch(step))
        assert len(batch) == 8
        assert all(trajectory.outcome is not Outcome.FAILED for trajectory in batch)
        ids += [trajectory.trajectory_id for trajectory in batch]
    assert len(ids) == len(set(ids))
    return output


def rows(job: Job) -> list[dict[str, Any]]:
    """The metrics of each step."""
    return [dict(row) for row in read_metrics(job.run / "metrics.jsonl")]
