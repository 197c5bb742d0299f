"""`envsdk compare`: which runs belong together, and what is said of their difference."""

from __future__ import annotations

import json
import math
import re
import statistics
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from envsdk.base.store.trajectories import write_trajectories
from envsdk.contracts.failures import Boundary, Failure
from envsdk.contracts.trajectory import Task
from envsdk.view.compare import main
from envsdk.view.comparison import Run, grouped, over_seeds, over_tasks, sparkline, t_quantile
from tests.envsdk.test_report import make_trajectory

METRIC = "val/success/mean"


def run(name: str, **config: Any) -> Run:
    return Run(name=name, config=config, metrics=())


def test_runs_that_differ_in_the_seed_alone_are_one_group_named_by_what_differs() -> None:
    runs = [
        run("a", seed=1, warm_start={"seed": 1}, args={"rate": 0.1}, max_steps=8),
        run("b", seed=1, warm_start={"seed": 1}, args={"rate": 0.2}, max_steps=8),
        run("c", seed=2, warm_start={"seed": 2}, args={"rate": 0.1}, max_steps=9),
    ]
    groups = grouped(runs)
    assert [(group.label, [each.name for each in group.runs]) for group in groups] == [
        ("rate 0.1", ["a", "c"]),
        ("rate 0.2", ["b"]),
    ]
    many = [run("a", a=1, b=1, c=1, d=1), run("b", a=2, b=2, c=2, d=2), run("c")]
    assert [group.label for group in grouped(many)] == ["a", "b", "c"]
    assert [group.title for group in grouped(runs)] == ["rate 0.1 (a, c)", "rate 0.2 (b)"]
    assert [group.title for group in grouped([*many, run("d")])] == ["a", "b", "c, d"]


@pytest.mark.parametrize(
    ("freedom", "expected"),
    [(1, 12.7062), (2, 4.30265), (3, 3.18245), (4, 2.77645), (7.5, 2.33283), (30, 2.04227), (1000, 1.96234)],
)
def test_quantiles_are_those_of_the_tables(freedom: float, expected: float) -> None:
    assert t_quantile(freedom) == pytest.approx(expected, rel=2e-4)


def test_seeds_that_both_have_are_compared_as_pairs() -> None:
    ours, theirs = {"1": 0.5, "2": 0.7, "3": 0.9, "9": 0.0}, {"3": 0.8, "2": 0.5, "1": 0.4}
    found = over_seeds(ours, theirs)
    assert found is not None
    spread = 4.30265 * statistics.stdev([0.1, 0.2, 0.1]) / math.sqrt(3)
    assert found.mean == pytest.approx(0.4 / 3)
    assert found.interval == pytest.approx((0.4 / 3 - spread, 0.4 / 3 + spread), rel=1e-3)
    assert found.method == "paired t over 3 seeds"
    assert not found.is_significant


def test_other_seeds_are_compared_by_welch() -> None:
    """The degrees of freedom are those of Welch and Satterthwaite."""
    found = over_seeds({"1": 0.50, "2": 0.52, "3": 0.54}, {"4": 0.1, "5": 0.2})
    assert found is not None
    a, b = 0.0004 / 3, 0.005 / 2
    spread = t_quantile((a + b) ** 2 / (a**2 / 2 + b**2)) * math.sqrt(a + b)
    assert found.interval == pytest.approx((0.37 - spread, 0.37 + spread))
    assert found.method == "Welch's t over 3 and 2 seeds"
    assert over_seeds({"1": 0.5}, {"1": 0.4, "2": 0.4}) is None


@given(
    values=st.lists(
        st.tuples(st.sampled_from("ab"), st.floats(0, 1), st.floats(0, 1)), min_size=2, max_size=30
    )
)
def test_an_interval_over_tasks_weighs_each_tag_the_same_and_turns_with_the_sides(
    values: list[tuple[str, float, float]],
) -> None:
    ours = {(tag, number): one for number, (tag, one, _) in enumerate(values)}
    theirs = {(tag, number): other for number, (tag, _, other) in enumerate(values)}
    found, turned = over_tasks(ours, theirs), over_tasks(theirs, ours)
    assert found is not None
    assert turned is not None
    tags = {tag for tag, *_ in values}
    by_tag = [statistics.fmean(one - other for t, one, other in values if t == tag) for tag in tags]
    assert found.mean == pytest.approx(statistics.fmean(by_tag), abs=1e-12)
    assert found.interval[0] - 1e-9 <= found.mean <= found.interval[1] + 1e-9
    assert found.interval == pytest.approx((-turned.interval[1], -turned.interval[0]), abs=1e-9)


