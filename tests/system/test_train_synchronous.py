"""Synchronous runs that keep their best weights and evaluate the moving average, on two devices and on one.

Trainer and engine that take turns on one device: the run is the same as on two, whatever kills it.
"""

from __future__ import annotations

import json
import signal
from pathlib import Path

import numpy as np
import pytest

from envsdk.base.store.trajectories import read_trajectories
from envsdk.contracts.trainer import TrainerConfig
from envsdk.rollouts.play.model import find_model_folder
from envsdk.tracking import read_metrics
from envsdk.trainers.torch_trainer import TorchTrainer
from tests.by_day import by_day
from tests.system.jobs import REPOSITORY, Job, rows

pytestmark = [pytest.mark.system, pytest.mark.timeout(600)]

NUM_STEPS = 2
BEST = (
    "metric_for_best_model=val/reward/mean",
    "eval_steps=1",
    "save_steps=1",
    "max_ckpt_to_keep=0",
    "actor_train.training_args.ema_decay=0.8",
)
APART = (*BEST, "init_kl_coef=0.01", f"max_steps={NUM_STEPS}")
SHARED = (*APART, "actor_train.offload=all", "actor_infer.offload=all", "reference.offload=all")


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
    return job.weights(NUM_STEPS), told, episodes


def gap(model: Path, trajectories: Path) -> float:
    """How far the log-probabilities of the tokens are from those of this model, at most."""
    trainer = TorchTrainer.create(TrainerConfig(model=model, sequence_length=256, seed=0))
    tokens = [t.tokens for t in read_trajectories(trajectories) if t.tokens is not None]
    found = trainer.logprobs([each.ids for each in tokens])
    return max(
        float(np.abs((logprobs - each.behavior_logprobs)[each.response_mask == 1]).max())
        for logprobs, each in zip(found, tokens, strict=True)
    )


@pytest.fixture(scope="module")
def on_two(tmp_path_factory: pytest.TempPathFactory, model: Path) -> tuple[Job, str]:
    job = Job(tmp_path_factory.mktemp("apart"), model, alpha=0)
    code, output = job.finish(*APART)
    assert code == 0, output
    return job, output


@pytest.fixture(scope="module")
def apart(on_two: tuple[Job, str]) -> tuple[object, ...]:
    return results(on_two[0])


def check_selection(job: Job, output: str, num_steps: int, *, is_synchronous: bool) -> None:
    job.assert_each_step_once(num_steps)
    metrics = read_metrics(job.run / "metrics.jsonl")
    val = job.run / "trajectories" / "val_{:06d}.parquet"
    for step in range(1, num_steps + 1):
        saved = job.checkpoint(step) / "model"
        assert gap(saved, Path(str(val).format(step))) < 1e-4
        if step < num_steps and is_synchronous:
            assert metrics[step]["actor/logprob_gap_max"] < 1e-4
            assert gap(saved, job.batch(step)) > 1e-4  # an average is not what training plays
    scores = {int(row["step"]): row["val/reward/mean"] for row in metrics if "val/reward/mean" in row}
    best = max(scores, key=lambda step: (scores[step], -step))
    assert f"Best val/reward/mean: {scores[best]:.4g} after {best} steps" in output
    if best:
        folder = find_model_folder(job.run / "checkpoints" / "best")
        assert folder.resolve() == (job.checkpoint(best) / "model").resolve()


def test_evaluations_play_the_average_training_plays_the_weights_and_the_best_is_kept(
    on_two: tuple[Job, str],
) -> None:
    check_selection(*on_two, NUM_STEPS, is_synchronous=True)


@pytest.mark.slow
@pytest.mark.parametrize("alpha", [0, 1])
def test_the_best_of_more_steps_is_kept_too(alpha: int, tmp_path: Path, model: Path) -> None:
    job = Job(tmp_path, model, alpha=alpha)
    code, output = job.finish(*BEST)
    assert code == 0, output
    check_selection(job, output, 5, is_synchronous=alpha == 0)


@pytest.mark.slow  # by day, test_checkpoint_selection.py runs the same loop to an early end, and starts again
def test_a_run_ends_early_and_the_same_command_has_nothing_to_do(tmp_path: Path, model: Path) -> None:
    job = Job(tmp_path, model, alpha=0, max_steps=30)
    keys = (*BEST, "early_stopping_patience=1", "actor_train.training_args.learning_rate=0.0")
    code, output = job.finish(*keys)
    assert code == 0, output
    assert "stopping early after 1 steps: 1 evaluations in a row did not improve" in output
    assert json.loads((job.checkpoint(1) / "run.json").read_text())["step"] == 1
    assert (job.run / "report.html").is_file()
    code, output = job.finish(*keys)
    assert code == 0, output
    assert "stopped early after 1 steps; raise early_stopping_patience or choose another" in output


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
    count = 3 if phase == "validate" else 2  # an evaluation is the last one
    script = str(REPOSITORY / "tests/system/dying_run.py")
    process = job.start_program(script, str(number.value), phase, str(count), when, "run.yaml", *SHARED)
    output, _ = process.communicate(timeout=300)
    assert process.returncode == (-number if number == signal.SIGKILL else 130), output
    code, output = job.finish(*SHARED)
    assert code == 0, output
    assert results(job) == apart
    assert all(row["time/switch_s"] > 0 for row in rows(job))
    job.assert_each_step_once(NUM_STEPS)
