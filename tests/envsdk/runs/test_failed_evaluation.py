"""An evaluation most of which failed ends the run with an error, after its results are written."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from envsdk.base.display.progress import ProgressDisplay
from envsdk.config import load_config
from envsdk.contracts.failures import Boundary, Failure, RolloutStalled
from envsdk.contracts.trajectory import Outcome, RolloutBatch, Task, Trajectory
from envsdk.runs.agentic_pipeline import AgenticPipeline
from envsdk.runs.run_folder import RunFolder
from envsdk.tracking import JsonlTracker, read_metrics
from envsdk.tracking.timeline import Timeline
from tests.trajectories import trajectory_with

TIMED_OUT = Failure(boundary=Boundary.ENGINE, kind="turn_timeout", message="no reply")


def held_out(num_solved: int, num_failed: int) -> RolloutBatch:
    def episode(index: int, is_failed: bool) -> Trajectory:
        return trajectory_with(
            trajectory_id=f"val-{index}",
            group_id=index,
            task=Task(tag="sums", split="val", index=index),
            outcome=Outcome.FAILED if is_failed else Outcome.TERMINATED,
            success=not is_failed,
            turns=[],
            failure=TIMED_OUT if is_failed else None,
        )

    total = num_solved + num_failed
    return RolloutBatch(version=0, groups=[[episode(index, index >= num_solved)] for index in range(total)])


def pipeline_of(tmp_path: Path, batch: RolloutBatch, *keys: str) -> AgenticPipeline:
    async def validate(version: int, step: int) -> RolloutBatch:
        return batch

    config = load_config("agentic_async.yaml", [f"output_dir={tmp_path}", *keys]).config
    return AgenticPipeline(
        config,
        RunFolder.open(config),
        SimpleNamespace(validates=True, validate=validate),  # type: ignore[arg-type]
        SimpleNamespace(groups=[]),  # type: ignore[arg-type]
        tracker=JsonlTracker(tmp_path / "metrics.jsonl"),
        timeline=Timeline(tmp_path / "timeline.json"),
        display=ProgressDisplay("run", max_steps=1),
    )


@pytest.mark.parametrize("has_trained", [False, True])
async def test_a_run_ends_with_an_error_when_most_of_an_evaluation_failed(
    tmp_path: Path, has_trained: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    kept: list[int] = []

    async def checkpoint(pipeline: AgenticPipeline) -> None:
        kept.append(pipeline.step)

    monkeypatch.setattr(AgenticPipeline, "checkpoint", checkpoint)
    pipeline = pipeline_of(tmp_path, held_out(97, 415))
    pipeline.step, pipeline.has_trained = 160, has_trained
    with pytest.raises(
        RolloutStalled, match=r"415 of 512 episodes failed.*415 engine/turn_timeout"
    ) as raised:
        await pipeline.validate()
    assert raised.value.exit_code == 1
    assert kept == [160] * has_trained
    (row,) = read_metrics(tmp_path / "metrics.jsonl")
    assert (row["step"], row["val/failed"], row["val/num_failed/sums"]) == (160, 415, 415)
    assert "held-out after 160 steps: sums 100.0% of 97, 415 of 512 failed" in capsys.readouterr().out


async def test_a_run_goes_on_when_no_more_failed_than_is_allowed(tmp_path: Path) -> None:
    await pipeline_of(tmp_path, held_out(4, 4)).validate()


async def test_the_configuration_says_how_many_may_fail(tmp_path: Path) -> None:
    await pipeline_of(tmp_path, held_out(1, 7), "max_failed_share=0.9").validate()
    strict: Any = pipeline_of(tmp_path, held_out(7, 1), "max_failed_share=0", "exp_name=other")
    with pytest.raises(RolloutStalled, match="1 of 8 episodes failed"):
        await strict.validate()