def test_pairs_need_fewer_tasks_than_strangers() -> None:
    rng = np.random.default_rng(1)
    hardness = rng.random(200)
    ours = {("a", task): float(hard < 0.6) for task, hard in enumerate(hardness)}
    theirs = {("a", task): float(hard < 0.5) for task, hard in enumerate(hardness)}
    paired = over_tasks(ours, theirs)
    unpaired = over_tasks(ours, {(tag, task + 1000): value for (tag, task), value in theirs.items()})
    assert paired is not None
    assert unpaired is not None
    assert paired.mean == pytest.approx(unpaired.mean)
    width = [found.interval[1] - found.interval[0] for found in (paired, unpaired)]
    assert width[0] < 0.6 * width[1]
    assert (paired.method, unpaired.method) == (
        "paired bootstrap over 200 tasks",
        "bootstrap over unpaired tasks",
    )
    # A mean of n is normal within +- 1.96 standard errors, up to terms of 1 / n.
    spread = statistics.stdev(ours[task] - theirs[task] for task in ours) / math.sqrt(200)
    assert width[0] == pytest.approx(2 * 1.96 * spread, rel=0.1)


def test_a_sparkline_is_as_high_as_its_values() -> None:
    assert sparkline([0.0, 0.5, 1.0], 0.0, 1.0) == "▁▅█"
    assert sparkline([0.3, 0.3], 0.3, 0.3) == "▁▁"


def write_run(folder: Path, num_solved: int, *, seed: int, **config: Any) -> Path:
    (folder / "trajectories").mkdir(parents=True)
    (folder / "config.yaml").write_text(yaml.safe_dump({"seed": seed, **config}))
    tasks = [
        replace(
            make_trajectory(number, "FrozenLake", success=number < num_solved, num_turns=1),
            seed=1000 * seed + number,
            task=Task(tag="FrozenLake", split="val", index=number),
        )
        for number in range(20)
    ]
    failure = Failure(boundary=Boundary.ENVIRONMENT, kind="crash", message="")
    tasks.append(replace(tasks[0], trajectory_id="failed", failure=failure, success=True))
    write_trajectories(folder / "trajectories" / "val_000004.parquet", tasks)
    rate = num_solved / 20
    rows = [{"step": 0, METRIC: 0.1}, {"step": 2, "success/mean": 0.4}, {"step": 4, METRIC: rate}]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


@pytest.fixture
def runs(tmp_path: Path) -> list[str]:
    (tmp_path / "x").mkdir()
    return [
        str(write_run(tmp_path / name, count, seed=seed, adv_estimator=name[:-1]))
        for name, seed, count in (("grpo1", 1, 8), ("grpo2", 2, 9), ("gigpo1", 1, 14), ("gigpo2", 2, 14))
    ]


def test_groups_are_compared_over_seeds_and_the_page_holds_their_bands(
    runs: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "comparison.html"
    assert main([*runs, "--out", str(out)]) == 0
    said = capsys.readouterr().out
    assert re.search(r"adv_estimator grpo +runs: 2 +▁▅  42\.5% \(40\.0% to 45\.0%\)", said)
    assert "adv_estimator gigpo against adv_estimator grpo" in said
    assert "+27.5 points, not significant (95% interval -4.3 to +59.3, paired t over 2 seeds)" in said
    assert "These runs alone: +27.5 points, significant" in said
    page = out.read_text()
    assert "default-src 'none'" in page
    assert not re.search(r"(src|href)=\"http", page)
    held = re.search(r'<script type="application/json" id="data">(.*?)</script>', page)
    assert held is not None
    charts = json.loads(held[1])["charts"]
    assert [chart["title"] for chart in charts] == [METRIC, "success/mean"]
    assert charts[0]["series"][0]["band"] == [[0, 0.1, 0.1], [4, 0.4, 0.45]]


def test_a_single_pair_of_runs_speaks_of_these_runs(
    runs: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([runs[0], runs[2], "-o", str(tmp_path / "c.html")]) == 0
    said = capsys.readouterr().out
    assert "Of these runs, not of other seeds: +30.0 points, significant" in said
    assert "paired bootstrap over 20 tasks" in said
    assert main([runs[0], runs[3], "-o", str(tmp_path / "c.html")]) == 0
    assert "bootstrap over unpaired tasks" in capsys.readouterr().out


def test_what_cannot_be_compared_is_said(
    runs: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*runs, "--metric", "val/succes/mean"]) == 2
    assert "did you mean `val/success/mean`?" in capsys.readouterr().err
    assert main([runs[0]]) == 2
    assert "at least 2" in capsys.readouterr().err
    assert main([runs[0], str(tmp_path / "x")]) == 2
    assert "is not a run folder" in capsys.readouterr().err


def test_runs_that_share_only_the_untrained_model_are_not_judged(
    runs: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [{"step": 0, METRIC: 0.1}, {"step": 3, METRIC: 0.2}]
    other = Path(runs[2], "metrics.jsonl")
    other.write_text("".join(json.dumps(row) + "\n" for row in rows))
    out = ["-o", str(tmp_path / "c.html")]
    assert main([runs[0], runs[2], *out]) == 0
    said = capsys.readouterr().out
    assert "share only step 0" in said
    assert "grpo1: later steps 4" in said
    assert "gigpo1: later steps 3" in said
    assert "significant" not in said
    other.write_text(json.dumps({"step": 1, "success/mean": 0.2}) + "\n")
    assert main([runs[0], runs[2], *out]) == 2
    assert re.search(r"gigpo1\s+has\s+no\s+evaluations", capsys.readouterr().err)
