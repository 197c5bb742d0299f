"""`python -m envsdk.train` as a process: real engine, real trainer, real Ray; killed, stopped, continued."""

from __future__ import annotations

import json
import os
import shutil
import signal
from pathlib import Path

import psutil
import pytest

from envsdk.base.store.trajectories import read_trajectories
from envsdk.tracking import read_metrics
from envsdk.tracking.run_record import read_kernels
from envsdk.tracking.timeline import read_timeline
from envsdk.train import main as train
from tests.system.conftest import RunHere
from tests.system.jobs import Job, wait_until

pytestmark = [pytest.mark.system, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory, model: Path) -> tuple[Job, str]:
    """Undisturbed; by day, test_train_synchronous.py and test_job_kills.py have the runs that are killed."""
    job = Job(tmp_path_factory.mktemp("finished"), model)
    code, output = job.finish()
    assert code == 0, output
    return job, output


def test_a_run_trains_evaluates_and_leaves_one_folder(finished: tuple[Job, str]) -> None:
    job, output = finished
    assert "run folder: runs/run; look inside with: envsdk view runs/run" in output
    assert "Held-out success, step 0 -> step 5" in output
    job.assert_each_step_once(5)
    rows = {int(row["step"]): row for row in read_metrics(job.run / "metrics.jsonl")}
    assert [step for step, row in rows.items() if "val/success/mean" in row] == [0, 3, 5]
    assert all(rows[step]["staleness/max"] <= 1 for step in range(5))
    assert rows[0]["actor/logprob_gap_max"] < 1e-4
    assert {event.track for event in read_timeline(job.run / "timeline.json")} >= {
        "trainer",
        "generation",
        "publish",
        "validation",
    }
    assert (job.run / "report.html").stat().st_size > 10_000
    assert (job.run / "config.yaml").is_file()
    assert "actor_train: attention by sdpa (flash)" in output
    products = "float32: the checkpoint names float32, not bfloat16"
    assert read_kernels(job.run) == {"actor_train": {"attention": "sdpa (flash)", "products": products}}
    assert list((job.run / "tensorboard").iterdir())


def test_every_evaluation_plays_the_same_held_out_tasks_under_one_version(finished: tuple[Job, str]) -> None:
    job, _ = finished
    evaluations = [
        read_trajectories(job.run / "trajectories" / f"val_{step:06d}.parquet") for step in (0, 3, 5)
    ]
    tasks = [sorted((t.task.tag, t.task.index, t.seed) for t in evaluation) for evaluation in evaluations]
    assert tasks[0] == tasks[1] == tasks[2]
    for step, evaluation in zip((0, 3, 5), evaluations, strict=True):
        assert {int(v) for t in evaluation if t.tokens for v in t.tokens.versions if v >= 0} == {step}
        train_seeds = {t.seed for s in range(5) for t in read_trajectories(job.batch(s))}
        assert train_seeds.isdisjoint(t.seed for t in evaluation)


@pytest.mark.slow
def test_batches_on_disk_train_to_the_same_weights_bit_for_bit(
    finished: tuple[Job, str], tmp_path: Path, model: Path
) -> None:
    job, _ = finished
    again = Job(tmp_path, model)
    shutil.copytree(job.run, again.run)
    for step in (4, 5):
        shutil.rmtree(again.checkpoint(step))
    code, output = again.finish()
    assert code == 0, output
    assert "3 batches on disk are trained first" in output
    assert again.weights(5) == job.weights(5)
    again.assert_each_step_once(5)


@pytest.mark.slow
def test_a_run_that_is_killed_again_continues_where_it_was(tmp_path: Path, model: Path) -> None:
    job = Job(tmp_path, model)
    # The first checkpoint is behind batch 1; a batch reaches the disk before it is trained.
    for last_batch in (1, 3):
        process = job.start()
        wait_until(job.batch(last_batch).is_file, process)
        process.kill()
        process.communicate()
    code, output = job.finish()
    assert code == 0, output
    assert "Held-out success, step 0 -> step 5" in output
    job.assert_each_step_once(5)
    assert not list(job.run.glob("**/.*.partial"))


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_to_the_group_writes_a_checkpoint_and_the_same_command_goes_on(
    tmp_path: Path, model: Path, number: signal.Signals
) -> None:
    """A terminal sends SIGINT to the process group, `timeout` and job schedulers send SIGTERM."""
    job = Job(tmp_path, model, max_steps=40)
    process = job.start("save_steps=0")
    wait_until(job.batch(2).is_file, process)
    os.killpg(process.pid, number)
    output, _ = process.communicate(timeout=120)
    assert process.returncode == 130, output
    assert "the same command continues" in output
    (checkpoint,) = (job.run / "checkpoints").iterdir()
    step = json.loads((checkpoint / "run.json").read_text())["step"]
    assert 2 <= step < 40
    code, output = job.finish(f"max_steps={step + 1}")
    assert code == 0, output
    job.assert_each_step_once(step + 1)


