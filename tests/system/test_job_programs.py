"""A trainer, an explorer, a bench and a server of one job, as processes."""

from __future__ import annotations

import os
import re
import signal
from pathlib import Path

import httpx2
import pytest

from envsdk.base.store.trajectories import read_trajectories
from envsdk.tracking import read_run_metrics
from tests.system.jobs import Job

pytestmark = [pytest.mark.system, pytest.mark.timeout(300)]

TOKEN = "a-token-that-is-long-enough"
NUM_STEPS = 2


@pytest.mark.slow
def test_the_programs_of_a_job_do_their_parts_and_end(
    tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ENVSDK_ENDPOINT_TOKEN", TOKEN)
    job = Job(tmp_path, model, max_steps=NUM_STEPS)
    trainer, explorer, bench, server = (
        job.start(f"mode={mode}", "serve.port=0") for mode in ("train", "explore", "bench", "serve")
    )
    try:
        for process in (trainer, explorer, bench):
            output, _ = process.communicate(timeout=250)
            assert process.returncode == 0, output
        assert server.stdout is not None
        lines = iter(server.stdout.readline, "")
        url = next(found[1] for line in lines if (found := re.search(r"at (http://\S+)/v1", line)))
        assert any("the trainer has finished" in line for line in lines)
        headers = {"Authorization": f"Bearer {TOKEN}"}
        (card,) = httpx2.get(f"{url}/v1/models", headers=headers).json()["data"]
        body = {"model": "policy", "prompt": "Go.", "max_tokens": 3}
        reply = httpx2.post(f"{url}/v1/completions", json=body, headers=headers, timeout=60).json()
        server.send_signal(signal.SIGTERM)
        assert server.wait(timeout=60) == 0
    finally:
        for process in (trainer, explorer, bench, server):
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
    job.assert_each_step_once(NUM_STEPS)
    evaluated = [row["step"] for row in read_run_metrics(job.run) if "val/success/mean" in row]
    assert evaluated[-1] == NUM_STEPS
    assert len(read_trajectories(job.run / "trajectories" / f"val_{NUM_STEPS:06d}.parquet")) == 4
    assert card["version"] == NUM_STEPS
    assert reply["system_fingerprint"] == f"version-{NUM_STEPS}"
