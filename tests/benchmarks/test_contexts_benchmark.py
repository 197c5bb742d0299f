"""The comparison of contexts: its settings, and what it makes of the metrics of its runs."""

from __future__ import annotations

import importlib.util
import json
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from types import ModuleType

import pytest

from envsdk.config import load_config

FILE = Path(__file__).parents[2] / "benchmarks" / "contexts.py"


@pytest.fixture
def contexts(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.setattr(sys, "path", [*sys.path])
    for name in ("axes", "experiment", "figure", "results"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    spec = importlib.util.spec_from_file_location("contexts_benchmark", FILE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def write_metrics(folder: Path, end: float, last_step: int) -> None:
    folder.mkdir(parents=True)
    rows = [
        {"step": step, "val/success/mean": end * step / 25, "rollout/num_segments_mean": 5.0}
        for step in range(0, last_step + 1, 5)
    ]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def test_the_three_tags_differ_in_their_context_alone() -> None:
    config = load_config(FILE.with_suffix(".yaml")).config
    rooms = [config.custom_envs[tag] for tag in ("Append", "Window", "Compact")]
    assert [room.context for room in rooms] == ["append", "window", "compact"]
    assert len({str(room.env_config) + room.agent_system_template for room in rooms}) == 1


def test_runs_that_have_not_ended_are_in_no_figure(
    contexts: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert contexts.main(["--out", str(tmp_path), "--only-report"]) == 1
    for context, seed, end in (("append", 1, 0.2), ("window", 1, 0.4), ("window", 2, 0.6)):
        write_metrics(contexts.run_folder(tmp_path, context, seed), end, last_step=25)
    write_metrics(contexts.run_folder(tmp_path, "compact", 1), 0.9, last_step=20)
    assert contexts.main(["--out", str(tmp_path), "--only-report"]) == 0
    told = capsys.readouterr().out
    assert "| `window` | 2 | 0.0% (0% to 0%) | 50.0% (40% to 60%) | 5.0 |" in told
    assert "compact" not in told
    picture = ElementTree.fromstring((tmp_path / "contexts.svg").read_text())
    paths = [each for each in picture.iter() if each.get("class", "").startswith("curve")]
    assert [each.get("class") for each in paths] == ["curve s0", "curve s1"]
