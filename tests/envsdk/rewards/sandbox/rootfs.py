"""A container image of this machine's own programs, so that none has to be downloaded.

python rootfs.py TARGET.tar      # then: podman import TARGET.tar localhost/envsdk-trial
"""

from __future__ import annotations

import io
import re
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Iterable, Iterator
from pathlib import Path

PROGRAMS = (
    *("bash", "cat", "chmod", "chown", "cp", "cut", "date", "dd", "df", "diff", "dirname", "basename", "du"),
    *("env", "find", "git", "grep", "head", "id", "kill", "ln", "ls", "mkdir", "mktemp", "mv", "nproc", "ps"),
    *(
        "readlink",
        "rm",
        "sed",
        "setsid",
        "sh",
        "sleep",
        "sort",
        "stat",
        "stty",
        "tail",
        "tar",
        "gzip",
        "tee",
        "test",
        "timeout",
    ),
    *("touch", "tr", "true", "tty", "uname", "uniq", "wc", "xargs", "yes"),
)
LINKS = {"bin": "usr/bin", "sbin": "usr/bin", "lib": "usr/lib", "lib64": "usr/lib64"}
FOLDERS = ("dev", "proc", "run", "sys", "testbed", "tmp", "usr/bin", "usr/lib", "usr/lib64", "var")
ETC = {"passwd": "root:x:0:0:root:/root:/bin/bash\n", "group": "root:x:0:\n"}
_LEFT_OUT = ("site-packages", "dist-packages", "test", "__pycache__", "idlelib", "tkinter", "ensurepip")


def write_rootfs(target: Path, packages: Iterable[Path] = ()) -> None:
    """Write the archive `target`: shell, git and Python, with `packages` (folders or modules) installed."""
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    library = Path(sys.base_prefix) / "lib" / version
    python = Path(getattr(sys, "_base_executable", None) or sys.executable).resolve()
    with tarfile.open(target, "w") as archive:
        for folder in FOLDERS:
            _add_folder(archive, folder, mode=0o1777 if folder == "tmp" else 0o755)
        for link, place in {**LINKS, "usr/bin/python": "python3", "usr/bin/python3": version}.items():
            entry = tarfile.TarInfo(link)
            entry.type, entry.linkname = tarfile.SYMTYPE, place
            archive.addfile(entry)
        programs = {Path(found) for name in PROGRAMS if (found := shutil.which(name, path="/usr/bin:/bin"))}
        for program in programs:
            archive.add(program.resolve(), f"usr/bin/{program.name}", filter=_of_root)
        archive.add(python, f"usr/bin/{version}", filter=_of_root)
        archive.add(library, f"usr/lib/{version}", filter=_kept)
        for package in packages:
            archive.add(package, f"usr/lib/{version}/site-packages/{package.name}", filter=_kept)
        modules = (library / "lib-dynload").glob("*.so")
        for name, place in _libraries([*programs, python, *modules]):
            archive.add(place.resolve(), name, filter=_of_root)
        for name, text in ETC.items():
            _add_text(archive, f"etc/{name}", text)


def _libraries(binaries: Iterable[Path]) -> Iterator[tuple[str, Path]]:
    """The shared libraries of `binaries`: name in the image, file here."""
    printed = subprocess.run(["ldd", *binaries], check=False, capture_output=True, text=True).stdout
    for path in sorted({Path(found) for found in re.findall(r"(/\S+) \(0x", printed)}):
        linker = path.name.startswith("ld-")
        yield f"usr/lib64/{path.name}" if linker else f"usr/lib/{path.name}", path


def _add_folder(archive: tarfile.TarFile, name: str, *, mode: int) -> None:
    entry = tarfile.TarInfo(name)
    entry.type, entry.mode = tarfile.DIRTYPE, mode
    archive.addfile(entry)


def _add_text(archive: tarfile.TarFile, name: str, text: str) -> None:
    entry = tarfile.TarInfo(name)
    entry.size = len(text.encode())
    archive.addfile(entry, io.BytesIO(text.encode()))


def _of_root(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    entry.uid = entry.gid = 0
    entry.uname = entry.gname = ""
    return entry


def _kept(entry: tarfile.TarInfo) -> tarfile.TarInfo | None:
    name = entry.name.rpartition("/")[2]
    return None if name in _LEFT_OUT or name.startswith("config-") else _of_root(entry)


if __name__ == "__main__":
    write_rootfs(Path(sys.argv[1]))
