"""A checkout that was never installed: what its entry points say, Python finds all the same."""

from __future__ import annotations

import atexit
import shutil
import sys
import tempfile
import tomllib
from importlib import metadata
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]


def make_importable() -> None:
    """Where envsdk is not installed, describe this checkout as an installed package."""
    if str(REPOSITORY) not in sys.path:
        sys.path.insert(0, str(REPOSITORY))
    try:
        metadata.version("envsdk")
        return
    except metadata.PackageNotFoundError:
        pass
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    source = (REPOSITORY / "envsdk/__init__.py").read_text(encoding="utf-8")
    version = source.partition('__version__ = "')[2].partition('"')[0]
    folder = Path(tempfile.mkdtemp(prefix="envsdk-checkout-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    described = folder / f"envsdk-{version}.dist-info"
    described.mkdir(parents=True)
    (described / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {version}\n"
    )
    lines = []
    for group, entries in project["entry-points"].items():
        lines += [f"[{group}]", *(f"{name} = {value}" for name, value in entries.items()), ""]
    (described / "entry_points.txt").write_text("\n".join(lines))
    sys.path.append(str(folder))
