"""The staleness experiment: its matrix, its arithmetic, its figure, and what it does when a run fails."""

from __future__ import annotations

import importlib.util
import json
import sys
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

FOLDER = Path(__file__).parents[2] / "benchmarks" / "staleness"


@pytest.fixture(scope="module")
def modules() -> Iterator[dict[str, ModuleType]]:
    """The modules of the folder, which import one another by their bare names."""
    names = ("experiment", "results", "axes", "figure", "__main__")
    loaded = {}
    for name in names:
        known_as = "staleness_main" if name == "__main__" else name
        spec = importlib.util.spec_from_file_location(known_as, FOLDER / f"{name}.py")
        assert spec is not None
        assert spec.loader is not None
        sys.modules[known_as] = loaded[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(loaded[name])
    yield loaded
    for name in loaded:
        sys.modules.pop("staleness_main" if name == "__main__" else name)


def rows(successes: dict[int, float], num_steps: int, *, staleness: float = 0.0) -> list[dict[str, float]]:
    """Metrics as a run writes them: an evaluation and a training step may share a row."""
    made = []
    for step in range(num_steps + 1):
        row: dict[str, float] = {"step": step}
        if step in successes:
            row |= {"val/success/mean": successes[step], "time/validate_s": 2.0}
        if step < num_steps:
            row |= {
                "actor/loss": 0.1,
                "time/step_s": (9.0 if step == 0 else 0.5) + (2.0 if step in successes else 0.0),
                "staleness/mean": min(staleness, step),
                "success/mean": 0.5,
            }
            if step % 2:
                row["actor/off_policy_fraction"] = 0.1 * staleness
        made.append(row)
    return made


@pytest.fixture
def result(modules):
    def make(
        variant: str, alpha: int, seed: int, successes: dict[int, float], *, alone: bool = True
    ) -> object:
        cell = modules["experiment"].Cell(variant=variant, alpha=alpha, seed=seed)
        record = modules["experiment"].Record(
            cell=cell, overrides=(), wall_s=30.0 + seed, alone=alone, load_average=0.1, load_average_after=2.0
        )
        return modules["results"].run_result(record, rows(successes, 12, staleness=alpha))

    return make


def test_a_part_of_the_matrix_compares_every_variant_and_alpha(modules) -> None:
    experiment = modules["experiment"]
    names = [one.name for one in experiment.VARIANTS]
    matrix = experiment.cells(names, experiment.ALPHAS, experiment.SEEDS)
    assert len({cell.name for cell in matrix}) == len(matrix) == 39
    assert {cell.seed for cell in matrix[:13]} == {1}
    assert {(cell.variant, cell.alpha) for cell in matrix[:13]} == {
        (names[0], 0),
        *((n, a) for n in names for a in (1, 2, 4)),
    }


def test_a_run_under_alpha_0_stands_for_the_variants_that_did_not_repeat_it(modules, result) -> None:
    curve = {0: 0.4, 6: 0.5, 12: 0.7}
    runs = [result("vanilla", 0, 1, curve), result("ppo", 2, 1, curve)]
    shared = modules["results"].with_shared_runs(runs, ["vanilla", "ppo"])
    assert [(run.cell.variant, run.cell.alpha) for run in shared] == [("vanilla", 0), ("ppo", 2), ("ppo", 0)]
    assert modules["results"].with_shared_runs(shared, ["vanilla", "ppo"]) == shared


def test_seconds_are_those_of_runs_that_had_the_machine_to_themselves(modules, result) -> None:
    curve = {0: 0.4, 6: 0.5, 12: 0.7}
    quiet, shared = result("ppo", 2, 1, curve), result("ppo", 2, 2, curve, alone=False)
    (both,) = modules["results"].summaries([quiet, shared])
    assert both.wall_s == (31.0, 31.0, 31.0)
    (busy,) = modules["results"].summaries([shared])
    assert busy.wall_s is None
    assert "| not timed | not timed |" in modules["results"].markdown_table([both, busy])
    assert "s/step" not in modules["results"].markdown_table([busy])
    modules["figure"].draw([busy], {"ppo": "clips"})


def test_every_run_of_the_matrix_is_a_configuration_that_loads(modules, tmp_path) -> None:
    from envsdk.config import load_config

    experiment = modules["experiment"]
    runs = experiment.Experiment(tmp_path)
    for cell in experiment.cells([one.name for one in experiment.VARIANTS], [0, 4], [3]):
        source, *overrides = runs.command(cell)[3:]
        config = load_config(source, overrides).config
        assert config.async_generation_ratio == cell.alpha
        assert config.seed == 3
        assert config.warm_start.seed == 0, "all runs start from one policy"
        assert config.run_folder == runs.run_folder(cell)


def test_seconds_per_step_leave_out_the_first_step_and_the_evaluations(result) -> None:
    assert result("vanilla", 1, 1, {0: 0.4, 6: 0.6, 12: 0.8}).training_s == pytest.approx(0.5)


def test_staleness_is_that_of_the_steps_that_can_have_it(result) -> None:
    run = result("vanilla", 4, 1, {0: 0.4, 6: 0.6, 12: 0.8})
    assert run.staleness == 4
    assert run.off_policy == pytest.approx(0.4)


def test_a_run_without_evaluations_is_an_error_and_not_an_empty_curve(result) -> None:
    with pytest.raises(ValueError, match=r"vanilla-alpha1-seed1: 1 evaluations and 12 steps"):
        result("vanilla", 1, 1, {0: 0.4})


def test_a_summary_has_the_mean_and_the_range_of_the_seeds(modules, result) -> None:
    curves = [{0: 0.4, 6: 0.6, 12: 0.7}, {0: 0.4, 6: 0.2, 12: 0.8}, {0: 0.4, 6: 0.7, 12: 0.9}]
    runs = [result("ppo", 2, seed, curve) for seed, curve in enumerate(curves, start=1)]
    (summary,) = modules["results"].summaries(runs)
    assert summary.num_seeds == 3
    assert summary.after == (pytest.approx(0.8), 0.7, 0.9)
    assert summary.lowest == (pytest.approx((0.6 + 0.2 + 0.7) / 3), 0.2, 0.7)
    assert summary.curve[6] == (pytest.approx(0.5), 0.2, 0.7)
    table = modules["results"].markdown_table([summary])
    assert "| `ppo` | 2 | 40.0% | 80.0% (70% to 90%) |" in table
    assert len({line.count("|") for line in table.splitlines()}) == 1


def test_the_table_tells_where_seeds_are_missing(modules, result) -> None:
    curve = {0: 0.4, 12: 0.7}
    runs = [result("ppo", 0, 1, curve), result("ppo", 0, 2, curve), result("ppo", 4, 1, curve)]
    table = modules["results"].markdown_table(modules["results"].summaries(runs))
    assert "| `ppo` | 0 | 40.0%" in table
    assert "| `ppo` | 4 (seeds: 1 of 2) | 40.0%" in table


def test_runs_evaluated_at_other_steps_are_not_averaged(modules, result) -> None:
    runs = [result("ppo", 2, 1, {0: 0.4, 12: 0.7}), result("ppo", 2, 2, {0: 0.4, 6: 0.5, 12: 0.7})]
    with pytest.raises(ValueError, match="ppo-alpha2-seed2 was not evaluated at the steps of"):
        modules["results"].summaries(runs)


def test_the_figure_has_a_curve_for_each_alpha_of_each_variant(modules, result) -> None:
    runs = [
        result(variant, alpha, seed, {0: 0.4, 6: 0.5 + 0.05 * seed, 12: 0.8 - 0.03 * alpha})
        for variant in ("vanilla", "ppo", "ppo_decoupled")
        for alpha in (0, 2)
        for seed in (1, 2)
    ]
    about = {"vanilla": "nothing", "ppo": "clips <1.2", "ppo_decoupled": "weighs"}
    root = ElementTree.fromstring(modules["figure"].draw(modules["results"].summaries(runs), about))
    drawn = [element.get("class", "") for element in root.iter("{http://www.w3.org/2000/svg}path")]
    assert sum(name.startswith("curve") for name in drawn) == 6
    assert sum(name.startswith("band") for name in drawn) == 6
    words = {element.text for element in root.iter("{http://www.w3.org/2000/svg}text")}
    assert {"vanilla", "ppo", "ppo_decoupled", "clips <1.2", "Seconds per step", "alpha 2"} <= words


def test_the_results_go_between_their_marks_as_often_as_asked(modules) -> None:
    replaced = modules["__main__"].replaced
    page = "Before\n<!-- results: begin -->\nold\n<!-- results: end -->\nAfter\n"
    once = replaced(page, "| new |\n")
    assert once == "Before\n<!-- results: begin -->\n\n| new |\n\n<!-- results: end -->\nAfter\n"
    assert replaced(once, "| new |\n") == once
    with pytest.raises(ValueError, match="no place"):
        replaced("Before\n", "| new |\n")


def test_a_finished_run_is_not_trained_again_and_one_with_other_settings_is_refused(
    modules, tmp_path, monkeypatch
) -> None:
    module = modules["experiment"]
    cell = module.Cell(variant="vanilla", alpha=1, seed=1)
    trained = module.Experiment(tmp_path)
    monkeypatch.setattr(module.Experiment, "command", lambda self, cell: [sys.executable, "-c", "pass"])
    record = trained.run(cell)
    monkeypatch.setattr(module.Experiment, "command", lambda self, cell: ["/nonexistent"])
    assert trained.run(cell) == record
    with pytest.raises(module.RunFailed, match="max_steps=3"):
        module.Experiment(tmp_path, overrides=["max_steps=3"]).run(cell)


def test_a_run_that_fails_is_told_with_its_last_words_and_the_others_go_on(
    modules, tmp_path, monkeypatch, capsys
) -> None:
    module = modules["experiment"]
    trained = module.Experiment(tmp_path)
    good, bad = (module.Cell(variant="vanilla", alpha=alpha, seed=1) for alpha in (1, 0))

    def command(self: object, cell: object) -> list[str]:
        if cell == bad:
            return [sys.executable, "-c", "print('the last word'); raise SystemExit(3)"]
        metrics = trained.run_folder(good) / "metrics.jsonl"
        lines = "\n".join(json.dumps(row) for row in rows({0: 0.4, 6: 0.5, 12: 0.6}, 12)) + "\n"
        code = f"import pathlib; p = pathlib.Path({str(metrics)!r}); p.parent.mkdir(parents=True); "
        return [sys.executable, "-c", code + f"p.write_text({lines!r})"]

    monkeypatch.setattr(module.Experiment, "command", command)
    failures = modules["__main__"].run_all(trained, [bad, good])
    assert [str(failure) for failure in failures]
    assert "ended with 3" in str(failures[0])
    assert "the last word" in str(failures[0])
    printed = capsys.readouterr().out
    assert "1/2  FAILED" in printed
    assert "40.0% -> 60.0%" in printed
    assert [run.cell for run in modules["__main__"].finished(trained, [bad, good])] == [good]
