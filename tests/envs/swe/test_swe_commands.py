"""The commands about SWE tasks say what is wrong and end with a status."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from envsdk.envs.swe.make_tasks import __main__ as make_tasks
from envsdk.envs.swe.tasks import __main__ as tasks
from envsdk.envs.swe.tasks.patches import diff

ROW = {
    "repo": "pypi/calc",
    "instance_id": "calc__1",
    "base_commit": "0",
    "patch": diff(
        {"calc.py": "def add(a, b):\n    return a - b\n"}, {"calc.py": "def add(a, b):\n    return a + b\n"}
    ),
    "test_patch": diff(
        {}, {"tests/test_calc.py": "from calc import add\n\ndef test_add():\n    assert add(2, 1) == 3\n"}
    ),
    "problem_statement": "add subtracts",
    "FAIL_TO_PASS": ["tests/test_calc.py::test_add"],
    "PASS_TO_PASS": [],
    "envsdk": {"tree": "tree", "tests": {"paths": ["tests"]}},
}


def test_a_file_of_tasks_is_validated(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tree = tmp_path / "tree"
    (tree / "tests").mkdir(parents=True)
    (tree / "calc.py").write_text("def add(a, b):\n    return a + b\n")
    (tree / "tests" / "test_calc.py").write_text(
        "from calc import add\n\ndef test_add():\n    assert add(2, 1) == 3\n"
    )
    other = {**ROW, "instance_id": "calc__2", "FAIL_TO_PASS": ["tests/test_calc.py::test_none"]}
    file = tmp_path / "tasks.jsonl"
    file.write_text(json.dumps(ROW) + "\n" + json.dumps(other) + "\n")
    assert tasks.main([str(file)]) == 1
    said = capsys.readouterr().out.splitlines()
    assert any(line.startswith("calc__1: sound") for line in said)
    assert any(line.startswith("calc__2: its gold patch does not resolve it") for line in said)
    assert said[-1].startswith("1 of 2 tasks are sound")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nothing.jsonl"], "there is no such file"),
        (["--split", "test"], "--split: must be train or held_out"),
        (["--backend", "nothing"], "nothing"),
    ],
)
def test_what_is_wrong_with_a_validation_is_said(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert tasks.main(arguments) == 2
    assert message in capsys.readouterr().err


def test_a_package_without_its_version_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert make_tasks.main(["--package", "humanize", "--out", str(tmp_path)]) == 2
    assert "pin the version" in capsys.readouterr().err
