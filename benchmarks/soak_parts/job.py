"""One job of a soak: a program that is started again until it has finished."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import psutil

REPOSITORY = Path(__file__).resolve().parents[2]
INSIDE = Path(__file__).resolve().parent / "inside"

AGENTIC = """
exp_name: {name}
output_dir: {runs}
seed: {seed}
async_generation_ratio: {alpha}
max_staleness: {bound}
rollout_batch_size: 16
val_batch_size: {val}
sequence_length: 256
max_steps: {steps}
eval_steps: 10
save_steps: 4
entropy_loss_coef: 0.01
pretrain: embedded_default
warm_start: {{num_episodes: 50}}
custom_envs:
  Apart:
    env_type: soak/Lake-v1
    isolation: process
    step_timeout_s: 2
    env_config: {{size: 3, legend: false, invalid_penalty: 0.1}}
    max_steps: 3
    agent_system_template: Go.
  Inside:
    env_type: soak/Lake-v1
    isolation: inline
    step_timeout_s: 2
    env_config: {{size: 3, legend: false, invalid_penalty: 0.1}}
    max_steps: 3
    agent_system_template: Go.
train_env_manager:
  tags: [Apart, Inside]
  num_env_groups: 4
  group_size: 4
  max_env_num_per_worker: 8
  turn_timeout_s: 30
  episode_deadline_s: 60
val_env_manager: {{tags: [Inside], num_env_groups: 4, turn_timeout_s: 30, episode_deadline_s: 60}}
actor_train: {{training_args: {{learning_rate: 1.0e-3}}}}
actor_infer:
  num_engines: 2
  engine_timeout_s: 8
  max_engine_restarts: 100
  generating_args: {{max_new_tokens: 3}}
"""

ENV_ID = "soak/Lake-v1"
ROLES = {
    "worker": ("ray::EnvWorker",),
    "engine": ("ray::EngineHost",),
    "scheduler": ("ray::RolloutScheduler",),
    "trainer": ("ray::TrainerHost",),
    "raylet": ("raylet/raylet",),
    "gcs": ("gcs_server",),
}


class Job:
    """A run folder, and the program that works on it."""

    def __init__(self, folder: Path, name: str, environment: Mapping[str, str], **settings: object) -> None:
        self.folder = folder
        self.name = name
        self.run = folder / "runs" / name
        self.max_steps = int(str(settings["steps"]))
        self.log = folder / "logs" / f"{name}.log"
        self.log.parent.mkdir(exist_ok=True)
        self.file = folder / f"{name}.yaml"
        self.file.write_text(AGENTIC.format(name=name, runs=folder / "runs", **settings))
        self._environment = environment
        self.process: subprocess.Popen[bytes] | None = None
        self.started_at = 0.0

    def start(self) -> None:
        """Start the program, or start it again."""
        with self.log.open("ab") as log:
            log.write(f"\n$ envsdk train {self.file.name}\n".encode())
            log.flush()
            self.process = subprocess.Popen(
                [sys.executable, "-m", "envsdk.train", str(self.file)],
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env={**os.environ, **self._environment},
            )
        self.started_at = time.monotonic()

    @property
    def exit_code(self) -> int | None:
        """Of the program; None while it runs."""
        return None if self.process is None else self.process.poll()

    def num_batches(self) -> int:
        """Batches on disk."""
        return sum(1 for _ in (self.run / "trajectories").glob("step_*.parquet"))

    def processes(self, role: str) -> list[psutil.Process]:
        """Living processes of this role, in a fixed order."""
        assert self.process is not None
        try:
            driver = psutil.Process(self.process.pid)
            children = driver.children(recursive=True)
        except psutil.NoSuchProcess:
            return []
        if role == "driver":
            return [driver]
        found = []
        for process in children:
            try:
                title, parents = " ".join(process.cmdline()), process.parents()
                if role == "environment":
                    # Forked by the one parent of environments, which a worker started.
                    names = [" ".join(parent.cmdline()) for parent in parents[:2]]
                    if len(names) == 2 and "EnvWorker" not in names[0] and "ray::EnvWorker" in names[1]:
                        found.append(process)
                elif any(pattern in title for pattern in ROLES[role]):
                    found.append(process)
            except psutil.NoSuchProcess:
                continue
        return sorted(found, key=lambda process: process.pid)

    def last_words(self, number: int = 12) -> str:
        """The end of what it printed."""
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-number:])

    def end(self) -> None:
        """Kill the program and what it started."""
        assert self.process is not None
        try:
            everything = [psutil.Process(self.process.pid), *psutil.Process(self.process.pid).children(True)]
        except psutil.NoSuchProcess:
            everything = []
        for process in everything:
            try:
                process.send_signal(signal.SIGKILL)
            except psutil.NoSuchProcess:
                continue
        self.process.wait()
