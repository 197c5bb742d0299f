"""Estimators that need more than rewards, in a real run: state hashes, a reference model, a value head."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from safetensors.numpy import load_file

from envsdk.base.store.trajectories import read_trajectories
from envsdk.tracking import read_metrics
from tests.system.jobs import Job

pytestmark = [pytest.mark.slow, pytest.mark.system, pytest.mark.timeout(600)]

GIGPO = (
    "adv_estimator=gigpo",
    "gamma=0.95",
    "init_kl_coef=0.05",
    "target_kl=0.001",
    "kl_horizon=20",
    "loss_agg_mode=trajectory-mean-token-mean",
    "difficulty_weight=hard",
)
GAE = ("adv_estimator=gae", "critic_warmup=2", "gae_level=turn", "lambd=0.95", "reward_normalize_std=tag")


def finish_again_from_step_2(job: Job, folder: Path, model: Path, *overrides: str) -> Job:
    """The same run continued by a second process from its checkpoint after two of four steps."""
    again = Job(folder, model, max_steps=4)
    shutil.copytree(job.run, again.run)
    shutil.rmtree(again.checkpoint(4))
    code, output = again.finish(*overrides)
    assert code == 0, output
    return again


def test_gigpo_with_an_adapted_kl_weight_continues_bit_for_bit(tmp_path: Path, model: Path) -> None:
    (tmp_path / "first").mkdir()
    (tmp_path / "again").mkdir()
    job = Job(tmp_path / "first", model, max_steps=4)
    code, output = job.finish(*GIGPO)
    assert code == 0, output
    for trajectory in read_trajectories(job.batch(0)):
        assert all(turn.state_hash for turn in trajectory.turns)
    rows = [row for row in read_metrics(job.run / "metrics.jsonl") if "kl_reward/coef" in row]
    coefs = [row["kl_reward/coef"] for row in rows]
    for before, after, row in zip(coefs, coefs[1:], rows, strict=False):
        error = min(0.2, max(-0.2, row["kl_reward/kl_per_token"] / 0.001 - 1))
        assert after == pytest.approx(before * (1 + error * 8 / 20))
    assert coefs[0] == 0.05
    assert len(set(coefs)) == 4

    again = finish_again_from_step_2(job, tmp_path / "again", model, *GIGPO)
    states = [json.loads((each.checkpoint(4) / "run.json").read_text()) for each in (job, again)]
    assert states[0]["kl_coef"] == states[1]["kl_coef"]
    assert again.weights(4) == job.weights(4)


def test_a_critic_warms_up_before_the_policy_learns(tmp_path: Path, model: Path) -> None:
    (tmp_path / "first").mkdir()
    (tmp_path / "again").mkdir()
    job = Job(tmp_path / "first", model, max_steps=4)
    code, output = job.finish(*GAE)
    assert code == 0, output
    rows = [row for row in read_metrics(job.run / "metrics.jsonl") if "critic/loss" in row]
    assert [row["step"] for row in rows] == [0, 1, 2, 3]
    initial = {name: array.tobytes() for name, array in load_file(model / "model.safetensors").items()}
    assert job.weights(2) == initial
    assert job.weights(4) != initial
    again = finish_again_from_step_2(job, tmp_path / "again", model, *GAE)
    assert again.weights(4) == job.weights(4)
