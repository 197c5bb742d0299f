"""A step whose trajectories masks leave out altogether: nothing is trained, and the display says why."""

from __future__ import annotations

from collections.abc import Awaitable
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from envsdk.base.display.progress import ProgressDisplay
from envsdk.config import load_config
from envsdk.contracts.trajectory import Task, TokenLog, Trajectory, Turn, VersionSpan
from envsdk.runs.agentic_pipeline import AgenticPipeline
from envsdk.runs.run_folder import RunFolder
from envsdk.runs.trainers import Trainers
from envsdk.tracking.timeline import Timeline
from tests.trajectories import trajectory_with


def episode(reward: float, group: int) -> Trajectory:
    log = TokenLog()
    log.append_prompt([1, 2])
    log.append_sampled([3], [-0.5], [VersionSpan(version=0, start=0, end=1)])
    return trajectory_with(
        trajectory_id=f"train-{group}",
        group_id=group,
        task=Task(tag="FrozenLake", split="train", index=group),
        success=reward > 0,
        turns=[Turn(observation="o", reply="r", reward=reward, response_start=2, response_end=3)],
        tokens=log.arrays(),
    )


class CountingTrainer:
    """Counts the training steps that it is asked for."""

    def __init__(self) -> None:
        self.sizes: list[int] = []

    async def train_step(self, batch: Any) -> dict[str, float]:
        self.sizes.append(len(batch.sequences))
        return {"actor/loss": 0.5}


async def call(awaitable: Awaitable[Any]) -> Any:
    return await awaitable


async def test_a_step_that_masks_leave_empty_trains_nothing_and_says_why(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = load_config("agentic_async.yaml", [f"output_dir={tmp_path}", "difficulty_mask=true"]).config
    trainer = CountingTrainer()
    batches = SimpleNamespace(call=call, weights_moving=nullcontext)
    pipeline = AgenticPipeline(
        config,
        RunFolder.open(config),
        batches,  # type: ignore[arg-type]
        Trainers(trainer, None),  # type: ignore[arg-type]
        tracker=SimpleNamespace(),  # type: ignore[arg-type]
        timeline=Timeline(tmp_path / "timeline.json"),
        display=ProgressDisplay("run", max_steps=1),
    )
    solved = [episode(1.0, 0), episode(1.0, 0)]
    await pipeline.train(SimpleNamespace(trajectories=solved))  # type: ignore[arg-type]
    assert trainer.sizes == []
    assert pipeline.log.metrics["advantage/masked_difficulty"] == 1.0
    shown = " ".join(capsys.readouterr().out.split())
    assert "step 1: masks leave out all 2 trajectories of the batch (difficulty_mask 2)" in shown
    await pipeline.train(
        SimpleNamespace(trajectories=[*solved, episode(1.0, 1), episode(0.0, 1)])  # type: ignore[arg-type]
    )
    assert trainer.sizes == [2]
    assert pipeline.log.metrics["actor/loss"] == 0.5
    assert pipeline.log.metrics["advantage/masked"] == 0.5
