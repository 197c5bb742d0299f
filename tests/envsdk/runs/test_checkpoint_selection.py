"""The choice of the best checkpoint, and when a run stops for want of progress."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envsdk.base.display.progress import ProgressDisplay
from envsdk.config import load_config
from envsdk.config.loading import LoadedConfig
from envsdk.contracts.failures import ConfigurationError
from envsdk.runs.agentic_pipeline import AgenticPipeline
from envsdk.runs.run import best_checkpoint
from envsdk.runs.run import run as train
from envsdk.runs.run_folder import RunFolder, stopped_early
from envsdk.runs.selection import Selection
from envsdk.tracking.timeline import Timeline

METRIC = "val/success/mean"


def load(*overrides: str) -> LoadedConfig:
    return load_config("agentic_async.yaml", [f"metric_for_best_model={METRIC}", *overrides])


@given(
    values=st.lists(st.integers(0, 5), min_size=1, max_size=12),
    greater=st.booleans(),
    patience=st.none() | st.integers(1, 4),
    again=st.integers(0, 11),
)
def test_it_is_over_when_the_best_value_is_as_many_evaluations_old_as_the_patience(
    values: list[int], greater: bool, patience: int | None, again: int
) -> None:
    selection = Selection(metric=METRIC, greater_is_better=greater, patience=patience)
    best, since = None, 0
    for step, value in enumerate(values):
        selection = selection.with_evaluation(step, {METRIC: float(value)})
        if step == again:  # a run that continues evaluates its first step again
            stored = json.loads(json.dumps(selection.state()))
            config = load().config.model_copy(
                update={"greater_is_better": greater, "early_stopping_patience": patience}
            )
            selection = Selection.of(config, stored).with_evaluation(step, {METRIC: float(value)})
        if best is None or (value > values[best] if greater else value < values[best]):
            best, since = step, 0
        else:
            since += 1
        assert selection.best_step == best
        assert selection.is_over == (patience is not None and since >= patience)


def test_values_of_another_metric_do_not_count() -> None:
    selection = Selection(metric="val/reward/mean").with_evaluation(4, {"val/reward/mean": 7.0})
    assert Selection.of(load().config, selection.state()).best_step is None
    assert Selection(metric=None).with_evaluation(4, {}).state() is None


def test_a_metric_that_evaluations_do_not_have_is_named_with_those_that_they_have() -> None:
    with pytest.raises(ConfigurationError, match="`val/env/pushes`; it has val/success/mean"):
        Selection(metric="val/env/pushes").with_evaluation(0, {METRIC: 0.5})


DECAY = "actor_train.training_args.ema_decay"
MEGATRON = "actor_train.strategy_args.strategy_name=megatron_train"


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (["metric_for_best_model=val/succes/mean"], "did you mean `val/success/mean`"),
        (["metric_for_best_model=val/success/SimpelSokoban"], "did you mean `val/success/SimpleSokoban`"),
        (["early_stopping_patience=2", "val_batch_size=0"], "it needs val_batch_size above 0"),
        (["early_stopping_patience=2", "metric_for_best_model=null"], "it needs metric_for_best_model"),
        (["early_stopping_patience=2", "eval_steps=0"], "it needs eval_steps above 0"),
        ([f"{DECAY}=0.9", "validation=overlap"], "take `validation: pause`"),
        ([f"{DECAY}=1.0"], "less than 1"),
        ([f"{DECAY}=0.9", MEGATRON], "`megatron_train` keeps no average"),
    ],
)
def test_what_cannot_work_is_refused_before_the_start(overrides: list[str], said: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        load(*overrides)
    assert said in str(caught.value)


def test_a_file_that_names_a_metric_may_be_run_without_evaluations() -> None:
    assert load("val_batch_size=0").config.metric_for_best_model == METRIC


class Scores:
    """Evaluations and trainers that are only numbers: each step is scored by its place in a list."""

    validates = True

    def __init__(self, scores: Mapping[int, float]) -> None:
        self.scores = scores
        self.trained: list[int] = []

    async def publish(self, version: int, *, step: int) -> dict[str, float]:
        return {}

    async def call(self, awaitable: Any) -> Any:
        return await awaitable

    async def checkpointed(self, step: int) -> None:
        return None

    async def finished(self) -> None:
        return None

    async def save(self, folder: Path) -> None:
        (folder / "model").mkdir()


def run(tmp_path: Path, scores: Scores, *overrides: str, until: int | None = None) -> AgenticPipeline:
    """A run that only evaluates; `until`: it is killed when it is about to train that step."""
    config = load(f"output_dir={tmp_path}", "max_steps=10", "eval_steps=1", *overrides).config
    pipeline = AgenticPipeline(
        config,
        RunFolder.open(config),
        scores,  # type: ignore[arg-type]
        SimpleNamespace(groups=[], actor=scores),  # type: ignore[arg-type]
        tracker=SimpleNamespace(log=lambda *_, **__: None),  # type: ignore[arg-type]
        timeline=Timeline(tmp_path / "timeline.json"),
        display=ProgressDisplay("run", max_steps=10),
    )

    async def validate() -> None:
        pipeline.validations[pipeline.step] = {METRIC: scores.scores[pipeline.step]}

    async def train() -> None:
        if pipeline.step == until:
            raise KeyboardInterrupt
        scores.trained.append(pipeline.step)

    async def nothing(*_: Any) -> None:
        pipeline.log.metrics.clear()

    pipeline.validate = validate  # type: ignore[method-assign]
    pipeline.get_batch = nothing  # type: ignore[method-assign, assignment]
    pipeline.train = lambda _: train()  # type: ignore[method-assign, assignment]
    pipeline.log.step_done = nothing  # type: ignore[method-assign, assignment]
    asyncio.run(pipeline.run())
    return pipeline


RISE_AND_FALL = {step: 1.0 - abs(step - 4) / 10 for step in range(11)}


def best(pipeline: AgenticPipeline) -> str:
    return (pipeline.folder.path / "checkpoints" / "best").readlink().name


def test_a_run_keeps_the_weights_of_its_best_evaluation(tmp_path: Path) -> None:
    pipeline = run(tmp_path, Scores(RISE_AND_FALL), "save_steps=5", "max_ckpt_to_keep=1")
    assert best(pipeline) == "step_000004"
    kept = sorted(path.name for path in (pipeline.folder.path / "checkpoints").glob("step_*"))
    assert kept == ["step_000004", "step_000010"]
    line = best_checkpoint(pipeline.selection, pipeline.folder.path)
    assert line == f"Best {METRIC}: 1 after 4 steps, {pipeline.folder.path}/checkpoints/best"


def test_patience_ends_a_run_and_a_killed_run_ends_at_the_same_step(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    keys = ("early_stopping_patience=3", "save_steps=2")
    whole = Scores(RISE_AND_FALL)
    pipeline = run(tmp_path / "whole", whole, *keys)
    assert (pipeline.step, whole.trained, best(pipeline)) == (7, list(range(7)), "step_000004")
    assert "stopping early after 7 steps: 3 evaluations in a row did not improve" in capsys.readouterr().out

    parts = Scores(RISE_AND_FALL)
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path / "parts", parts, *keys, until=6)
    again = run(tmp_path / "parts", parts, *keys)
    assert (again.step, best(again), again.selection) == (7, "step_000004", pipeline.selection)


def test_the_same_command_starts_nothing_after_an_early_end(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    keys = ("early_stopping_patience=3", "save_steps=2")
    pipeline = run(tmp_path, Scores(RISE_AND_FALL), *keys)
    row = {"step": 7, "val/episodes": 8.0, METRIC: RISE_AND_FALL[7]}
    (pipeline.folder.path / "metrics.jsonl").write_text(json.dumps(row) + "\n")
    more = load(f"output_dir={tmp_path}", "early_stopping_patience=5").config
    assert stopped_early(pipeline.config, RunFolder.open(pipeline.config))
    assert not stopped_early(more, RunFolder.open(more))
    train(load(f"output_dir={tmp_path}", "max_steps=10", "eval_steps=1", *keys))
    said = capsys.readouterr().out
    assert "stopped early after 7 steps; raise early_stopping_patience or choose another" in said
    assert (pipeline.folder.path / "report.html").is_file()


def test_a_run_that_never_improves_has_no_best_checkpoint(tmp_path: Path) -> None:
    pipeline = run(tmp_path, Scores(dict.fromkeys(range(11), 0.5)))
    assert not (pipeline.folder.path / "checkpoints" / "best").is_symlink()
    assert "the model that the run began with" in best_checkpoint(pipeline.selection, pipeline.folder.path)
