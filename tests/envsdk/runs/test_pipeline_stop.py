"""Ctrl-C while nothing is trained: what is waited for is given up, and what was trained is kept."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from envsdk.base.display.progress import ProgressDisplay
from envsdk.config import load_config
from envsdk.contracts.failures import Interrupted
from envsdk.runs.agentic_pipeline import AgenticPipeline
from envsdk.runs.run_folder import RunFolder
from envsdk.tracking.timeline import Timeline

Part = Callable[[AgenticPipeline], Awaitable[Any]]

PARTS: dict[str, Part] = {
    "start": AgenticPipeline.start,
    "publish": AgenticPipeline.publish,
    "validate": AgenticPipeline.validate,
    "get_batch": AgenticPipeline.get_batch,
}


class EndlessBatches:
    """Nothing that is asked of it ever answers."""

    def __init__(self) -> None:
        self.begun = asyncio.Event()
        self.validates = True

    async def _never(self, *args: Any, **keywords: Any) -> Any:
        self.begun.set()
        await asyncio.Event().wait()

    start = publish = validate = get_batch = num_ready = _never

    async def call(self, awaitable: Awaitable[Any]) -> Any:
        return await awaitable


def pipeline_in(tmp_path: Path, batches: Any) -> AgenticPipeline:
    config = load_config("agentic_async.yaml", [f"output_dir={tmp_path}", "validation=overlap"]).config
    return AgenticPipeline(
        config,
        RunFolder.open(config),
        batches,
        SimpleNamespace(groups=[]),  # type: ignore[arg-type]
        tracker=SimpleNamespace(),  # type: ignore[arg-type]
        timeline=Timeline(tmp_path / "timeline.json"),
        display=ProgressDisplay("run", max_steps=1),
    )


@pytest.mark.parametrize("name", PARTS)
async def test_what_a_run_waits_for_is_given_up_at_once(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    batches = EndlessBatches()
    pipeline = pipeline_in(tmp_path, batches)
    running = asyncio.ensure_future(PARTS[name](pipeline))
    await batches.begun.wait()
    pipeline.request_stop()
    with pytest.raises(Interrupted, match="stopped before step 1; the same command continues from there"):
        await running
    assert "checkpoint" not in capsys.readouterr().out
    assert not (pipeline.folder.path / "checkpoints").exists()


@pytest.mark.parametrize("name", ["publish", "validate", "get_batch"])
async def test_what_was_trained_is_kept_first(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    kept: list[int] = []

    async def checkpoint(pipeline: AgenticPipeline) -> None:
        kept.append(pipeline.step)

    monkeypatch.setattr(AgenticPipeline, "checkpoint", checkpoint)
    batches = EndlessBatches()
    pipeline = pipeline_in(tmp_path, batches)
    pipeline.has_trained, pipeline.step = True, 3
    running = asyncio.ensure_future(PARTS[name](pipeline))
    await batches.begun.wait()
    pipeline.request_stop()
    with pytest.raises(Interrupted, match="stopped before step 4"):
        await running
    assert kept == [3]
    assert "Ctrl-C again stops at once" in capsys.readouterr().out


async def test_asked_a_second_time_it_ends_at_once(tmp_path: Path) -> None:
    pipeline = pipeline_in(tmp_path, EndlessBatches())
    pipeline.request_stop()
    with pytest.raises(KeyboardInterrupt):
        pipeline.request_stop()
