"""Engines of a real run are killed, come and go: the run goes on, and no trajectory is lost."""

from __future__ import annotations

import contextlib
import os
import re
import signal
from pathlib import Path

import psutil
import pytest

from tests.system.jobs import Job, rows, stop_and_check, wait_until

pytestmark = [pytest.mark.system, pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.mark.parametrize("num_engines", [1, 2])
def test_a_killed_engine_comes_back_and_no_trajectory_is_lost(
    num_engines: int, tmp_path: Path, model: Path
) -> None:
    job = Job(tmp_path, model, max_steps=1000)
    process = job.start(f"actor_infer.num_engines={num_engines}", "save_steps=0", "eval_steps=0")
    wait_until(job.batch(2).is_file, process)
    victim = min(engine_processes(process.pid))
    os.kill(victim, signal.SIGKILL)

    def is_back() -> bool:
        last = rows(job)[-1]
        return bool(last["engine/restarts"] == 1 and last["engine/serving"] == num_engines)

    wait_until(is_back, process)
    num_steps = len(rows(job))
    wait_until(job.batch(num_steps + 2).is_file, process)
    assert victim not in engine_processes(process.pid)
    assert len(engine_processes(process.pid)) == num_engines

    output = stop_and_check(job, process)
    [said] = [line for line in output.splitlines() if "was lost" in line]
    assert re.search(r"engine-\d was lost, it is started again; the reason: its process ended: ", said), (
        output
    )
    assert "engine restarts" in (job.run / "report.html").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("num_engines", "keys"),
    [
        pytest.param(
            1,
            ["max_engines=2", "infer_batch_size=1", "max_queued_per_engine=0.5"],
            id="a second one comes",
        ),
        pytest.param(2, ["min_engines=1", "engine_idle_s=3"], id="the second one goes"),
    ],
)
def test_engines_come_and_go_with_the_load_and_no_trajectory_is_lost(
    num_engines: int, keys: list[str], tmp_path: Path, model: Path
) -> None:
    job = Job(tmp_path, model, max_steps=1000)
    settings = [f"actor_infer.{key}" for key in [f"num_engines={num_engines}", *keys]]
    process = job.start(*settings, "save_steps=0", "eval_steps=0")
    wait_until(job.batch(1).is_file, process)
    assert len(engine_processes(process.pid)) == num_engines
    wanted = 3 - num_engines
    wait_until(lambda: rows(job)[-1]["engine/serving"] == wanted, process)
    wait_until(lambda: len(engine_processes(process.pid)) == wanted, process)
    wait_until(job.batch(len(rows(job)) + 2).is_file, process)
    assert rows(job)[-1]["engine/restarts"] == 0
    stop_and_check(job, process)


def engine_processes(pid: int) -> set[int]:
    """Pids of the engines of a run."""
    found = set()
    for process in psutil.Process(pid).children(recursive=True):
        with contextlib.suppress(psutil.Error):
            if process.cmdline()[:1] and process.cmdline()[0].startswith("ray::EngineHost"):
                found.add(process.pid)
    return found
