"""Trainer and engine that take turns on one device: the run is the same as on two, whatever kills it."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from envsdk.base.store.trajectories import read_trajectories
from tests.by_day import by_day
from tests.system.jobs import CONFIG, REPOSITORY, Job, rows

pytestmark = [pytest.mark.system, pytest.mark.timeout(600)]

SHARED = (
    "actor_train.offload=all",
    "actor_infer.offload=all",
    "init_kl_coef=0.01",
    "reference.offload=all",
    "max_steps=3",
    "save_steps=1",
)
APART = ("init_kl_coef=0.01", "max_steps=3", "save_steps=1")


def results(job: Job) -> tuple[object, ...]:
    """What a run leaves that no clock is in."""
    told = [
        {key: value for key, value in row.items() if key.startswith(("val/", "actor/", "reward"))}
        for row in rows(job)
    ]
    for row in told:
        row.pop("actor/step_time_s", None)
    episodes = [
        [(each.task, each.total_reward, each.tokens.ids.tobytes()) for each in read_trajectories(file)]
        for file in sorted((job.run / "trajectories").glob("*.parquet"))
    ]
    return job.weights(3), told, episodes


@pytest.fixture(scope="module")
def apart(tmp_path_factory: pytest.TempPathFactory, model: Path) -> tuple[object, ...]:
    job = Job(tmp_path_factory.mktemp("apart"), model, alpha=0, config=CONFIG)
    code, output = job.finish(*APART)
    assert code == 0, output
    return results(job)


@pytest.mark.slow  # by day, the run below comes to the same, killed and continued
def test_a_run_on_one_device_is_the_run_on_two_bit_for_bit(
    tmp_path: Path, model: Path, apart: tuple[object, ...]
) -> None:
    job = Job(tmp_path, model, alpha=0)
    code, output = job.finish(*SHARED)
    assert code == 0, output
    assert results(job) == apart
    assert all(row["time/switch_s"] > 0 for row in rows(job))


ENDS = [
    (phase, when, number)
    for phase in ("publish", "validate", "generate", "score", "train")
    for when in ("before", "between", "after")
    for number in (signal.SIGKILL, signal.SIGINT)
]


@pytest.mark.parametrize(("phase", "when", "number"), by_day([("train", "between", signal.SIGKILL)], ENDS))
def test_a_run_that_ends_in_a_phase_continues_as_if_it_had_run_through(
    phase: str, when: str, number: signal.Signals, tmp_path: Path, model: Path, apart: tuple[object, ...]
) -> None:
    job = Job(tmp_path, model, alpha=0)
    # At its second time: an evaluation is the last one.
    script = str(REPOSITORY / "tests/system/dying_run.py")
    process = job.start_program(script, str(number.value), phase, "2", when, "run.yaml", *SHARED)
    output, _ = process.communicate(timeout=300)
    assert process.returncode == (-number if number == signal.SIGKILL else 130), output
    code, output = job.finish(*SHARED)
    assert code == 0, output
    assert results(job) == apart
    assert all(row["time/switch_s"] > 0 for row in rows(job))
    job.assert_each_step_once(3)
