"""What an agent has left, made safe before a verifier sees it; pure but for a temporary file.

The archive of an artifact is made inside the agent's box, by programs that the agent may have replaced: its
every header is doubted. What comes out holds folders, plain files and links that stay inside, all of one time
and owner, within bounds.
"""

from __future__ import annotations

import io
import posixpath
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass

_MODE = 0o755
"""What may be set of a file's mode: nobody else writes, and no program runs as its owner."""
_MAX_NAMED = 5
_MAX_PATH_BYTES = 1024
"""Longer ones may be more than a path is allowed to be in the verifier's box, or around it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """Limits of all artifacts of a check together."""

    bytes: int
    files: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Safe:
    """An archive for the verifier's box."""

    archive: bytes
    is_folder: bool
    """Whether it holds a folder's content, and not one file."""
    num_bytes: int
    """Size of its files, holes of sparse ones included."""
    num_files: int
    left_out: tuple[str, ...]
    """Entries that were not taken, with why; a few of them."""


class Refused(Exception):
    """An archive of which nothing is taken."""


def made_safe(archive: bytes, name: str, bounds: Bounds, *, mtime: float) -> Safe:
    """The entries that a verifier may see of the tar archive of a folder, or of one file `name`.

    Raises Refused: it is no archive, or over `bounds`.
    """
    out = io.BytesIO()
    left_out: list[str] = []
    kept = _Kept(bounds, name)
    try:
        # `r:`: one that is packed further could grow without bounds.
        with tarfile.open(fileobj=io.BytesIO(archive), mode="r:") as tar, _writer(out) as safe:
            for member in tar:
                kept.count(member)
                inner = posixpath.normpath(member.name)
                if why := kept.refusal(inner, member):
                    left_out.append(f"{inner[:80]!r}: {why}")
                else:
                    _copy(tar, member, inner, safe, mtime)
    except (tarfile.TarError, OSError, EOFError, ValueError, OverflowError) as error:
        raise Refused(f"its archive cannot be read: {error}") from None
    more = len(left_out) - _MAX_NAMED
    named = (*left_out[:_MAX_NAMED], *((f"and {more} more",) if more > 0 else ()))
    is_folder = kept.kinds.get(".") == "folder"
    return Safe(
        archive=out.getvalue(),
        is_folder=is_folder,
        num_bytes=kept.bytes,
        num_files=kept.files,
        left_out=named,
    )


class _Kept:
    """What has been taken of one archive."""

    def __init__(self, bounds: Bounds, name: str) -> None:
        self.bounds = bounds
        self.name = name
        self.bytes = self.files = 0
        self.kinds: dict[str, str] = {}
        """`file`, `folder` or `link`, by name."""

    def count(self, member: tarfile.TarInfo) -> None:
        """Raises Refused: the archive says that it is over the bounds."""
        self.files += 1
        self.bytes += max(member.size, 0)
        if member.size < 0 or self.bytes > self.bounds.bytes:
            raise Refused(f"larger than {self.bounds.bytes >> 20} MB")
        if self.files > self.bounds.files:
            raise Refused(f"more than {self.bounds.files:,} files")

    def refusal(self, name: str, member: tarfile.TarInfo) -> str:
        """Why an entry is not taken; empty where it is."""
        if name.startswith(("/", "../")) or name == ".." or "\0" in name:
            return "leads out of the artifact"
        if len(name.encode(errors="surrogateescape")) > _MAX_PATH_BYTES:
            return f"has a path of over {_MAX_PATH_BYTES:,} bytes"
        if "." not in self.kinds and not (name == "." and member.isdir()) and name != self.name:
            return "is not the artifact"
        if any(self.kinds.get(parent) not in (None, "folder") for parent in _parents(name)):
            return "lies below a file or a link"
        if member.issym() and not _stays_inside(name, member.linkname):
            return "is a link that leads out of the artifact"
        if member.islnk() and self.kinds.get(posixpath.normpath(member.linkname)) != "file":
            return "is a hard link to a file outside"
        if not (member.isfile() or member.isdir() or member.islnk() or member.issym()):
            return "is a device, a pipe or a socket"
        kind = "folder" if member.isdir() else "link" if member.issym() else "file"
        if self.kinds.setdefault(name, kind) != kind:
            return "is there twice"
        for parent in _parents(name):
            self.kinds[parent] = "folder"
        return ""


def _stays_inside(name: str, target: str) -> bool:
    """Whether the link `name` leads inside through whatever other links: it goes up first, if at all."""
    parts = [part for part in target.split("/") if part not in ("", ".")]
    ups = next((number for number, part in enumerate(parts) if part != ".."), len(parts))
    return not target.startswith("/") and ".." not in parts[ups:] and ups <= name.count("/")


def _parents(name: str) -> Iterator[str]:
    while name := posixpath.dirname(name):
        yield name


def _copy(
    tar: tarfile.TarFile, member: tarfile.TarInfo, name: str, safe: tarfile.TarFile, mtime: float
) -> None:
    made = tarfile.TarInfo(name)
    made.mtime, made.type = mtime, member.type
    made.linkname = posixpath.normpath(member.linkname) if member.islnk() else member.linkname
    made.mode = (member.mode & _MODE) | (0o700 if member.isdir() else 0o600)
    if not member.isfile():
        safe.addfile(made)
        return
    made.type, made.size = tarfile.REGTYPE, member.size
    safe.addfile(made, tar.extractfile(member))


def _writer(out: io.BytesIO) -> tarfile.TarFile:
    return tarfile.open(fileobj=out, mode="w:", format=tarfile.PAX_FORMAT)
