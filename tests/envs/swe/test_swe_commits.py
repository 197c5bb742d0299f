"""Commits of a repository become tasks whose lists of tests were measured."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from envsdk.contracts.failures import ConfigurationError
from envsdk.envs.swe.make_tasks import __main__ as make_tasks
from envsdk.envs.swe.make_tasks.commits import Clone
from envsdk.envs.swe.tasks import __main__ as tasks
from envsdk.envs.swe.tasks.loaders import load_tasks

CALC = "src/calc.py"
TEST = "tests/test_calc.py"
TESTS = """import os

import helper
from calc import total


def test_one():
    assert total([helper.ONE]) == 1
"""
STEPS: list[tuple[str, dict[str, str]]] = [
    ("Begin", {CALC: "def total(numbers):\n    return numbers[0]\n", TEST: TESTS}),
    ("Write down what it does", {"README.md": "It adds.\n"}),
    (
        "Add all numbers\n\nOnly the first was counted.\n\nCo-authored-by: A <a@localhost>",
        {
            CALC: "def total(numbers):\n    return sum(numbers)\n",
            TEST: TESTS
            + "\n\ndef test_many():\n    assert total([1207, 3581, 92]) == 4880\n"
            + "\n\ndef test_of_one_seed():\n    assert os.environ['PYTHONHASHSEED'] == '0'\n",
            "setup.cfg": "[tool:pytest]\n",
        },
    ),
    ("Rename a test", {TEST: TESTS.replace("test_one", "test_single")}),
    (
        "Say what is added",
        {
            CALC: 'def total(numbers):\n    """The sum."""\n    return sum(numbers)\n',
            TEST: TESTS + "\n\ndef test_none():\n    assert total([]) == 0\n",
        },
    ),
    (
        "Use what is not there",
        {
            CALC: "import nothing_of_that_name\n\n\ndef total(numbers):\n    return sum(numbers)\n",
            TEST: TESTS + "\n\ndef test_two():\n    assert total([2]) == 2\n",
        },
    ),
]


@pytest.fixture(scope="module")
def clone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("calc")
    git = ["git", "-C", str(folder), "-c", "user.name=o", "-c", "user.email=o@localhost"]
    subprocess.run([*git, "init", "--quiet"], check=True)
    for message, files in STEPS:
        for path, text in files.items():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_text(text)
        subprocess.run([*git, "add", "."], check=True)
        subprocess.run([*git, "commit", "--quiet", "--message", message], check=True)
    subprocess.run(
        [*git, "remote", "add", "origin", "https://git.invalid/octo/calc.git"],
        check=True,
        capture_output=True,
    )
    return folder


def test_candidates_change_source_and_tests(clone: Path) -> None:
    found = list(Clone(clone).candidates())
    subjects = [candidate.commit.message.splitlines()[0] for candidate in found]
    assert subjects == ["Use what is not there", "Say what is added", "Add all numbers"]
    assert {path for candidate in found for path in candidate.test_files} == {TEST}
    assert "setup.cfg" not in found[2].gold + found[2].tests
    assert Clone(clone).repo == "octo/calc"
    assert Clone(clone).python_path() == ("src", ".")


def test_commits_become_sound_tasks(
    clone: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    environment = tmp_path / "packages"
    environment.mkdir()
    (environment / "helper.py").write_text("ONE = 1\n")
    (environment / "calc.py").write_text("def total(numbers):\n    return sum(numbers)\n")
    arguments = ["--commits", str(clone), "--out", str(tmp_path / "made"), "--site", str(environment)]
    assert make_tasks.main(arguments) == 0
    said = capsys.readouterr().out.splitlines()
    assert "Use what is not there: its tests with it cannot be collected" in said[0]
    assert "No module named 'nothing_of_that_name'" in said[0]
    assert "Say what is added: no test fails before it and passes after: 2 pass before, 2 after" in said[1]
    assert "Add all numbers: sound, " in said[2]
    assert said[3].startswith("1 tasks of 3 commits, 0 of them weak")

    (task,) = load_tasks(tmp_path / "made" / "tasks.jsonl")
    assert task.repo == "octo/calc"
    assert task.problem_statement == "Add all numbers\n\nOnly the first was counted.\n"
    assert task.fail_to_pass == (f"{TEST}::test_many",)
    assert task.pass_to_pass == (f"{TEST}::test_one",)
    assert task.tests.deselected == (f"{TEST}::test_of_one_seed",)
    assert task.metadata["hidden_bits"] > 8

    assert make_tasks.main(arguments) == 0  # nothing is tried again
    assert capsys.readouterr().out.splitlines()[:3] == said[:3]
    assert tasks.main([str(tmp_path / "made" / "tasks.jsonl")]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "1 of 1 tasks are sound"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "give either --package NAME==VERSION or --commits CLONE"),
        (["--commits", "nowhere"], "--commits nowhere: there is no such folder"),
        (["--commits", "."], "is no git repository"),
    ],
)
def test_what_is_wrong_is_said(
    arguments: list[str],
    message: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert make_tasks.main([*arguments, "--out", str(tmp_path / "made")]) == 2
    assert message in " ".join(capsys.readouterr().err.split())


def test_an_environment_of_another_python_is_refused(
    clone: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "pyvenv.cfg").write_text("")
    arguments = ["--commits", str(clone), "--out", str(tmp_path / "made"), "--site", str(tmp_path)]
    assert make_tasks.main(arguments) == 2
    assert "is no virtual environment of this python3." in " ".join(capsys.readouterr().err.split())


def test_a_folder_that_is_no_repository_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="no git repository"):
        Clone(tmp_path)
