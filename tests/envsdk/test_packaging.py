"""What people install holds everything, the linked folders and the examples included."""

from __future__ import annotations

import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def build(project: Path, target: str, folder: Path) -> Path:
    """Build with the backend itself: no network and no environment of its own."""
    command = [sys.executable, "-m", "hatchling", "build", "-t", target, "-d", str(folder)]
    subprocess.run(command, cwd=project, check=True, capture_output=True)
    (built,) = folder.glob("*.whl" if target == "wheel" else "*.tar.gz")
    return built


def package_files(wheel: Path) -> set[str]:
    return {name for name in zipfile.ZipFile(wheel).namelist() if name.startswith("envsdk/")}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(ROOT, "wheel", tmp_path_factory.mktemp("wheel"))


def test_the_wheel_holds_every_file_of_the_package_under_one_name(wheel: Path) -> None:
    sources = {
        str(Path("envsdk", *(() if room == "envsdk" else (room,))) / file.relative_to(ROOT / room))
        for room in ("envsdk", "envs", "managers", "trainers", "examples")
        for file in (ROOT / room).rglob("*")
        if file.is_file() and "__pycache__" not in file.parts
    }
    assert package_files(wheel) == sources
    assert {name.split("/")[0] for name in zipfile.ZipFile(wheel).namelist()} == {
        "envsdk",
        wheel.name.removesuffix("-py3-none-any.whl") + ".dist-info",
    }


def test_a_wheel_built_from_the_source_archive_is_the_same(wheel: Path, tmp_path: Path) -> None:
    archive = build(ROOT, "sdist", tmp_path / "sdist")
    with tarfile.open(archive) as opened:
        opened.extractall(tmp_path, filter="data")
    project = tmp_path / archive.name.removesuffix(".tar.gz")
    assert package_files(build(project, "wheel", tmp_path / "wheel")) == package_files(wheel)
