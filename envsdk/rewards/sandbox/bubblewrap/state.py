"""What one episode has written, on disk.

    <folder>/stage/...      mount points; bound at STAGE in a command's namespace
    <folder>/stage/renewed/1-0      the first of `Image.renewed` since `renew` was called once
    <folder>/layers/0/{tree,tmp}    what was written until the first snapshot; a folder for each part
    <folder>/layers/1/{tree,tmp}    ... until the second; the last layer takes the writes
    <folder>/layers/*/{tree,tmp}-work   overlayfs's own
    <folder>/fstab          what the next command mounts

A snapshot closes the last layer and puts an empty one on top, so it costs no copy; a restore goes back to
the layers of then. A fork shares the closed layers, which move into the lease's folder and stay there until
the last sandbox of them closes.
"""

from __future__ import annotations

import itertools
import os
import shutil
import stat
import subprocess
import threading
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from envsdk.rewards.sandbox.bubblewrap import leases

STAGE = "/mnt"
"""Where the stage is bound, in the launcher's namespace: every Linux has it, and every user may pass it."""

RENEWED = "renewed"
"""Folder of the stage with a sandbox's `Image.renewed`."""
MAX_DEPTH = 256
"""Folders nested deeper count as more files than any limit: a path to them is too long to look at."""


@dataclass(frozen=True, slots=True)
class Usage:
    """What an episode's files take."""

    bytes: int
    files: int


@dataclass(frozen=True, slots=True)
class Owner:
    """The host user that sandboxed processes are."""

    uid: int
    gid: int
    is_root: bool
    """Whether the launcher itself is root, and must give files away."""

    def give(self, path: Path) -> None:
        if self.is_root:
            os.chown(path, self.uid, self.gid, follow_symlinks=False)


@dataclass(frozen=True, slots=True)
class LayerSnapshot:
    layers: tuple[str, ...]
    usage: Usage = Usage(0, 0)
    """What the files took when it was taken."""


class SharedLayers:
    """Layers of several sandboxes of a lease: moved out of the folder of one, deleted after the last.

    Its methods run in threads.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._names = itertools.count()
        self._holders: Counter[str] = Counter()
        self._lock = threading.Lock()

    def move(self, layer: Path) -> str:
        """Take a closed layer; its new place, held once."""
        with self._lock:
            place = str(self._folder / f"layer-{next(self._names)}")
            os.rename(layer, place)
            self._holders[place] = 1
        return place

    def hold(self, places: Iterable[str]) -> None:
        with self._lock:
            self._holders.update(places)

    def release(self, places: Iterable[str]) -> None:
        with self._lock:
            self._holders.subtract(places)
            unused = [place for place, number in self._holders.items() if not number]
            for place in unused:
                del self._holders[place]
        for place in unused:
            leases.delete(Path(place))


@dataclass(slots=True)
class OverlayState:
    """An overlay for each part, over folders that stay as they are."""

    folder: Path
    parts: Mapping[str, Sequence[Path]]
    """What lies below each part, the first on top: `{"tree": [tree], "tmp": []}`."""
    owner: Owner
    layers: list[str] = field(default_factory=list)
    """Names below `layers`; of shared ones, whole paths."""
    _names: Iterator[int] = field(default_factory=itertools.count)
    _moved: dict[str, str] = field(default_factory=dict)
    """Paths of the layers that are shared by now."""

    def __post_init__(self) -> None:
        (self.folder / "layers").mkdir()
        self._add_layer()

    def _add_layer(self) -> None:
        layer = self.folder / "layers" / (name := str(next(self._names)))
        layer.mkdir()
        for part, below in self.parts.items():
            (layer / part).mkdir()
            (layer / part).chmod(0o700 | (stat.S_IMODE(below[0].stat().st_mode) if below else 0))
            (layer / f"{part}-work").mkdir()
            for made in (layer / part, layer / f"{part}-work"):
                self.owner.give(made)
        self.layers.append(name)

    def mounts(self) -> list[str]:
        """Lines of the launcher's fstab that put each part at STAGE/PART: the tree, `/tmp`."""
        top, closed = self.layers[-1], self.layers[-2::-1]
        lines = []
        for part, given in self.parts.items():
            below = [*(self._layer(name, part) for name in closed), *map(str, given)]
            line = self._overlay(part, below, top) if below else bind_line(self._layer(top, part), part)
            lines.append(line)
        return lines

    def _layer(self, name: str, part: str) -> str:
        return str(self.folder / "layers" / name / part)

    def _overlay(self, part: str, lower: Sequence[str], top: str) -> str:
        options = [
            "lowerdir=" + ":".join(_escaped_option(path) for path in lower),
            "upperdir=" + _escaped_option(self._layer(top, part)),
            "workdir=" + _escaped_option(self._layer(top, f"{part}-work")),
        ]
        if not self.owner.is_root:
            options.append("userxattr")
        return f"overlay {STAGE}/{part} overlay {_escaped_field(','.join(options))} 0 0"

    def usage(self) -> Usage:
        layers = [Path(self._layer(name, part)) for name in self.layers for part in self.parts]
        return measure([self.folder / "stage" / RENEWED, *layers])

    def renew(self, places: Sequence[str]) -> list[tuple[str, str]]:
        """New folders for these places: (path below STAGE, path inside)."""
        number = next(self._names)
        mounts = [(f"{RENEWED}/{number}-{index}", place) for index, place in enumerate(places)]
        for source, _ in mounts:
            (self.folder / "stage" / source).mkdir(mode=0o755)
            self.owner.give(self.folder / "stage" / source)
        return mounts

    def move_to(self, folder: Path) -> None:
        """Give away the parts of the last layer that hold anything. The sandbox cannot be used afterwards."""
        for part in self.parts:
            written = Path(self._layer(self.layers[-1], part))
            if any(written.iterdir()):
                written.rename(folder / part)

    def snapshot(self) -> LayerSnapshot:
        taken = LayerSnapshot(tuple(self.layers))
        self._add_layer()
        return taken

    def restore(self, snapshot: LayerSnapshot) -> Path:
        """Go back; returns the folder that is to be deleted, whenever there is time."""
        left = self.folder / "layers" / self.layers[-1]
        self.layers = [self._moved.get(name, name) for name in snapshot.layers]
        self._add_layer()
        return left

    def forked(self, made: Self, shared: SharedLayers) -> list[str]:
        """Give `made`, a new state of the same tree, all files; returns the shared layers that it holds."""
        top = self.layers[-1]
        if any(os.listdir(self._layer(top, part)) for part in self.parts):
            self._add_layer()
        for number, name in enumerate(self.layers[:-1]):
            if not os.path.isabs(name):
                self.layers[number] = self._moved[name] = shared.move(self.folder / "layers" / name)
        made.layers = [*self.layers[:-1], *made.layers]
        shared.hold(self.layers[:-1])
        return self.layers[:-1]

    def shared(self) -> list[str]:
        """The layers of its own that it has begun to share."""
        return list(self._moved.values())