def test_ctrl_c_while_a_run_starts_ends_it_and_leaves_nothing_behind(tmp_path: Path, model: Path) -> None:
    job = Job(tmp_path, model)
    process = job.start()
    wait_until((job.run / "timeline.json").is_file, process)
    started = psutil.Process(process.pid).children(recursive=True)
    os.killpg(process.pid, signal.SIGINT)
    output, _ = process.communicate(timeout=120)
    assert process.returncode == 130, output
    assert "Traceback" not in output
    assert "held-out" not in output  # it did not wait for the first evaluation
    assert not (job.run / "checkpoints").exists()
    _, left = psutil.wait_procs(started, timeout=60)
    assert not left


@pytest.mark.slow
def test_a_synchronous_run_has_no_stale_sample(tmp_path: Path, model: Path) -> None:
    job = Job(tmp_path, model, alpha=0, max_steps=3)
    code, output = job.finish()
    assert code == 0, output
    for row in read_metrics(job.run / "metrics.jsonl"):
        assert row.get("staleness/max", 0) == 0
        assert row["step"] == 3 or row["actor/logprob_gap_max"] < 1e-4


@pytest.mark.slow
def test_a_first_prompt_that_does_not_fit_ends_the_run_with_the_key_to_change(
    tmp_path: Path, model: Path
) -> None:
    job = Job(tmp_path, model, system="word " * 300)
    code, output = job.finish()
    assert code == 2, output
    assert "sequence_length=256" in output
    assert "custom_envs." in output
    assert "Traceback" not in output
    assert not job.batch(0).exists()


@pytest.mark.slow  # by day, test_trainer_group.py has an actor that refuses
def test_what_an_actor_refuses_is_one_clear_message(tmp_path: Path, model: Path) -> None:
    job = Job(tmp_path, model)
    code, output = job.finish("sequence_length=512")
    assert code == 2, output
    assert "max_position_embeddings" in output
    assert "Traceback" not in output
    assert not (job.run / "report.html").exists()


def test_a_finished_run_is_not_overwritten(
    finished: tuple[Job, str], run_here: RunHere, monkeypatch: pytest.MonkeyPatch
) -> None:
    job, _ = finished
    monkeypatch.chdir(job.folder)
    before = (job.run / "metrics.jsonl").read_bytes()
    done = run_here(train, "run.yaml")
    assert done.returncode == 0, done.stderr
    assert "raise max_steps or choose another exp_name" in done.stdout
    done = run_here(train, "run.yaml", "resume=never")
    assert done.returncode == 2
    assert "already holds a run" in done.stderr
    assert (job.run / "metrics.jsonl").read_bytes() == before


@pytest.mark.slow
def test_the_command_of_a_run_whose_last_evaluation_failed_evaluates_again(
    finished: tuple[Job, str], tmp_path: Path, model: Path
) -> None:
    job = Job(tmp_path, model)
    shutil.copytree(finished[0].run, job.run)
    metrics = job.run / "metrics.jsonl"
    rows = [json.loads(line) for line in metrics.read_text().splitlines()]
    scores = {name: value for name, value in rows[-1].items() if name.startswith("val/success")}
    rows[-1] |= {"val/failed": 4.0, "val/episodes": 0.0}
    metrics.write_text("".join(json.dumps(row) + "\n" for row in rows))
    code, output = job.finish()
    assert code == 0, output
    assert "Held-out success, step 0 -> step 5" in output
    again = read_metrics(metrics)
    assert [row["step"] for row in again] == [row["step"] for row in rows]
    assert (again[-1]["val/failed"], again[-1]["val/episodes"]) == (0, 4)
    assert {name: again[-1][name] for name in scores} == scores
    job.assert_each_step_once(5)


@pytest.mark.slow
def test_two_synchronous_runs_with_one_seed_reach_the_same_weights_bit_for_bit(
    tmp_path: Path, model: Path
) -> None:
    weights = []
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
        job = Job(tmp_path / name, model, alpha=0)
        code, output = job.finish()
        assert code == 0, output
        weights.append((job.run / "checkpoints/step_000005/trainer/weights.safetensors").read_bytes())
    assert weights[0] == weights[1]
