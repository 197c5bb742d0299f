"""Prompts with verifiable rewards through a whole run: killed, continued, and equal to an undisturbed one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from envsdk.base.store.trajectories import read_trajectories
from envsdk.contracts.trajectory import Trajectory
from envsdk.tracking import read_metrics
from tests.system.jobs import Job, wait_until

pytestmark = [pytest.mark.system, pytest.mark.timeout(600)]

CONFIG = """
exp_name: run
seed: 3
async_generation_ratio: {alpha}
rollout_batch_size: 2
num_return_sequences_in_group: 4
prompt_length: 56
response_length: 8
max_steps: {max_steps}
eval_steps: 2
save_steps: 2
pretrain: {model}
rewards:
  digits: {{worker_cls: "tests.system.toy_rewards:Digits"}}
  short: {{worker_cls: "tests.system.toy_rewards:Short"}}
actor_train:
  data_args: {{file_name: train.jsonl, domain_interleave_probs: {{digits: 0.5, short: 0.5}}}}
  training_args: {{learning_rate: 1.0e-3}}
validation: {{data_args: {{file_name: val.jsonl}}}}
"""


def job_in(folder: Path, model: Path, *, alpha: float = 0) -> Job:
    folder.mkdir(exist_ok=True)
    for split, count in (("train", 40), ("val", 6)):
        rows = [
            {
                "id": f"{split}-{n}",
                "prompt": f"Say {n}.",
                "ground_truth": str(n),
                "tag": ("digits", "short")[n % 2],
            }
            for n in range(count)
        ]
        (folder / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return Job(folder, model, max_steps=4, alpha=alpha, config=CONFIG)


def evaluations(job: Job) -> list[Any]:
    """What was asked, answered and earned in each evaluation."""
    found = [read_trajectories(job.run / "trajectories" / f"val_{step:06d}.parquet") for step in (0, 2, 4)]
    return [sorted(map(_answer, each)) for each in found]


def _answer(trajectory: Trajectory) -> tuple[Any, ...]:
    [turn] = trajectory.turns
    return trajectory.task.tag, trajectory.task.index, turn.observation, turn.reply, turn.reward, turn.details


def killed_and_continued(folder: Path, model: Path) -> Job:
    """Killed between a batch reaching the disk and its training, behind the first checkpoint."""
    job = job_in(folder, model)
    process = job.start()
    wait_until(job.batch(2).is_file, process)
    process.kill()
    process.communicate()
    code, output = job.finish()
    assert code == 0, output
    return job


def test_a_run_on_prompts_asks_every_row_once_an_epoch_and_keeps_each_grade(
    tmp_path: Path, model: Path
) -> None:
    job = job_in(tmp_path, model, alpha=1)
    code, output = job.finish()
    assert code == 0, output
    job.assert_each_step_once(4)
    trained = [t for step in range(4) for t in read_trajectories(job.batch(step))]
    assert len({(t.task.tag, t.turns[0].observation) for t in trained}) == 8
    for trajectory in trained:
        [turn] = trajectory.turns
        details = json.loads(turn.details or "")
        assert details["verdict"] == trajectory.final_observation
        assert turn.observation == f"Say {details['ground_truth']}."
    rows = read_metrics(job.run / "metrics.jsonl")
    assert {"val/reward/digits_val", "val/reward/short_val"} <= set(rows[0])


@pytest.mark.slow
def test_a_killed_run_on_prompts_ends_as_if_nothing_had_happened(tmp_path: Path, model: Path) -> None:
    undisturbed = job_in(tmp_path / "undisturbed", model)
    code, output = undisturbed.finish()
    assert code == 0, output
    job = killed_and_continued(tmp_path / "killed", model)
    assert evaluations(job) == evaluations(undisturbed)
    assert job.weights(4) == undisturbed.weights(4)
