"""The release's driver: what fails is in the table, and stops nothing else."""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path

import pytest

from tests.release import (
    FIRST_MINUTE,
    PYTHONS,
    ROOT,
    CheckFailed,
    Outcome,
    attempt,
    call,
    described,
    runs,
    table,
    trials,
)


def test_the_release_tries_each_python_that_the_package_is_for() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    said = re.findall(r"Python :: (3\.\d+)", "\n".join(project["classifiers"]))
    assert [f"python{version}" for version in said] == list(PYTHONS)


def test_a_command_runs_elsewhere_without_the_paths_of_the_checkout(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    code = "import os, sys; print(os.getcwd(), os.environ.get('PYTHONPATH'))"
    assert call(sys.executable, "-c", code, folder=tmp_path).split() == [str(tmp_path), "None"]


def test_a_check_that_fails_is_an_outcome_with_its_reason(capsys: pytest.CaptureFixture[str]) -> None:
    broken = attempt("breaks", call, sys.executable, "-c", "print('why'); raise SystemExit(3)")
    assert (broken.verdict, broken.detail[:7]) == ("FAILED", "exit 3:")
    assert "why" in capsys.readouterr().err
    assert attempt("holds", str, 7).detail == "7"


def test_a_program_that_is_no_python_is_not_taken_for_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shim = tmp_path / "python3.99"
    shim.write_text("#!/bin/sh\nexit 127\n")
    shim.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert not runs("python3.99")
    assert not runs("python3.98")
    assert runs(sys.executable)


def test_a_python_that_is_missing_fails_only_the_release_that_was_to_train_on_it(tmp_path: Path) -> None:
    verdicts = [
        [each.verdict for each in trials(["python3.98"], train, tmp_path)] for train in ("none", "python3.98")
    ]
    assert verdicts == [["missing"], ["FAILED"]]


def test_a_version_without_a_section_in_the_changelog_is_no_release() -> None:
    assert described("# Changelog\n\n## 0.1.0 - 2026-12-01\n", "0.1.0") == "## 0.1.0 - 2026-12-01"
    with pytest.raises(CheckFailed, match=r"no heading `## 0\.1\.1`"):
        described("## 0.1.0\n", "0.1.1")


def test_the_table_has_a_row_for_each_check() -> None:
    rows = table([Outcome("build", "passed", 7.4, "two files"), Outcome("python3.12", "missing", 0, "none")])
    assert rows.splitlines()[2:] == [
        "| build | passed | 7 | two files |",
        "| python3.12 | missing | 0 | none |",
    ]


def test_the_first_minute_of_the_readme_is_tried() -> None:
    block = (ROOT / "README.md").read_text().partition("## The first minute")[2].partition("```bash")[2]
    told = re.findall(r"^envsdk (\w+)", block.partition("```")[0], re.MULTILINE)
    assert set(told) <= {command.split()[0] for command in FIRST_MINUTE}
