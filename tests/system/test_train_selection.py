"""A run that keeps its best weights and evaluates their moving average, with real processes."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from envsdk.base.store.trajectories import read_trajectories
from envsdk.contracts.trainer import TrainerConfig
from envsdk.rollouts.play.model import find_model_folder
from envsdk.tracking import read_metrics
from envsdk.trainers.torch_trainer import TorchTrainer
from tests.system.jobs import Job

pytestmark = [pytest.mark.system, pytest.mark.timeout(600)]

KEYS = (
    "metric_for_best_model=val/reward/mean",
    "eval_steps=1",
    "save_steps=1",
    "max_ckpt_to_keep=0",
    "actor_train.training_args.ema_decay=0.8",
)


def gap(model: Path, trajectories: Path) -> float:
    """How far the log-probabilities of the tokens are from those of this model, at most."""
    trainer = TorchTrainer.create(TrainerConfig(model=model, sequence_length=256, seed=0))
    tokens = [t.tokens for t in read_trajectories(trajectories) if t.tokens is not None]
    found = trainer.logprobs([each.ids for each in tokens])
    return max(
        float(np.abs((logprobs - each.behavior_logprobs)[each.response_mask == 1]).max())
        for logprobs, each in zip(found, tokens, strict=True)
    )


@pytest.mark.parametrize("alpha", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_evaluations_play_the_average_training_plays_the_weights_and_the_best_is_kept(
    alpha: int, tmp_path: Path, model: Path
) -> None:
    job = Job(tmp_path, model, alpha=alpha)
    code, output = job.finish(*KEYS)
    assert code == 0, output
    job.assert_each_step_once(5)
    rows = read_metrics(job.run / "metrics.jsonl")
    val = job.run / "trajectories" / "val_{:06d}.parquet"
    for step in range(1, 6):
        saved = job.checkpoint(step) / "model"
        assert gap(saved, Path(str(val).format(step))) < 1e-4
        if step < 5 and alpha == 0:
            assert rows[step]["actor/logprob_gap_max"] < 1e-4
            assert gap(saved, job.batch(step)) > 1e-4  # an average is not what training plays
    scores = {int(row["step"]): row["val/reward/mean"] for row in rows if "val/reward/mean" in row}
    best = max(scores, key=lambda step: (scores[step], -step))
    assert f"Best val/reward/mean: {scores[best]:.4g} after {best} steps" in output
    if best:
        folder = find_model_folder(job.run / "checkpoints" / "best")
        assert folder.resolve() == (job.checkpoint(best) / "model").resolve()


@pytest.mark.slow  # by day, test_checkpoint_selection.py runs the same loop to an early end, and starts again
def test_a_run_ends_early_and_the_same_command_has_nothing_to_do(tmp_path: Path, model: Path) -> None:
    job = Job(tmp_path, model, alpha=0, max_steps=30)
    keys = (*KEYS, "early_stopping_patience=1", "actor_train.training_args.learning_rate=0.0")
    code, output = job.finish(*keys)
    assert code == 0, output
    assert "stopping early after 1 steps: 1 evaluations in a row did not improve" in output
    assert json.loads((job.checkpoint(1) / "run.json").read_text())["step"] == 1
    assert (job.run / "report.html").is_file()
    code, output = job.finish(*keys)
    assert code == 0, output
    assert "stopped early after 1 steps; raise early_stopping_patience or choose another" in output
