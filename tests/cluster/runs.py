"""`envsdk train` as a program on a node of a cluster."""

from __future__ import annotations

import statistics
import subprocess
import sys
import threading
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

from tests.cluster.nodes import REPOSITORY, Cluster, Node, wait_until
from tests.system.jobs import Job

SPREAD = [
    "train_env_manager.max_env_num_per_worker=4",  # four workers
    "val_env_manager.max_env_num_per_worker=4",
    "actor_infer.num_engines=2",
    "ray.placement.trainer.strategy=driver",
    "eval_steps=0",
]
LONG = "max_steps=5000"
"""Until it is told to stop."""


class ClusterRun(Job):
    """A run whose driver is on a node of a cluster; the same folder may go on on another cluster."""

    def __init__(self, folder: Path, model: Path, cluster: Cluster, node: Node | None = None) -> None:
        super().__init__(folder, model, max_steps=5)
        self.cluster = cluster
        self.node = node or cluster.head
        self._output: list[str] = []

    def start_program(self, *arguments: str) -> subprocess.Popen[str]:
        address = [f"ray.address={self.cluster.address}"]
        command, overrides = arguments[:3], arguments[3:]
        program = self.cluster.start(self.node, *command, *SPREAD, *overrides, *address, cwd=self.folder)
        self._output = []
        # A thread reads, so that no test can fill the pipe.
        threading.Thread(target=self._read, args=[program], daemon=True).start()
        return program

    def _read(self, program: subprocess.Popen[str]) -> None:
        assert program.stdout is not None
        self._output.extend(program.stdout)

    @property
    def output(self) -> str:
        """Of the program that was started last, so far."""
        return "".join(self._output)

    @property
    def num_batches(self) -> int:
        return len(list((self.run / "trajectories").glob("step_*.parquet")))

    def wait_for(
        self, happened: Callable[[], bool], program: subprocess.Popen[str], timeout_s: float = 120.0
    ) -> float:
        """Seconds until it was so, while the program runs."""

        def look() -> bool:
            assert program.poll() is None, self.output
            return happened()

        return wait_until(look, timeout_s, lambda: self.output)

    def wait_for_batches(self, more: int, program: subprocess.Popen[str]) -> float:
        """Seconds until so many further batches were there."""
        wanted = self.num_batches + more
        return self.wait_for(lambda: self.num_batches >= wanted, program)

    def stop(self, program: subprocess.Popen[str]) -> None:
        """As Ctrl-C does."""
        self.cluster.interrupt(program)
        assert self.ended(program) == 130, self.output

    def ended(self, program: subprocess.Popen[str], timeout_s: float = 120.0) -> int:
        wait_until(lambda: program.poll() is not None, timeout_s, lambda: self.output)
        return program.wait()

    def lost_s(self, since: float) -> float:
        """The longest time without a batch after `since`, less the usual one."""
        times = sorted(path.stat().st_mtime for path in (self.run / "trajectories").glob("step_*.parquet"))
        gaps = [(later - earlier, later) for earlier, later in pairwise(times)]
        usual = statistics.median(gap for gap, _ in gaps)
        return max(gap for gap, later in gaps if later > since) - usual

    def audit(self, *, finished: bool = False) -> None:
        """Exactly once, never too old, counts that add up: by a program that shares no code with the run."""
        command = [sys.executable, str(REPOSITORY / "benchmarks/audit_run.py"), str(self.run)]
        done = subprocess.run(
            command + ["--finished"] * finished, check=False, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stdout + done.stderr
