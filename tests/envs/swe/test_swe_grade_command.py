"""`python -m envsdk.envs.swe.grade`: what is read, what is written, and how it ends."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from envsdk.contracts.failures import ConfigurationError
from envsdk.envs.swe.evaluator import Evaluation, Verdict
from envsdk.envs.swe.grade.__main__ import main
from envsdk.envs.swe.grade.command import instance_report, run_report
from envsdk.envs.swe.grade.predictions import Prediction, read_predictions
from envsdk.envs.swe.tasks.shipped import shipped_tasks
from envsdk.envs.swe.tasks.task import Outcome

TASKS = {task.instance_id: task for task in shipped_tasks()}
ONE, TWO, THREE = list(TASKS)[:3]
PATCH = TASKS[ONE].gold_patch


def row(instance_id: str, patch: str | None = PATCH) -> dict[str, str | None]:
    return {"instance_id": instance_id, "model_name_or_path": "m/x", "model_patch": patch}


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("preds.jsonl", f"{json.dumps(row(ONE))}\n\n{json.dumps(row(TWO, None))}\n"),
        ("preds.json", json.dumps([row(ONE), row(TWO, None)])),
        ("preds.json", json.dumps({ONE: row(ONE), TWO: row(TWO, None)}, indent=2)),
        ("preds.json", json.dumps({ONE: PATCH, TWO: None})),
    ],
)
def test_predictions_are_read_in_every_form_that_swe_bench_takes(
    name: str, content: str, tmp_path: Path
) -> None:
    (tmp_path / name).write_text(content)
    found = read_predictions(tmp_path / name, TASKS)
    assert [(one.instance_id, one.patch) for one in found] == [(ONE, PATCH), (TWO, None)]


def test_a_folder_holds_patches_by_the_names_of_their_tasks(tmp_path: Path) -> None:
    (tmp_path / f"{ONE}.patch").write_text(PATCH)
    for name, file in ((TWO, "patch.diff"), (THREE, f"{THREE}.patch")):
        (tmp_path / name).mkdir()
        (tmp_path / name / file).write_bytes(b"+\xff\r\n")
    (tmp_path / "notes.txt").write_text("not a patch")
    found = {one.instance_id: one.patch for one in read_predictions(tmp_path, TASKS)}
    assert found == {ONE: PATCH, TWO: "+\udcff\r\n", THREE: "+\udcff\r\n"}


def test_one_patch_is_of_the_task_that_is_named_or_that_its_name_says(tmp_path: Path) -> None:
    for name, asked in ((f"{ONE}.diff", None), ("my.patch", ONE), ("patch.txt", ONE)):
        (tmp_path / name).write_text(PATCH)
        (found,) = read_predictions(tmp_path / name, TASKS, instance_id=asked)
        assert (found.instance_id, found.patch) == (ONE, PATCH)
    (only,) = read_predictions(tmp_path / "my.patch", {ONE: TASKS[ONE]})
    assert only.instance_id == ONE


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("a.jsonl", json.dumps(row("nobody")), "a.jsonl:record 1: there is no task 'nobody'"),
        ("a.jsonl", f"{json.dumps(row(ONE))}\n{json.dumps(row(ONE))}", "record 2: .* already, in .*record 1"),
        ("a.jsonl", json.dumps({"instance_id": ONE}), "record 1: field 'model_patch': is missing"),
        ("a.jsonl", json.dumps(row(ONE, 3)), "must be a text, not int"),  # type: ignore[arg-type]
        ("a.jsonl", "{", "record 1: is no JSON"),
        ("a.jsonl", "", "there is no patch in it"),
        ("a.json", json.dumps({ONE: 3}), f"record {ONE}: must be an object, not int"),
        ("a.json", "3", "must be a list or an object"),
        ("unknown.patch", PATCH, "there is no task 'unknown'"),
    ],
)
def test_what_is_wrong_is_said_with_the_file_and_the_record(
    name: str, content: str, said: str, tmp_path: Path
) -> None:
    (tmp_path / name).write_text(content)
    with pytest.raises(ConfigurationError, match=said):
        read_predictions(tmp_path / name, TASKS)


def prediction(name: str, patch: str | None) -> Prediction:
    return Prediction(instance_id=name, patch=patch, model="", origin="")


def test_the_report_of_a_run_is_swe_benchs() -> None:
    predictions = [prediction("a", "x"), prediction("b", "x"), prediction("c", ""), prediction("d", "x")]
    report = run_report("abcde", predictions, {"a": True, "b": False, "c": False})
    assert report == {
        "total_instances": 5,
        "submitted_instances": 4,
        "completed_instances": 2,
        "resolved_instances": 1,
        "unresolved_instances": 1,
        "empty_patch_instances": 1,
        "error_instances": 1,
        "completed_ids": ["a", "b"],
        "incomplete_ids": ["e"],
        "empty_patch_ids": ["c"],
        "submitted_ids": ["a", "b", "c", "d"],
        "resolved_ids": ["a"],
        "unresolved_ids": ["b"],
        "error_ids": ["d"],
        "schema_version": 2,
    }


def test_the_report_of_an_instance_is_swe_benchs() -> None:
    task = TASKS[ONE]
    outcomes = dict.fromkeys((*task.fail_to_pass, *task.pass_to_pass), Outcome.PASSED)
    outcomes[task.pass_to_pass[0]] = Outcome.SKIPPED
    verdict = Evaluation(resolved=False, reason=Verdict.TESTS_FAILED, detail="", outcomes=outcomes)
    report = instance_report(task, prediction(ONE, PATCH), verdict)[ONE]
    assert report["patch_successfully_applied"] is True
    assert report["tests_status"]["FAIL_TO_PASS"] == {"success": list(task.fail_to_pass), "failure": []}
    assert report["tests_status"]["PASS_TO_PASS"]["failure"] == [task.pass_to_pass[0]]
    assert instance_report(task, prediction(ONE, None), None) == {
        ONE: {
            "patch_is_None": True,
            "patch_exists": False,
            "patch_successfully_applied": False,
            "resolved": False,
        }
    }


@pytest.mark.system
def test_predictions_are_graded_and_a_second_run_grades_nothing_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, out = tmp_path / "preds.jsonl", tmp_path / "out"
    rows = [row(ONE), row(TWO, "no patch\n"), row(THREE, "")]
    file.write_text("".join(f"{json.dumps(one)}\n" for one in rows))
    for _ in range(2):
        assert main([str(file), "--tasks", "shipped", "--out", str(out), "--workers", "2"]) == 0
    said = capsys.readouterr().out
    assert said.count("(kept)") == 3
    assert "1 of 3 patches resolve their task; 1 do not, 1 are empty, 0 could not be graded" in said
    report = json.loads((out / "report.json").read_text())
    assert (report["resolved_ids"], report["unresolved_ids"], report["empty_patch_ids"]) == (
        [ONE],
        [TWO],
        [THREE],
    )
    assert json.loads((out / ONE / "report.json").read_text())[ONE]["resolved"] is True
    assert (out / ONE / "patch.diff").read_text() == PATCH


@pytest.mark.system
def test_a_task_that_cannot_be_made_is_an_error_of_its_own_and_the_command_ends_with_1(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tasks = tmp_path / "tasks.jsonl"
    made = {
        "repo": "a/b",
        "instance_id": "b__1",
        "base_commit": "0",
        "problem_statement": "p",
        "patch": PATCH,
        "test_patch": "",
        "FAIL_TO_PASS": ["tests/test_x.py::test_a"],
        "PASS_TO_PASS": [],
        "envsdk": {"tree": "nowhere", "tests": {"paths": ["tests"]}},
    }
    tasks.write_text(json.dumps(made) + "\n")
    out = tmp_path / "out"
    assert main(["gold", "--tasks", str(tasks), "--out", str(out)]) == 1
    assert "b__1: not graded: " in capsys.readouterr().out
    assert json.loads((out / "report.json").read_text())["error_ids"] == ["b__1"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["gold", "--tasks", "nothing.jsonl"], "there is no such file"),
        (["nothing.jsonl", "--tasks", "shipped"], "there is no such file"),
        (["gold", "--tasks", "shipped", "--instance-id", "x"], "--instance-id: shipped has no x"),
        (["gold", "--tasks", "shipped", "--backend", "nothing"], "nothing"),
    ],
)
def test_wrong_arguments_end_with_2(
    arguments: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*arguments, "--out", str(tmp_path / "out")]) == 2
    assert said in capsys.readouterr().err
