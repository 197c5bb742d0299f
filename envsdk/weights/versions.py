"""Folders of published weights: complete or absent, with digests, only the newest few.

    .version_000003.partial/ --digests, fsync, rename--> version_000003/ --hold--> links of an explorer's own
                                                         --rename--> .version_000003.removed/ --> deleted

One trainer writes, any number of programs read. A folder may vanish under its reader, who gets
`VersionGone` and takes the newest. What was held stays, because links keep the files.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path

from envsdk.base.store.atomic import (
    fsync_path,
    make_folder,
    remove_folder,
    replaced_folder,
    storage_error,
    write_json_atomically,
)
from envsdk.contracts.failures import EngineError, StorageError

KEEP_LAST = 3
MANIFEST = "version.json"
_FORMAT = 1
_CANNOT_LINK = {
    errno.EXDEV,
    errno.EPERM,
    errno.EACCES,
    errno.EMLINK,
    errno.ENOTSUP,
    errno.ENOSYS,
    errno.EINVAL,
}
"""Errors of links to another disk, of another user's files, or on file systems without links."""


class VersionGone(EngineError):
    """A version is no longer there, or not as it was written: another is, or soon will be."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredFile:
    """One file of a version."""

    num_bytes: int
    sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """The content of `version.json`."""

    version: int
    step: int
    """Batches that its weights were trained on."""
    number: int
    """Counts the versions that were written into the folder: a trainer may go back."""
    files: Mapping[str, StoredFile]
    """Files by name; all others are no part of the version."""


def folder_name(version: int) -> str:
    """Folder name of a version."""
    return f"version_{version:06d}"


def write_version(
    folder: Path, version: int, step: int, fill: Callable[[Path], None], *, keep_last: int = KEEP_LAST
) -> Path:
    """Let `fill` write files into an empty folder, and make it a version. Older ones are removed.

    A version that was there under this number is replaced. StorageError when that cannot be written; nothing
    half-written has the name of a version.
    """
    make_folder(folder)
    earlier = _in_order(folder)
    number = earlier[-1][0] + 1 if earlier else 1
    final = folder / folder_name(version)
    for leftover in (*folder.glob(".version_*.partial"), *folder.glob(".version_*.removed")):
        shutil.rmtree(leftover, ignore_errors=True)
    with replaced_folder(final, "write the weights") as partial:
        fill(partial)
        files = _sealed(sorted(partial.iterdir()))
        _write_manifest(partial, Manifest(version=version, step=step, number=number, files=files))
    others = [path for _, path in earlier if path != final]
    for old in others[: max(0, len(others) - (keep_last - 1))]:
        remove_folder(old)
    return final


def hold_version(source: Path, into: Path) -> tuple[Manifest, Path]:
    """Keep a version in a folder of this program's own, checked: by links where that works, or as a copy.

    VersionGone when the version is not there (any more) or damaged, StorageError when it cannot be kept.
    """
    make_folder(into)
    final = into / source.name
    with replaced_folder(final, "keep the weights in") as partial:
        manifest = read_manifest(source)
        for name, stored in manifest.files.items():
            _link_or_copy(source / name, partial / name)
            if _digest(partial / name) != stored:
                raise VersionGone(
                    f"{source / name} is not what the trainer wrote: it is damaged, or being replaced"
                )
        _write_manifest(partial, manifest)
    return manifest, final


def read_manifest(folder: Path) -> Manifest:
    """VersionGone when the folder is no complete version."""
    try:
        held = json.loads((folder / MANIFEST).read_bytes())
        files = {name: StoredFile(**stored) for name, stored in held["files"].items()}
        is_plain = all(Path(name).name == name for name in files)
        if held["format"] > _FORMAT or not is_plain:
            raise StorageError(f"{folder} was written by a later envsdk: upgrade this one")
        return Manifest(version=held["version"], step=held["step"], number=held["number"], files=files)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise VersionGone(f"the weights in {folder} are gone: only the newest few are kept") from error
    except OSError as error:
        raise storage_error("read the weights", folder, error) from error
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise VersionGone(f"{folder / MANIFEST} is damaged: {error}") from error


def _in_order(folder: Path) -> list[tuple[int, Path]]:
    """In the order in which they were written; one that cannot be read counts as the oldest."""
    found = []
    for path in folder.glob("version_*"):
        try:
            found.append((read_manifest(path).number, path))
        except VersionGone:
            found.append((0, path))
    return sorted(found)


def _write_manifest(folder: Path, manifest: Manifest) -> None:
    write_json_atomically(folder / MANIFEST, {"format": _FORMAT, **asdict(manifest)})


def _sealed(paths: Sequence[Path]) -> dict[str, StoredFile]:
    """Force files onto the disk, and describe them meanwhile."""
    with ThreadPoolExecutor(max_workers=1) as disk:
        syncing = [disk.submit(fsync_path, path) for path in paths]
        files = {path.name: _digest(path) for path in paths}
        for each in syncing:
            each.result()
    return files


def _digest(path: Path) -> StoredFile:
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
        return StoredFile(num_bytes=file.tell(), sha256=digest)


def _link_or_copy(source: Path, target: Path) -> None:
    try:
        try:
            os.link(source, target)
        except OSError as error:
            if error.errno not in _CANNOT_LINK:
                raise
            shutil.copyfile(source, target)
    except OSError as error:
        if error.errno not in (errno.ENOENT, errno.ESTALE):
            raise
        raise VersionGone(
            f"the weights in {source.parent} vanished while they were read: newer ones are there"
        ) from error
