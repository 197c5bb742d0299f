"""The parts of this machine that a sandbox shows: its read-only system, and an interpreter."""

from __future__ import annotations

import functools
import os
import re
import shutil
import subprocess
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from envsdk.contracts.failures import ConfigurationError
from envsdk.rewards.sandbox.bubblewrap.launch import INSIDE_ID, System

ETC = {
    "passwd": f"root:x:0:0:root:/root:/usr/sbin/nologin\nagent:x:{INSIDE_ID}:{INSIDE_ID}::/tmp:/bin/bash\n",
    "group": f"root:x:0:\nagent:x:{INSIDE_ID}:\n",
    "hosts": "127.0.0.1 localhost sandbox\n::1 localhost sandbox\n",
    "nsswitch.conf": "passwd: files\ngroup: files\nhosts: files\n",
}
"""Files of a sandbox's own `/etc`."""

MACHINE_ETC = ("ld.so.cache", "ld.so.conf", "ld.so.conf.d", "localtime")
"""What it has of the machine's `/etc`: what programs need to be found and to find their libraries."""


_STDLIB = re.compile(r"python3\.\d+")
_PACKAGES_DEPTH = 3
"""How deep below a folder of `/usr/lib` packages are looked for."""


@dataclass(frozen=True, slots=True)
class Interpreter:
    """A Python of this machine and the folders it is made of."""

    executable: Path
    folders: tuple[Path, ...]
    """Its virtual environment and its installation."""

    @property
    def outside_usr(self) -> tuple[Path, ...]:
        """Folders that have to be shown besides `/usr`."""
        return tuple(folder for folder in self.folders if not folder.is_relative_to("/usr"))

    @property
    def in_usr_local(self) -> bool:
        return any(folder.is_relative_to("/usr/local") for folder in self.folders)


@functools.cache
def interpreter(executable: Path) -> Interpreter:
    """Ask an interpreter where it lives.

    Raises ConfigurationError: it does not run.
    """
    question = "import sys; print(sys.prefix); print(sys.base_prefix)"
    try:
        answer = subprocess.run(
            [executable, "-I", "-c", question], check=True, capture_output=True, text=True, timeout=60
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise ConfigurationError(f"the sandbox's interpreter {executable} does not run: {error}") from error
    folders = dict.fromkeys(Path(line) for line in answer.stdout.split("\n") if line)
    return Interpreter(Path(os.path.abspath(executable)), tuple(folders))


def make_etc(folder: Path) -> None:
    """Lay out a sandbox's `/etc`."""
    folder.mkdir(mode=0o755)
    (folder / "alternatives").mkdir(mode=0o755)
    for name, content in ETC.items():
        (folder / name).write_text(content)
    copy_of_etc(folder, MACHINE_ETC)


def copy_of_etc(folder: Path, names: Iterable[str]) -> None:
    """Copy what this machine's `/etc` has of these."""
    for name in names:
        source = Path("/etc") / name
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        if source.is_dir():
            shutil.copytree(source, folder / name, symlinks=True, dirs_exist_ok=True)
        elif source.is_file():
            shutil.copyfile(source, folder / name)


def this_system(*, shows_usr_local: bool) -> System:
    """The machine's `/usr` without Python packages and documents, where an agent would find copies of what it
    is asked to repair. `/usr/local` is part of it where the interpreter lives there."""
    links, folders = [], ["/usr"]
    for name in ("bin", "sbin", "lib", "lib32", "lib64", "libx32"):
        path = Path("/") / name
        if path.is_symlink():
            links.append((os.readlink(path), str(path)))
        elif path.is_dir():
            folders.append(str(path))
    hidden = [] if shows_usr_local else ["/usr/local"]
    hidden += ["/usr/src", "/usr/share/doc", *python_packages()]
    return System(
        links=tuple(links),
        folders=tuple(folders),
        hidden=tuple(folder for folder in hidden if Path(folder).is_dir()),
    )


@functools.cache
def python_packages() -> tuple[str, ...]:
    """Folders of `/usr` with Python packages or wheels, as of the first call; of a standard library only what
    is installed in it."""
    found = []
    for place in ("/usr/lib", "/usr/lib64", "/usr/libexec", "/usr/share"):
        for folder in sorted(Path(place).glob("*/")):
            if folder.is_symlink():
                continue
            if _STDLIB.fullmatch(folder.name):
                found += [str(folder / name) for name in ("site-packages", "dist-packages")]
            elif _holds_packages(str(folder), _PACKAGES_DEPTH):
                found.append(str(folder))
    return tuple(found)


def _holds_packages(folder: str, depth: int) -> bool:
    inner = []
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                if entry.name == "__init__.py" or entry.name.endswith(".whl"):
                    return True
                if entry.is_dir(follow_symlinks=False):
                    inner.append(entry.path)
    except OSError:
        return False  # closed to this user, so to the sandbox's
    return depth > 0 and any(_holds_packages(path, depth - 1) for path in inner)


def shown_folders(*, shows_usr_local: bool) -> tuple[Path, ...]:
    """What of the machine's system a sandbox shows, without what is hidden below: files and folders."""
    system = this_system(shows_usr_local=shows_usr_local)
    hidden = frozenset(system.hidden)
    return tuple(path for folder in system.folders for path in _outside(Path(folder), hidden))


def _outside(folder: Path, hidden: frozenset[str]) -> Iterator[Path]:
    if str(folder) in hidden:
        return
    if any(path.startswith(f"{folder}/") for path in hidden):
        for inner in sorted(folder.iterdir()):
            yield from _outside(inner, hidden)
    else:
        yield folder