def measure(folders: Sequence[Path]) -> Usage:
    """Bytes on disk and number of entries below `folders`, while processes may be changing them.

    Never follows a symbolic link. A folder closed to its owner is opened first, so that nothing hides in it.
    """
    used = files = 0
    for folder in folders:
        try:
            start = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        except OSError:
            continue
        part = _measure_open(start, MAX_DEPTH)
        used, files = used + part.bytes, files + part.files
    return Usage(used, files)


def _measure_open(descriptor: int, depth: int) -> Usage:
    """Size of an open folder, which is closed."""
    used = files = 0
    inner: list[str] = []
    try:
        with os.scandir(descriptor) as entries:
            for entry in entries:
                files += 1
                try:
                    found = entry.stat(follow_symlinks=False)
                except OSError:
                    continue
                used += found.st_blocks * 512
                if stat.S_ISDIR(found.st_mode):
                    inner.append(entry.name)
        if inner and depth == 0:
            return Usage(used, 1 << 62)
        for name in inner:
            child = _open_folder(name, descriptor)
            if child is not None:
                part = _measure_open(child, depth - 1)
                used, files = used + part.bytes, files + part.files
    finally:
        os.close(descriptor)
    return Usage(used, files)


def _open_folder(name: str, parent: int) -> int | None:
    flags = os.O_DIRECTORY | os.O_NOFOLLOW
    try:
        return os.open(name, os.O_RDONLY | flags, dir_fd=parent)
    except PermissionError:
        pass
    except OSError:
        return None
    try:
        closed = os.open(name, os.O_PATH | flags, dir_fd=parent)
    except OSError:
        return None
    try:
        os.chmod(f"/proc/self/fd/{closed}", 0o700)
        return os.open(f"/proc/self/fd/{closed}", os.O_RDONLY | os.O_DIRECTORY)
    except OSError:
        return None
    finally:
        os.close(closed)


def copy_tree(source: Path, target: Path) -> None:
    """Copy with modes, times, links and extended attributes; blocks are shared where the disk can."""
    subprocess.run(
        ["cp", "-a", "--reflink=auto", "--", str(source), str(target)], check=True, capture_output=True
    )


def owned_copy(tree: Path, target: Path, owner: Owner) -> Path:
    """`tree` itself where `owner` has all of it, else a copy at `target` that belongs to `owner`."""
    if _is_owned(tree, owner):
        return tree
    if owner.is_root:
        copy_tree(tree, target)
        subprocess.run(
            ["chown", "-hR", f"{owner.uid}:{owner.gid}", "--", str(target)], check=True, capture_output=True
        )
    else:
        shutil.copytree(tree, target, symlinks=True)
    return target


def _is_owned(tree: Path, owner: Owner) -> bool:
    def all_owned(folder: str) -> bool:
        with os.scandir(folder) as entries:
            for entry in entries:
                if entry.stat(follow_symlinks=False).st_uid != owner.uid:
                    return False
                if entry.is_dir(follow_symlinks=False) and not all_owned(entry.path):
                    return False
        return True

    return tree.stat().st_uid == owner.uid and all_owned(str(tree))


def bind_line(source: str, name: str, *, read_only: bool = False) -> str:
    """A line of fstab that shows `source`, whatever is mounted below it included, at STAGE/`name`."""
    options = "rbind,ro" if read_only else "rbind"
    return f"{_escaped_field(source)} {STAGE}/{name} none {options} 0 0"


def _escaped_option(path: str) -> str:
    """For a value of overlayfs's options, where `:`, `,` and a backslash separate and escape."""
    return "".join(f"\\{c}" if c in "\\:," else c for c in path)


def _escaped_field(text: str) -> str:
    """For a field of fstab: what would end it, in octal."""
    return "".join(f"\\{ord(c):03o}" if c in " \t\n\\#" else c for c in text)
