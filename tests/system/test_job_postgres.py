"""A job whose PostgreSQL is killed and started again in the middle: `make test-postgres`."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from envsdk.buffer.audit import audit
from envsdk.buffer.places import opened
from tests.postgres_server import running
from tests.system.jobs import Job, wait_until

pytestmark = [
    pytest.mark.postgres,
    pytest.mark.timeout(600),
    pytest.mark.skipif(
        "ENVSDK_POSTGRES" not in os.environ, reason="needs a server of PostgreSQL: make test-postgres"
    ),
]

NUM_STEPS = 6
AWAY_S = 10.0


def test_the_programs_wait_for_a_database_that_is_killed_and_go_on(tmp_path: Path, model: Path) -> None:
    job = Job(tmp_path, model, max_steps=NUM_STEPS)
    with running() as server:
        buffer = f"buffer.trainer_input.experience_buffer.path={server.url}"
        programs = [
            job.start("mode=train", buffer, "buffer.lease_s=8"),
            job.start("mode=explore", "explorer.name=a", buffer, "buffer.lease_s=8"),
            job.start("mode=explore", "explorer.name=b", buffer, "buffer.lease_s=8"),
        ]
        try:
            wait_until(job.batch(1).is_file, programs[0])
            server.stop()
            time.sleep(AWAY_S)  # longer than a lease
            server.start()
            for process in programs:
                output, _ = process.communicate(timeout=400)
                assert process.returncode == 0, output
                assert "the buffer answers again" in output
        finally:
            for process in programs:
                if process.poll() is None:
                    os.killpg(process.pid, signal.SIGKILL)
        job.assert_each_step_once(NUM_STEPS)
        with opened(server.url) as engine:
            assert audit(engine, decode=True) == []
