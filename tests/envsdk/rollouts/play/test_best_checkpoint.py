"""A run whose first model is its best has no `checkpoints/best`, and that is said where it is named."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from envsdk.base.store.best import why_no_best
from envsdk.contracts.failures import ConfigurationError
from envsdk.rollouts.play.model import find_model_folder
from envsdk.rollouts.play.model_server import find_model


def write_run(run: Path, scores: dict[str, float], config: str = "seed: 1") -> Path:
    checkpoint = run / "checkpoints" / "step_000002"
    checkpoint.mkdir(parents=True)
    state = {"step": 2, "number": 1, "selection": {"metric": "val/success/mean", "scores": scores}}
    (checkpoint / "run.json").write_text(json.dumps(state))
    (run / "config.yaml").write_text(config)
    (run / "origin.json").write_text(json.dumps({"model": "/models/first"}))
    return run / "checkpoints" / "best"


@pytest.mark.parametrize("find", [find_model_folder, lambda path: find_model(str(path))])
def test_a_best_checkpoint_that_is_absent_names_the_first_model(
    find: Callable[[Path], object], tmp_path: Path
) -> None:
    with pytest.raises(ConfigurationError, match=r"step 0, the model .* name it: /models/first"):
        find(write_run(tmp_path, {"0": 0.5, "2": 0.5}))


def test_nothing_is_said_where_another_step_is_best(tmp_path: Path) -> None:
    assert why_no_best(write_run(tmp_path, {"0": 0.5, "2": 0.4}, "greater_is_better: false")) is None
