"""Programs of a job that are killed, come back and join: nothing is lost, doubled or too old."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import pytest

from envsdk.base.store.trajectories import read_metadata, read_trajectories
from envsdk.buffer.audit import audit
from envsdk.buffer.places import opened
from tests.system.jobs import Job, wait_until

pytestmark = [pytest.mark.system, pytest.mark.timeout(300)]

NUM_STEPS = 4
LEASE = "buffer.lease_s=4"


def kill(process: subprocess.Popen[str]) -> None:
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def test_an_explorer_and_the_trainer_may_be_killed_and_others_join(tmp_path: Path, model: Path) -> None:
    job = Job(tmp_path, model, max_steps=NUM_STEPS)

    def explorer(name: str) -> subprocess.Popen[str]:
        return job.start("mode=explore", f"explorer.name={name}", LEASE)

    programs = [trainer := job.start("mode=train", LEASE), first := explorer("first")]
    try:
        wait_until(job.batch(0).is_file, trainer)
        kill(first)
        programs.append(second := explorer("second"))
        wait_until(job.checkpoint(2).is_dir, trainer)
        kill(trainer)
        programs.append(trainer := job.start("mode=train", LEASE))
        for process in (trainer, second):
            output, _ = process.communicate(timeout=250)
            assert process.returncode == 0, output
    finally:
        for process in programs:
            if process.poll() is None:
                kill(process)

    job.assert_each_step_once(NUM_STEPS)
    for step in range(NUM_STEPS):
        version = int(read_metadata(job.batch(step))["version"])
        oldest = [t.oldest_version for t in read_trajectories(job.batch(step))]
        assert version == step
        assert all(found is not None and found >= version - 1 for found in oldest)
    with opened(str(job.run / "buffer.db")) as engine:
        assert audit(engine, decode=True) == []
