"""The Python that repositories run with in a sandbox: this one, with pytest and nothing else installed.

envsdk's own virtual environment is not shown inside: it holds the answers of the shipped tasks, and copies of
packages that tasks are made of.
"""

from __future__ import annotations

import compileall
import hashlib
import json
import py_compile
import re
import shutil
import sys
import threading
from collections.abc import Iterable, Iterator
from functools import lru_cache
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

from packaging.requirements import Requirement

from envsdk.base.store.atomic import made_once, make_folder
from envsdk.base.store.cache import cache_folder
from envsdk.contracts.failures import ConfigurationError
from envsdk.rewards.sandbox.bubblewrap.system import shown_folders

_making = threading.Lock()
"""Held by the thread that makes a runtime; many tasks start at once, and each asks for one."""


def swe_cache() -> Path:
    """Where trees, runtimes and validations are kept."""
    return cache_folder() / "swe"


def cached(kind: str, identity: str, suffix: str = "") -> Path:
    """Where what `identity` describes in full is kept among others of its kind."""
    digest = hashlib.sha256(identity.encode(errors="surrogateescape")).hexdigest()[:24]
    return swe_cache() / kind / f"{digest}{suffix}"


@lru_cache
def runtime_python(packages: tuple[str, ...] = ("pytest",)) -> Path:
    """The interpreter of a virtual environment with `packages` and what they need, in the versions used here.

    Made once per set of versions, in the cache.

    Raises ConfigurationError: a package is not installed.
    """
    distributions = sorted(_closure(packages), key=lambda found: found.name)
    base = Path(getattr(sys, "_base_executable", None) or sys.executable).resolve()
    identity = [sys.version, str(base), *(f"{found.name}=={found.version}" for found in distributions)]
    digest = hashlib.sha256(json.dumps(identity).encode()).hexdigest()[:16]
    folder = swe_cache() / f"runtime-{digest}"
    with _making:
        if not (folder / "pyvenv.cfg").is_file():
            with made_once(folder) as made:
                _make(made, base, distributions)
    return folder / "bin" / "python"


def _make(folder: Path, base: Path, distributions: Iterable[Distribution]) -> None:
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    site = folder / "lib" / f"python{version}" / "site-packages"
    site.mkdir(parents=True)
    (folder / "bin").mkdir()
    for name in ("python", "python3", f"python{version}"):
        (folder / "bin" / name).symlink_to(base)
    for found in distributions:
        for file in found.files or ():
            if ".." in file.parts or file.suffix == ".pyc":
                continue
            (site / file).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(str(file.locate()), site / file)
    # Sandboxes cannot write it; without compiled files every run would compile pytest.
    compileall.compile_dir(site, quiet=2, invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH)
    script = folder / "bin" / "pytest"
    script.write_text('#!/bin/sh\nexec "$(dirname "$0")/python" -m pytest "$@"\n')
    script.chmod(0o755)
    config = (
        f"home = {base.parent}\ninclude-system-site-packages = false\nversion = {sys.version.split()[0]}\n"
    )
    (folder / "pyvenv.cfg").write_text(config)


def _closure(packages: Iterable[str]) -> Iterator[Distribution]:
    """`packages` and what they require in this interpreter, each once."""
    seen, waiting = set[str](), list(packages)
    while waiting:
        name = re.sub(r"[-_.]+", "-", waiting.pop()).lower()
        if name in seen:
            continue
        seen.add(name)
        try:
            found = distribution(name)
        except PackageNotFoundError:
            raise ConfigurationError(
                f"SWE tasks need {name}, which is not installed: pip install 'envsdk[swe]'"
            ) from None
        yield found
        for line in found.requires or ():
            requirement = Requirement(line)
            if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
                waiting.append(requirement.name)


@lru_cache
def hidden_packages() -> tuple[Path, ...]:
    """Folders with packages of the interpreter's own installation, which no sandbox is to show."""
    library = Path(sys.base_prefix) / "lib" / f"python{sys.version_info.major}.{sys.version_info.minor}"
    found = [library / name for name in ("site-packages", "dist-packages")]
    return tuple(path for path in found if path.is_dir())


def empty_folder() -> Path:
    """A folder with nothing in it, to lay over others. Nobody tries whether it can be written to."""
    folder = swe_cache() / "empty"
    if not folder.is_dir():
        make_folder(folder.parent)
        folder.mkdir(exist_ok=True)
    return folder


def library_folders() -> tuple[Path, ...]:
    """All of this machine that a sandbox shows, the runtime too; `hidden_packages` are below one of them."""
    base = Path(sys.base_prefix)
    shown = shown_folders(shows_usr_local=base.is_relative_to("/usr/local"))
    outside = () if base.is_relative_to("/usr") else (base,)
    return (*shown, *outside, runtime_python().parent.parent)
