"""Calls on files, each in a process of its own: one that cannot end holds up nothing else."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import signal
import stat

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

CHUNK = 64 << 10
MAX_ENTRIES = 10_000
"""Entries of one list."""


HOME = "/"
"""Folder of relative paths. Commands may have closed or removed it, so it is no process's own."""


def answered(name: str, workdir: str, arguments: dict[str, Any]) -> int:
    """The exit code of one call on files. What fails is told on standard error, as JSON."""
    global HOME
    HOME = workdir
    try:
        answer = CALLS[name](**arguments)
        if answer is not None:
            write_all(1, json.dumps(answer).encode("utf-8", "surrogatepass"))
        return 0
    except OSError as error:
        write_all(2, json.dumps([error.errno or errno.EIO, error.strerror or str(error)]).encode())
    except ValueError as error:
        write_all(2, json.dumps([errno.EINVAL, str(error)]).encode())
    return 1


def write_all(descriptor: int, content: bytes) -> None:
    view = memoryview(content)
    while view:
        view = view[os.write(descriptor, view) :]


def entry(path: str) -> dict[str, Any]:
    """What there is at a path, as the protocol tells it."""
    found = os.lstat(path)
    is_link = stat.S_ISLNK(found.st_mode)
    shown = found
    if is_link:
        with contextlib.suppress(OSError):
            shown = os.stat(path)
    kind = "dir" if stat.S_ISDIR(shown.st_mode) else "file" if stat.S_ISREG(shown.st_mode) else ""
    return {
        "name": os.path.basename(path) or "/",
        "type": kind,
        "path": path,
        "size": shown.st_size,
        "mode": stat.S_IMODE(shown.st_mode),
        "permissions": stat.filemode(shown.st_mode),
        "owner": found.st_uid,
        "group": found.st_gid,
        "modified": found.st_mtime_ns,
        "link": os.path.realpath(path) if is_link else None,
    }


def absolute(path: str) -> str:
    if path == "~" or path.startswith("~/"):
        path = "." + path[1:]
    return os.path.normpath(os.path.join(HOME, path))


def list_folder(path: str, depth: int) -> list[dict[str, Any]]:
    entries = []
    waiting = [(absolute(path), depth)]
    while waiting:
        folder, left = waiting.pop()
        for name in sorted(os.listdir(folder)):
            found = entry(os.path.join(folder, name))
            entries.append(found)
            if len(entries) > MAX_ENTRIES:
                raise OSError(errno.E2BIG, f"more than {MAX_ENTRIES} entries: list with a smaller depth")
            if found["type"] == "dir" and found["link"] is None and left > 1:
                waiting.append((found["path"], left - 1))
    return sorted(entries, key=lambda each: each["path"])


def make_folder(path: str) -> dict[str, Any]:
    os.makedirs(absolute(path))
    return entry(absolute(path))


def move(source: str, destination: str) -> dict[str, Any]:
    os.makedirs(os.path.dirname(absolute(destination)), exist_ok=True)
    os.rename(absolute(source), absolute(destination))
    return entry(absolute(destination))


def remove(path: str) -> None:
    os.execvp("rm", ["rm", "-rf", "--one-file-system", "--", absolute(path)])


def read_file(path: str) -> None:
    descriptor = os.open(absolute(path), os.O_RDONLY | os.O_NONBLOCK)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        raise OSError(errno.EISDIR, "it is not a regular file")
    while True:
        chunk = os.read(descriptor, CHUNK)
        if not chunk:
            return
        write_all(1, chunk)


def write_file(path: str) -> dict[str, Any]:
    place = absolute(path)
    os.makedirs(os.path.dirname(place), exist_ok=True)
    if os.path.exists(place) and not os.path.isfile(place):
        raise OSError(errno.EISDIR, "it is not a regular file")
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    descriptor = os.open(place, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    try:
        while True:
            chunk = os.read(0, CHUNK)
            if not chunk:
                return entry(place)
            write_all(descriptor, chunk)
    except OSError:
        os.unlink(os.path.realpath(place))  # a part would pass for the file
        raise


CALLS: dict[str, Callable[..., Any]] = {
    "stat": lambda path: entry(absolute(path)),
    "list": list_folder,
    "make": make_folder,
    "move": move,
    "remove": remove,
    "read": read_file,
    "write": write_file,
}
