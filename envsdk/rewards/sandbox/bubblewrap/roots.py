"""Roots that a sandbox may write: the bases of images, and what lies below a sandbox's own layer.

A base made of this machine holds only folders, of the sandboxes' user, that are laid over this machine's:
an overlay takes a folder's owner from the upper one, so the user may add, replace and delete everywhere, and
nothing is copied. Files of this machine keep their owner, so they are replaced rather than changed in place.
"""

from __future__ import annotations

import hashlib
import os
import stat
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path, PurePosixPath

from envsdk.contracts.failures import ConfigurationError
from envsdk.rewards.sandbox.bubblewrap.launch import OWN_MOUNTS, System, root_mounts
from envsdk.rewards.sandbox.bubblewrap.layers import Layers
from envsdk.rewards.sandbox.bubblewrap.state import OverlayState, Owner, copy_tree
from envsdk.rewards.sandbox.bubblewrap.system import Interpreter, copy_of_etc, make_etc
from envsdk.rewards.sandbox.contract import Image, Root

BASE_ENV = {"LANG": "C.UTF-8", "TERM": "dumb", "PAGER": "cat", "PYTHONDONTWRITEBYTECODE": "1"}
"""Variables of every command in a root of its own; images may set them otherwise."""
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
ETC = {
    "passwd": "root:x:0:0:root:/root:/bin/bash\nnobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n",
    "group": "root:x:0:\nnogroup:x:65534:\n",
    "nsswitch.conf": "passwd: files\ngroup: files\nhosts: files dns\n",
    "resolv.conf": "",
    "shadow": "root:*:20000:0:99999:7:::\nnobody:*:20000:0:99999:7:::\n",
}
"""Files of a base made of this machine; the rest is as in every sandbox."""
MACHINE_ETC = (
    *("ssl/certs", "ssl/openssl.cnf", "ca-certificates", "login.defs", "protocols", "services"),
    *("adduser.conf", "alternatives", "pam.d", "skel"),
)
MAX_LOWER_BYTES = 3500
"""Paths of an overlay's layers: the kernel takes a page of options, which the upper ones share."""
_FOLDERS = (*("dev", "home", "mnt", "opt", "proc", "root", "run", "srv", "sys", "usr"), "var/log", "var/lib")
_LOCAL_FOLDERS = ("bin", "etc", "include", "lib", "sbin", "share", "src")
_OPEN_FOLDERS = ("tmp", "var/tmp")


def part_of(number: int) -> str:
    """The part of a layer that lies over the root's place of this number."""
    return f"place-{number}"


def choose_base(
    source: Path | str, system: System, python: Interpreter, owner: Owner
) -> tuple[str, tuple[str, ...], Callable[[Path], None]]:
    """Name, places and maker of the base that the settings call `source`.

    Raises ConfigurationError: it is no root file system.
    """
    if source == "host":
        folders = {*system.folders, *(str(folder) for folder in python.outside_usr)}
        places = tuple(sorted(f for f in folders if not folders & set(map(str, PurePosixPath(f).parents))))
        # Another one after programs were installed.
        stamps = [os.stat(folder).st_mtime_ns for place in places for folder in (place, *_inner(place))]
        name = digest("machine", MACHINE_ETC, system, places, owner, stamps)
        return name, places, partial(_make_machine_base, system=system, places=places, owner=owner)
    folder = Path(source).absolute()
    if not (folder / "usr").is_dir():
        raise ConfigurationError(f"`images` names {folder}, which is no root file system")
    found = folder.stat()
    name = digest("exported", str(folder), found.st_ino, found.st_mtime_ns, owner)
    return name, (), partial(_make_exported_base, source=folder, owner=owner)


def digest(*what: object) -> str:
    return hashlib.sha256(repr(what).encode("utf-8", "surrogateescape")).hexdigest()[:16]


def _inner(place: str) -> Iterator[str]:
    with os.scandir(place) as entries:
        yield from sorted(entry.path for entry in entries if entry.is_dir(follow_symlinks=False))


def _make_machine_base(folder: Path, system: System, places: Sequence[str], owner: Owner) -> None:
    root = folder / "root"
    for name in _FOLDERS:
        (root / name).mkdir(parents=True)
    for name in _OPEN_FOLDERS:
        (root / name).mkdir(parents=True)
        (root / name).chmod(0o1777)
    make_etc(root / "etc")
    for name, content in ETC.items():
        (root / "etc" / name).write_text(content)
    copy_of_etc(root / "etc", MACHINE_ETC)
    for target, path in system.links:
        (root / path[1:]).symlink_to(target)
    (root / "etc/apt").mkdir()
    for number, place in enumerate(places):
        (root / place[1:]).mkdir(parents=True, exist_ok=True)
        _copy_folders(place, folder / part_of(number), frozenset(system.hidden), owner)
    _finish(folder, owner)


