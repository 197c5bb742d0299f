"""A trainer that continues from an earlier checkpoint: explorers play with its weights, not lost ones."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from transformers import AutoModelForCausalLM

from envsdk.base.store.trajectories import read_metadata, read_trajectories
from envsdk.buffer.audit import audit
from envsdk.buffer.places import opened
from envsdk.contracts.trajectory import TokenArrays
from tests.system.jobs import Job, wait_until

pytestmark = [pytest.mark.system, pytest.mark.slow, pytest.mark.timeout(500)]

GONE_TO, NUM_STEPS = 5, 10


TOLERANCE = 1e-3


def logprobs(folder: Path, tokens: TokenArrays) -> NDArray[np.float32]:
    """Of the sampled tokens, under these weights."""
    model = AutoModelForCausalLM.from_pretrained(folder)
    with torch.no_grad():
        logits = model(torch.tensor(tokens.ids[None])).logits[0, :-1]
    found = torch.log_softmax(logits, -1).gather(1, torch.tensor(tokens.ids[1:, None]))[:, 0].numpy()
    return np.asarray(found[np.asarray(tokens.response_mask[1:], bool)])


def largest(differences: NDArray[np.float32]) -> float:
    return float(np.abs(differences).max())


def keep_weights(job: Job, folder: Path, trainer: subprocess.Popen[str]) -> None:
    """Until the trainer has ended, copy each checkpoint's model: only the newest checkpoints stay."""

    def look() -> bool:
        is_over = trainer.poll() is not None
        for checkpoint in sorted((job.run / "checkpoints").glob("step_??????")):
            if not (folder / checkpoint.name).exists():
                part = shutil.copytree(checkpoint / "model", folder / "part")
                part.rename(folder / checkpoint.name)
        return is_over or (folder / f"step_{NUM_STEPS:06d}").exists()

    wait_until(look, trainer)


@pytest.mark.parametrize("method", ["memory", "nccl"])
def test_what_is_new_after_going_back_was_sampled_by_the_weights_of_that_line(
    tmp_path: Path, model: Path, method: str
) -> None:
    job = Job(tmp_path, model, max_steps=NUM_STEPS)
    settings = (f"synchronizer.sync_method={method}", "save_steps=1")
    trainer = job.start("mode=train", *settings)
    programs = [trainer, explorer := job.start("mode=explore", *settings)]
    (weights := tmp_path / "kept").mkdir()
    try:
        wait_until(job.checkpoint(GONE_TO).is_dir, trainer)
        os.killpg(trainer.pid, signal.SIGKILL)
        trainer.wait()
        num_before = len(list((job.run / "trajectories").glob("step_*.parquet")))
        start = min((job.run / "checkpoints").glob("step_??????"))
        # With the same learning rate the same batches would make the same weights again.
        back = (f"resume={start}", "actor_train.training_args.learning_rate=1.0e-2")
        (lost := tmp_path / "lost").mkdir()
        for later in sorted((job.run / "checkpoints").glob("step_??????"))[1:]:
            shutil.move(later, lost / later.name)
        programs.append(again := job.start("mode=train", *settings, *back))
        keep_weights(job, weights, again)
        for process in (again, explorer):
            output, _ = process.communicate(timeout=300)
            assert process.returncode == 0, output
    finally:
        for process in programs:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)

    job.assert_each_step_once(NUM_STEPS)
    with opened(str(job.run / "buffer.db")) as engine:
        assert audit(engine, decode=True) == []
    differences = []
    for step in range(num_before, NUM_STEPS):
        assert int(read_metadata(job.batch(step))["version"]) == step
        for tokens in (trajectory.tokens for trajectory in read_trajectories(job.batch(step))):
            assert tokens is not None
            sampled = np.asarray(tokens.response_mask, bool)
            if len(versions := set(tokens.versions[sampled].tolist())) == 1:
                now = logprobs(weights / f"step_{versions.pop():06d}", tokens)
                differences.append(largest(now - tokens.behavior_logprobs[sampled]))
    assert max(differences) < TOLERANCE
    # Weights that were lost would be noticed: with the same number they are others.
    version = max(each.name for each in lost.iterdir())
    assert tokens is not None
    before, now = (logprobs(each, tokens) for each in (lost / version / "model", weights / version))
    assert largest(now - before) > TOLERANCE
