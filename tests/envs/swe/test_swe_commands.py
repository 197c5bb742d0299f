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
    assert said[0].startswith("calc__1: sound")
    assert said[1].startswith("calc__2: its gold patch does not resolve it")
    assert "missing: tests/test_calc.py::test_none (no test of this name ran" in said[1]
    assert all(line.endswith(" s)") for line in said[:2])
    assert said[-1].startswith("1 of 2 tasks are sound")


def test_a_module_of_its_own_that_is_not_on_the_path_is_named_with_its_folder(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "tree" / "src").mkdir(parents=True)
    (tmp_path / "tree" / "tests").mkdir()
    (tmp_path / "tree" / "src" / "calc.py").write_text("def add(a, b):\n    return a + b\n")
    (tmp_path / "tree" / "tests" / "test_calc.py").write_text(
        "from calc import add\n\ndef test_add():\n    assert add(2, 1) == 3\n"
    )
    row = {**ROW, "patch": str(ROW["patch"]).replace("calc.py", "src/calc.py")}
    (tmp_path / "tasks.jsonl").write_text(json.dumps(row) + "\n")
    assert tasks.main([str(tmp_path / "tasks.jsonl")]) == 1
    assert "its own module calc is in src: name that folder in `tests.python_path`" in capsys.readouterr().out


def test_a_module_that_the_tests_import_and_do_not_find_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    gold = {"calc/__init__.py": "import attrs_of_nobody\n\n\ndef add(a, b):\n    return a + b\n"}
    tests = {
        "calc/tests/__init__.py": "",
        "calc/tests/test_calc.py": "from calc import add\n\n\ndef test_add():\n    assert add(2, 1) == 3\n",
    }
    test = "calc/tests/test_calc.py::test_add"
    lacking = {
        **ROW,
        "patch": diff({path: text.replace("a + b", "a - b") for path, text in gold.items()}, gold),
        "test_patch": diff({}, tests),
        "FAIL_TO_PASS": [test],
        "envsdk": {"tree": "tree", "tests": {"paths": ["calc/tests"]}},
    }
    for path, text in {**gold, **tests}.items():
        (tmp_path / "tree" / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "tree" / path).write_text(text)
    (tmp_path / "tasks.jsonl").write_text(json.dumps(lacking) + "\n")
    assert tasks.main([str(tmp_path / "tasks.jsonl")]) == 1
    said = capsys.readouterr().out
    assert "no test can be collected" in said
    assert "the module attrs_of_nobody is not installed: `pip install --target FOLDER` it" in said
    assert "tampered" not in said


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