def _copy_folders(source: str, target: Path, hidden: frozenset[str], owner: Owner) -> None:
    target.mkdir(mode=stat.S_IMODE(os.stat(source).st_mode) | 0o700)
    if source in hidden:
        os.setxattr(target, f"{'trusted' if owner.is_root else 'user'}.overlay.opaque", b"y")
        for name in _LOCAL_FOLDERS if source == "/usr/local" else ():
            (target / name).mkdir()
        return
    try:
        with os.scandir(source) as entries:
            inner = [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]
    except PermissionError:
        return
    for name in inner:
        _copy_folders(f"{source}/{name}", target / name, hidden, owner)


def _make_exported_base(folder: Path, source: Path, owner: Owner) -> None:
    """A copy of a whole root file system that lies at `source`."""
    copy_tree(source, folder / "root")
    devices = ["find", str(folder), "(", "-type", "b", "-o", "-type", "c", ")", "-delete"]
    subprocess.run(devices, check=True, capture_output=True)
    _finish(folder, owner)


def _finish(folder: Path, owner: Owner) -> None:
    """Give a base to the sandboxes' user, and tell apt that there is no other."""
    if (folder / "root/etc/apt").is_dir():
        (folder / "root/etc/apt/apt.conf.d").mkdir(exist_ok=True)
        (folder / "root/etc/apt/apt.conf.d/90one-user").write_text('APT::Sandbox::User "root";\n')
    if owner.is_root:
        names = [str(path) for path in folder.iterdir()]
        command = ["chown", "-hR", f"{owner.uid}:{owner.gid}", "--", *names]
        subprocess.run(command, check=True, capture_output=True)


def lower_parts(layers: Layers, root: Root) -> dict[str, list[Path]]:
    """What lies below each part of a sandbox's state.

    Raises ConfigurationError: the layers are too many.
    """
    parts = {"root": layers.parts(root.layers, "root")}
    if sum(len(str(folder)) + 1 for folder in parts["root"]) > MAX_LOWER_BYTES:
        raise ConfigurationError(
            f"the image has {len(root.layers)} layers, too many for one overlay: join instructions, or set a "
            "shorter `state_dir`"
        )
    for number, place in enumerate(root.places):
        parts[part_of(number)] = [*layers.parts(root.layers, part_of(number)), Path(place)]
    return parts


def own_mounts(image: Image, root: Root, binds: Mapping[str, Path]) -> list[tuple[str, str]]:
    """What a sandbox of `image` binds of its writable parts."""
    parts = {"root": "/"} | {part_of(number): place for number, place in enumerate(root.places)}
    if image.tree is not None:
        parts["tree"] = image.workdir
    return root_mounts(parts, [*inner_places(binds), *(f"{place}/inside" for place in image.renewed)])


def inner_places(binds: Mapping[str, Path]) -> list[str]:
    """Where something is mounted inside what commands may write."""
    return [path for path in binds if not any(PurePosixPath(path).is_relative_to(own) for own in OWN_MOUNTS)]


def lay_points(state: OverlayState, mounts: Sequence[tuple[str, str]], binds: Mapping[str, Path]) -> None:
    """Make the folders and files that something is mounted on, in a new sandbox's layer.

    Raises ConfigurationError: the image has a link on the way, or a file.
    """
    for source, path in mounts:
        _lay(state, source, path, is_folder=True)
    for path in inner_places(binds):
        source, place = next(
            (source, place) for source, place in reversed(mounts) if PurePosixPath(path).is_relative_to(place)
        )
        inner = PurePosixPath(source) / PurePosixPath(path).relative_to(place)
        _lay(state, str(inner), path, is_folder=binds[path].is_dir())


def _lay(state: OverlayState, source: str, path: str, *, is_folder: bool) -> None:
    part, _, inside = source.partition("/")
    if not inside:
        return
    target = state.folder / "layers" / state.layers[-1] / part / inside
    below = next((found for lower in state.parts[part] if os.path.lexists(found := lower / inside)), None)
    mode = below.lstat().st_mode if below is not None else None
    if mode is not None and not stat.S_ISCHR(mode) and is_folder != stat.S_ISDIR(mode):
        raise ConfigurationError(
            f"the image has no {'folder' if is_folder else 'file'} at {path}, where one is shown"
        )
    if target.exists():
        return
    if is_folder:
        target.mkdir()
        target.chmod(stat.S_IMODE(mode) if mode is not None and stat.S_ISDIR(mode) else 0o755)
    else:
        target.touch()
    state.owner.give(target)
