"""`envsdk init`: the package it makes passes every check, and once installed is known to every command."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envsdk.contracts.failures import ConfigurationError
from envsdk.init import main, names_for, scaffold

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("scaffold") / "treasure_walk"
    scaffold("treasure_walk", folder)
    return folder


@pytest.fixture(scope="module")
def installed(package: Path) -> Path:
    """A folder of its own with the package as pip installs it; nothing else changes."""
    site = package.parent / "site"
    command = [
        *("-m", "pip", "install", "--no-deps", "--no-build-isolation", "--no-index", "--quiet"),
        "--target",
    ]
    # Built from a copy: pip may leave files behind in the folder.
    subprocess.run([sys.executable, *command, str(site), str(package)], check=True, capture_output=True)
    return site


def run(installed: Path, *command: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    environ = {**os.environ, "PYTHONPATH": f"{installed}{os.pathsep}{ROOT}"}
    return subprocess.run(
        [sys.executable, "-m", *command], capture_output=True, text=True, cwd=cwd, env=environ, check=False
    )


def test_the_package_holds_all_that_a_package_needs(package: Path) -> None:
    files = {str(path.relative_to(package)) for path in package.rglob("*") if path.is_file()}
    assert files == {
        "README.md",
        "pyproject.toml",
        "tests/test_treasure_walk.py",
        "train.yaml",
        "treasure_walk/__init__.py",
        "treasure_walk/env.py",
    }
    assert not [path for path in package.rglob("*") if path.is_file() and "$" in path.read_text()]


def test_installed_it_passes_every_check(installed: Path, tmp_path: Path) -> None:
    done = run(installed, "envsdk.check", "treasure_walk/TreasureWalk-v1", "-n", "3", cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "sound: 94 passed, 7 skipped" in done.stdout


def test_installed_it_can_be_listed_and_collected(installed: Path, tmp_path: Path) -> None:
    listed = run(installed, "envsdk.envs", cwd=tmp_path)
    assert "treasure_walk/TreasureWalk-v1  10" in listed.stdout
    arguments = ["treasure_walk/TreasureWalk-v1", "--out", "demos", "--episodes", "2", "size=5"]
    done = run(installed, "envsdk.collect", *arguments, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "2 episodes, solved 100.0%" in done.stdout


def test_its_training_file_is_accepted(installed: Path, package: Path) -> None:
    done = run(installed, "envsdk.train", "train.yaml", "--explain", cwd=package)
    assert done.returncode == 0, done.stderr
    assert "treasure_walk/TreasureWalk-v1" in done.stdout


def test_its_own_tests_pass(installed: Path, package: Path) -> None:
    done = run(installed, "pytest", "-q", "-p", "no:cacheprovider", "tests", cwd=package)
    assert done.returncode == 0, done.stdout
    assert "95 passed, 7 skipped" in done.stdout


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("My Env", "such as my_env"),
        ("class", "cannot be the name of a package: use lower-case letters, digits, _, such as my_env"),
        ("1st", "such as my_env"),
        ("envsdk", "already a Python module envsdk"),
        ("json", "already a Python module json"),
    ],
)
def test_names_that_cannot_be_used_are_refused(name: str, message: str, tmp_path: Path, capsys) -> None:
    folder = tmp_path / "package"
    assert main([name, "--dir", str(folder)]) == 2
    assert message in capsys.readouterr().err
    assert not folder.exists()


def test_a_folder_that_holds_something_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(ConfigurationError, match="is there already"):
        scaffold("some_new_env", tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


def test_an_empty_folder_is_filled_and_the_next_steps_are_told(tmp_path: Path, capsys) -> None:
    assert main(["some-new-env", "--dir", str(tmp_path)]) == 0
    assert (tmp_path / "some_new_env" / "env.py").is_file()
    assert "envsdk check some_new_env/SomeNewEnv-v1" in capsys.readouterr().out


@given(st.text(max_size=12))
def test_any_name_gives_identifiers_or_is_refused(name: str) -> None:
    try:
        names = names_for(name)
    except ConfigurationError:
        return
    assert names["package"].isidentifier()
    assert names["class_name"].isidentifier()
