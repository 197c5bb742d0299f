from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from envsdk.config.loading import load_config
from envsdk.contracts.failures import EnvsdkError, Interrupted
from envsdk.contracts.trajectory import RolloutBatch
from envsdk.runs.run import ending_told
from envsdk.runs.step_log import StepLog
from envsdk.tracking import Ending, open_trackers, read_metrics
from envsdk.tracking.timeline import Timeline, Track
from tests.envsdk.tracking.episodes import episode

ROOT = Path(__file__).parents[3]


class Batches:
    """A source of batches without engines of its own."""

    async def engine_status(self) -> None:
        return None


async def play(folder: Path, first_step: int, *, num_steps: int = 1, **fields: Any) -> list[str]:
    """Steps with an evaluation of one episode, and the end of the run; what the display was told."""
    loaded = load_config(
        ROOT / "examples/agentic_async.yaml",
        [f"output_dir={folder}", "exp_name=lake", "trackers=[jsonl]", "prices={policy: {input: 1e6}}"],
    )
    run_dir = loaded.config.run_folder
    run_dir.mkdir(parents=True, exist_ok=True)
    notes = list[str]()
    display = SimpleNamespace(note=notes.append, step=lambda summary: None)
    tracker = open_trackers(loaded.config.trackers, run_dir, loaded.config.tracker_args)
    with Timeline(run_dir / "timeline.json") as timeline:
        log = StepLog(
            loaded.config,
            cast(Any, Batches()),
            first_step=first_step,
            tracker=cast(Any, tracker),
            timeline=timeline,
            display=cast(Any, display),
        )
        for step in range(first_step, first_step + num_steps):
            group = [replace(episode(), **fields)]
            batch = RolloutBatch(version=step, groups=[group], discarded_tokens=100)
            log.played(batch)
            log.metrics["time/step_s"] = 1.0
            await log.step_done(step, batch)
    tracker.close()
    return notes


async def test_a_run_says_once_that_programs_ended_with_another_exit_code_than_0(tmp_path: Path) -> None:
    end = (
        '<episode exit_status="NonZeroExit">\nThe harness mine ended with exit code 1: no disk.\n<submission>'
    )
    notes = await play(tmp_path, 0, num_steps=2, final_observation=end)
    (note,) = [each for each in notes if "exit code" in each]
    assert note.startswith("warning: the programs of 1 of 1 episodes ended with an exit code other than 0: ")
    assert note.endswith("exit code 1: no disk.")


async def test_a_step_is_charged_with_its_evaluation_and_a_continued_run_adds_to_the_total(
    tmp_path: Path,
) -> None:
    for first_step in (0, 1):
        await play(tmp_path, first_step)
    first, second = read_metrics(tmp_path / "lake" / "metrics.jsonl")
    assert first["cost/input_tokens"] == 60.0
    assert first["cost/output_tokens"] == 118.0
    assert (first["cost/total"], second["cost/total"]) == (60.0, 120.0)


def test_a_time_is_right_when_the_clock_is_set_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    day, since_boot = iter([1e6, 0.0, 2e6, 9e6]), iter([0.0, 10.0, 13.0, 20.0, 21.0])
    clock = SimpleNamespace(time=lambda: next(day), monotonic=lambda: next(since_boot))
    monkeypatch.setattr("envsdk.runs.step_log.time", clock)
    monkeypatch.setattr("envsdk.runs.step_log.cost_meter", lambda *_: None)
    spans: list[tuple[float, float]] = []
    timeline = SimpleNamespace(span=lambda track, name, start, end, **_: spans.append((start, end)))
    nothing = cast(Any, None)
    log = StepLog(
        nothing, nothing, first_step=0, tracker=nothing, timeline=cast(Any, timeline), display=nothing
    )
    for _ in range(2):
        with log.timed("train", Track.TRAINER, 0):
            next(day, None)
    assert log.metrics == {"time/train_s": 4.0}
    assert spans == [(1e6, 1e6 + 3), (2e6, 2e6 + 1)]


@pytest.mark.parametrize(
    ("error", "ending"),
    [(Interrupted("stopped"), Ending.STOPPED), (KeyboardInterrupt(), Ending.STOPPED),
     (EnvsdkError("broken"), Ending.FAILED)],
)  # fmt: skip
def test_what_the_user_stops_has_not_failed(error: BaseException, ending: Ending) -> None:
    told: list[tuple[Ending, str]] = []
    tracker = SimpleNamespace(end=lambda ending, reason="": told.append((ending, reason)))
    with pytest.raises(type(error)), ending_told(cast(Any, tracker)):
        raise error
    assert [each for each, _ in told] == [ending]
