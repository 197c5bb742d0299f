"""A source distribution of the package index as a tree with its tests.

pip download -> unpack -> tree (source and tests) + site (what the tests import besides)
"""

from __future__ import annotations

import email
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from packaging.requirements import InvalidRequirement, Requirement

from envsdk.base.store.atomic import made_once
from envsdk.contracts.failures import ConfigurationError
from envsdk.envs.swe.tasks.archives import unpack_tar

_COMPILED = {".c", ".cc", ".cpp", ".pyx", ".pxd", ".rs", ".f90", ".so", ".pyd"}
_LEFT_OUT = ("*.egg-info", "__pycache__", "*.pyc", ".git", ".github", ".gitignore", "PKG-INFO")
_TEST_FOLDERS = ("tests", "test", "testing")


@dataclass(frozen=True, slots=True, kw_only=True)
class Package:
    """An unpacked source distribution."""

    name: str
    version: str
    licence: str
    tree: Path
    """The folder with its files."""
    site: Path | None
    """Folder with its dependencies and those of its tests; None where there are none."""
    source: str
    """The import package, relative to the tree: `src/humanize`."""
    tests: tuple[str, ...]
    """Folders with tests, relative to the tree."""

    @property
    def python_path(self) -> str:
        return str(Path(self.source).parent)

    @property
    def label(self) -> str:
        return f"{self.name}-{self.version}"


def fetch(
    requirement: str,
    out: Path,
    *,
    needs: Sequence[str] = (),
    source: str | None = None,
    tests: Sequence[str] = (),
) -> Package:
    """Download `NAME==VERSION` with pip and unpack it below `out`; nothing is done again that is there.

    Args:
        needs: Requirements of the tests beyond those of the package.
        source: Folder of the import package where it cannot be found.
        tests: Folders of the tests where they cannot be found.

    Raises ConfigurationError: there is no such distribution, it is not pure Python, or its layout is unknown.
    """
    try:
        parsed = Requirement(requirement)
    except InvalidRequirement as error:
        raise ConfigurationError(f"--package {requirement!r}: {error}") from None
    pins = [part.version for part in parsed.specifier if part.operator == "=="]
    if len(pins) != 1:
        raise ConfigurationError(
            f"--package {requirement!r}: pin the version, for example {parsed.name}==1.0"
        )
    name = re.sub(r"[-_.]+", "-", parsed.name).lower()
    tree = out / "trees" / f"{name}-{pins[0]}"
    if not tree.is_dir():
        _download(requirement, tree)
    compiled = sorted(path.name for path in tree.rglob("*") if path.suffix in _COMPILED)
    if compiled:
        raise ConfigurationError(f"{requirement}: is not pure Python: it has {compiled[0]}")
    info = email.message_from_string((tree.parent / f"{tree.name}.PKG-INFO").read_text())
    return Package(
        name=name,
        version=pins[0],
        licence=info.get("License-Expression") or (info.get("License") or "").split("\n")[0][:100],
        tree=tree,
        site=_site(tree, out / "sites" / tree.name, name, info.get_all("Requires-Dist") or [], needs),
        source=source or _find_source(tree, name),
        tests=tuple(tests) or _find_tests(tree),
    )


def _pip(*arguments: str) -> None:
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet", *arguments]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        lines = done.stderr.strip().splitlines() or ["pip failed"]
        raise ConfigurationError(f"pip {arguments[0]}: {lines[-1]}")


def _download(requirement: str, tree: Path) -> None:
    with made_once(tree) as made:
        folder = made.with_name("download")
        name = Requirement(requirement).name
        _pip("download", "--no-deps", "--no-binary", name, "--dest", str(folder), requirement)
        archive = next(path for path in folder.iterdir() if path.is_file())
        unpacked = made.with_name("unpacked")
        if archive.suffix == ".zip":
            with zipfile.ZipFile(archive) as file:
                file.extractall(unpacked)
        else:
            unpack_tar(archive, unpacked)
        top = next(unpacked.iterdir())
        if not (top / "PKG-INFO").is_file():
            raise ConfigurationError(f"{requirement}: the archive has no PKG-INFO")
        shutil.copy(top / "PKG-INFO", tree.parent / f"{tree.name}.PKG-INFO")
        ignore = shutil.ignore_patterns(*_LEFT_OUT)
        shutil.copytree(top, made, ignore=ignore, symlinks=True, dirs_exist_ok=True)


def _site(tree: Path, site: Path, name: str, requires: Sequence[str], needs: Sequence[str]) -> Path:
    """What the tests import, and the package's metadata without its source, which would be a copy of it."""
    if site.is_dir():
        return site
    wanted = [*needs]
    for line in requires:
        requirement = Requirement(line)
        if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
            wanted.append(line)
    with made_once(site) as made:
        if wanted:
            _pip("install", "--target", str(made), *wanted)
        metadata = made / f"{name.replace('-', '_')}-{tree.name.rpartition('-')[2]}.dist-info"
        if (made / name.replace("-", "_")).exists():
            raise ConfigurationError(f"{tree.name}: its tests need another copy of it: {', '.join(wanted)}")
        metadata.mkdir()
        shutil.copy(tree.parent / f"{tree.name}.PKG-INFO", metadata / "METADATA")
    return site


def _find_source(tree: Path, name: str) -> str:
    module = name.replace("-", "_")
    for folder in (f"src/{module}", module, f"lib/{module}"):
        if (tree / folder / "__init__.py").is_file():
            return folder
    raise ConfigurationError(f"{tree.name}: no package {module} in it; name its folder with --source")


def _find_tests(tree: Path) -> tuple[str, ...]:
    """The outermost folders of tests that have any."""
    found: list[str] = []
    for path in sorted(tree.rglob("*"), key=lambda path: len(path.parts)):
        inside = path.relative_to(tree).as_posix()
        if path.name not in _TEST_FOLDERS or not path.is_dir():
            continue
        if any(inside.startswith(f"{other}/") for other in found):
            continue
        if any(path.rglob("test_*.py")) or any(path.rglob("*_test.py")):
            found.append(inside)
    if not found:
        raise ConfigurationError(f"{tree.name}: has no tests; name their folder with --tests")
    return tuple(found)
