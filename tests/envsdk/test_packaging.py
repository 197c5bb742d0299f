"""What people install holds everything, the linked folders and the examples included."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from email import message_from_bytes
from email.message import Message
from pathlib import Path

import pytest
from markdown_it import MarkdownIt

ROOT = Path(__file__).parents[2]


def build(project: Path, target: str, folder: Path) -> Path:
    """Build with the backend itself: no network and no environment of its own."""
    command = [sys.executable, "-m", "hatchling", "build", "-t", target, "-d", str(folder)]
    environment = os.environ | {"PYTHONDONTWRITEBYTECODE": "1"}  # the project stays as it was unpacked
    subprocess.run(command, cwd=project, env=environment, check=True, capture_output=True)
    (built,) = folder.glob("*.whl" if target == "wheel" else "*.tar.gz")
    return built


def package_files(wheel: Path) -> set[str]:
    return {name for name in zipfile.ZipFile(wheel).namelist() if name.startswith("envsdk/")}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(ROOT, "wheel", tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The source archive, unpacked."""
    folder = tmp_path_factory.mktemp("sdist")
    archive = build(ROOT, "sdist", folder)
    with tarfile.open(archive) as opened:
        opened.extractall(folder, filter="data")
    return folder / archive.name.removesuffix(".tar.gz")


@pytest.fixture(scope="module")
def metadata(wheel: Path) -> Message:
    with zipfile.ZipFile(wheel) as opened:
        (name,) = (name for name in opened.namelist() if name.endswith(".dist-info/METADATA"))
        return message_from_bytes(opened.read(name))


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


def test_a_wheel_built_from_the_source_archive_is_the_same(
    wheel: Path, project: Path, tmp_path: Path
) -> None:
    assert build(project, "wheel", tmp_path).read_bytes() == wheel.read_bytes()


def test_the_source_archive_holds_what_git_has_and_nothing_else(project: Path) -> None:
    if not (ROOT / ".git").exists():
        pytest.skip("needs the files that git knows")
    listed = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    known = subprocess.run(listed, cwd=ROOT, check=True, capture_output=True, text=True).stdout.split("\0")
    linked = tuple(f"{path.name}/" for path in (ROOT / "envsdk").iterdir() if path.is_symlink())
    expected = {f"envsdk/{name}" if name.startswith(linked) else name for name in known}
    held = {path.relative_to(project).as_posix() for path in project.rglob("*") if path.is_file()}
    assert held - expected == {"PKG-INFO"}
    folders = ("benchmarks/", "docs/", "envsdk/", "examples/", "tests/", "constraints")
    assert {name for name in expected if name.startswith(folders) and not (ROOT / name).is_symlink()} <= held


def test_an_installed_package_finds_its_examples_and_says_its_version(
    wheel: Path, metadata: Message, tmp_path: Path
) -> None:
    with zipfile.ZipFile(wheel) as opened:
        opened.extractall(tmp_path / "site")
    script = "import envsdk; from envsdk.config import load_config; c = load_config('agentic_async.yaml')\n"
    script += "print(envsdk.__file__, envsdk.__version__, *c.sources)"
    environment = {**os.environ, "PYTHONPATH": str(tmp_path / "site")}
    command = [sys.executable, "-P", "-c", script]
    said = subprocess.run(command, env=environment, cwd=tmp_path, check=True, capture_output=True, text=True)
    package, version, *sources = said.stdout.split()
    assert package == str(tmp_path / "site/envsdk/__init__.py")
    assert version == metadata["Version"]
    assert str(tmp_path / "site/envsdk/examples/agentic_async.yaml") in sources


def test_every_link_of_the_long_description_leads_to_the_project_s_own_pages(metadata: Message) -> None:
    repository = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["metadata"]["hooks"][
        "custom"
    ]["repository"]
    text = metadata.get_payload()
    assert isinstance(text, str)
    tokens = [child for token in MarkdownIt().parse(text) for child in token.children or ()]
    links = [str(token.attrs.get("href") or token.attrs.get("src")) for token in tokens if token.attrs]
    assert f"{repository}/blob/v{metadata['Version']}/docs/rollouts.md" in links
    assert f"{repository}/raw/v{metadata['Version']}/docs/images/report.png" in links
    assert [link for link in links if not link.startswith(f"{repository}/")] == []
    assert all(url.split(", ")[1].startswith(repository) for url in metadata.get_all("Project-URL", []))


def test_the_address_of_the_project_is_named_in_one_place() -> None:
    assert "example.invalid" not in (ROOT / "README.md").read_text()
    assert (ROOT / "pyproject.toml").read_text().count("example.invalid") == 1


def test_every_extra_is_on_the_page_that_says_what_to_install() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    table = (ROOT / "docs/install.md").read_text().partition("| extra |")[2]
    rows = [row.split("|")[1] for row in table.splitlines() if row.startswith("| `")]
    assert sorted(re.findall(r"`([\w-]+)`", "".join(rows))) == sorted(extras)
