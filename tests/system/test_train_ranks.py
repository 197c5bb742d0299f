"""`python -m envsdk.train` with a trainer of two rank processes: killed, one or all, and continued."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import psutil
import pytest

from tests.system.jobs import Job, wait_until

pytestmark = [pytest.mark.system, pytest.mark.timeout(600)]

TWO_RANKS = (
    "actor_train.strategy_args.strategy_name=fsdp2_train",
    "actor_train.device_mapping=list(range(0,2))",
)


def rank_processes(run: subprocess.Popen[str]) -> list[psutil.Process]:
    found = []
    for process in psutil.Process(run.pid).children(recursive=True):
        try:
            if process.cmdline()[0].startswith("ray::TrainerHost"):
                found.append(process)
        except (psutil.Error, IndexError):
            continue
    return found


def assert_gone(processes: list[psutil.Process]) -> None:
    assert processes
    _, alive = psutil.wait_procs(processes, timeout=60)
    assert not alive


def test_whatever_ends_a_run_no_rank_outlives_it_and_the_same_command_goes_on(
    tmp_path: Path, model: Path
) -> None:
    job = Job(tmp_path, model, max_steps=6)

    run = job.start(*TWO_RANKS)
    wait_until(job.batch(0).is_file, run)
    ranks = rank_processes(run)
    assert len(ranks) == 2
    run.kill()
    run.communicate()
    assert_gone(ranks)

    run = job.start(*TWO_RANKS)
    wait_until(job.checkpoint(2).is_dir, run)
    first, second = rank_processes(run)
    second.kill()
    output, _ = run.communicate(timeout=120)
    assert run.returncode == 1, output
    assert "error: actor_train: rank " in output
    assert f"of 2 died: pid {second.pid}: " in output
    assert "Traceback" not in output
    assert_gone([first, second])

    run = job.start(*TWO_RANKS)
    wait_until(job.batch(4).is_file, run)
    ranks = rank_processes(run)
    os.killpg(run.pid, signal.SIGINT)
    output, _ = run.communicate(timeout=120)
    assert run.returncode in (0, 130), output
    assert_gone(ranks)

    code, output = job.finish(*TWO_RANKS)
    assert code == 0, output
    job.assert_each_step_once(6)
    assert not list(job.run.glob("**/.*.partial"))
