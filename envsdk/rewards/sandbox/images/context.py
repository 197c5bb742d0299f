"""The files of a build's context: which of them COPY means, what they hold, and their archive."""

from __future__ import annotations

import glob
import hashlib
import io
import os
import stat
import tarfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import IO

from e2b_dockerfile_utils import PatternMatcher

from envsdk.contracts.failures import ConfigurationError
from envsdk.rewards.sandbox.images.build import Build
from envsdk.rewards.sandbox.images.dockerfile import Copy


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One file, link or folder to copy."""

    name: str
    """Path in the archive."""
    source: Path | None
    """None: `content` is what it holds."""
    content: bytes = b""
    mode: int | None = None
    """None: the source's."""
    is_inner: bool = False
    """Whether a folder was to be copied, and this is part of it."""

    @property
    def permissions(self) -> int:
        if self.mode is not None:
            return self.mode
        return 0o644 if self.source is None else stat.S_IMODE(self.source.lstat().st_mode)


@dataclass(frozen=True, slots=True)
class Context:
    """A folder without what its `.dockerignore` names."""

    folder: Path
    ignored: PatternMatcher

    @classmethod
    def open(cls, folder: Path, dockerfile: Path) -> Context:
        """Raises ConfigurationError: there is no such folder, or a pattern is wrong."""
        if not folder.is_dir():
            raise ConfigurationError(f"the build context {folder} is no folder")
        for file in (dockerfile.with_name(f"{dockerfile.name}.dockerignore"), folder / ".dockerignore"):
            if file.is_file():
                try:
                    return cls(folder.resolve(), PatternMatcher(file.read_text().splitlines()))
                except ValueError as error:
                    raise ConfigurationError(f"{file}: {error}") from None
        return cls(folder.resolve(), PatternMatcher([]))

    def entries(self, copy: Copy) -> list[Entry]:
        """What COPY or ADD takes, in order. Of a folder its content.

        Raises ValueError: a source is not there, or leads out of the context.
        """
        found = [
            Entry(name=PurePosixPath(name).name, source=None, content=content.encode(), mode=copy.mode)
            for name, content in copy.files.items()
        ]
        for source in copy.sources:
            matched = list(self._matched(source.lstrip("/") or "."))
            if not matched:
                raise ValueError(
                    f"{source}: there is no such file in {self.folder}, or .dockerignore names it"
                )
            for path in matched:
                found += [replace(entry, mode=copy.mode) for entry in self._below(path)]
        return found

    def _matched(self, source: str) -> Iterator[str]:
        if glob.has_magic(source):
            # Python's patterns negate by another character.
            pattern = source.replace("[^", "[!")
            names = sorted(glob.glob(pattern, root_dir=self.folder, include_hidden=True))
            names = [name for name in names if not self.ignored.matches(name)]
        else:
            names = [str(PurePosixPath(source))]
            if (
                source != "."
                and self.ignored.matches(names[0])
                and not self.ignored.may_match_under(names[0])
            ):
                names = []
        for name in names:
            place = (self.folder / name).resolve()
            if not place.is_relative_to(self.folder):
                raise ValueError(f"{name}: the link leads out of {self.folder}")
            if place.exists():
                yield name

    def _below(self, name: str) -> Iterator[Entry]:
        place = (self.folder / name).resolve()
        if not place.is_dir():
            yield Entry(name=PurePosixPath(name).name, source=place)
        else:
            yield from self._walk(place, "" if name == "." else name, "")

    def _walk(self, folder: Path, path: str, name: str) -> Iterator[Entry]:
        """Below `folder`, which is `path` in the context and `name` in the archive."""
        for inner in sorted(folder.iterdir()):
            inner_path, inner_name = f"{path}/{inner.name}".lstrip("/"), f"{name}/{inner.name}".lstrip("/")
            kind = inner.lstat().st_mode
            is_left_out = self.ignored.matches(inner_path)
            if stat.S_ISDIR(kind):
                if not is_left_out:
                    yield Entry(name=inner_name, source=inner, is_inner=True)
                if not is_left_out or self.ignored.may_match_under(inner_path):
                    yield from self._walk(inner, inner_path, inner_name)
            elif not is_left_out and (stat.S_ISREG(kind) or stat.S_ISLNK(kind)):
                yield Entry(name=inner_name, source=inner, is_inner=True)


def digest_of(entries: Iterable[Entry]) -> str:
    """Digest of names, kinds, modes and contents; times do not count."""
    total = hashlib.sha256()
    for entry in entries:
        total.update(repr((entry.name, entry.permissions, entry.content)).encode("utf-8", "surrogateescape"))
        if entry.source is None:
            continue
        if entry.source.is_symlink():
            total.update(b"link" + os.fsencode(os.readlink(entry.source)))
        elif entry.source.is_file():
            with entry.source.open("rb") as file:
                total.update(hashlib.file_digest(file, "sha256").digest())
        else:
            total.update(b"folder")
    return total.hexdigest()


def digest_of_build(build: Build) -> str:
    """Digest of all that the image may depend on."""
    context = Context.open(build.context, build.file)
    everything = context.entries(Copy(line=0, sources=(".",), files={}, target="/"))
    given = (build.file.read_bytes(), build.target, sorted(build.args.items()), digest_of(everything))
    return hashlib.sha256(repr(given).encode("utf-8", "surrogateescape")).hexdigest()


def write_archive(entries: Iterable[Entry], target: IO[bytes]) -> None:
    """The entries as a tar archive of no owner."""
    with tarfile.open(fileobj=target, mode="w|") as archive:
        for entry in entries:
            if entry.source is None:
                info = tarfile.TarInfo(entry.name)
                info.size = len(entry.content)
            else:
                info = archive.gettarinfo(entry.source, entry.name)
            info.mode, info.uid, info.gid, info.uname, info.gname = entry.permissions, 0, 0, "", ""
            if entry.source is None:
                archive.addfile(info, io.BytesIO(entry.content))
            elif info.isreg() or info.islnk():
                # Two links to one file are two files.
                with entry.source.open("rb") as file:
                    info.type, info.size = tarfile.REGTYPE, os.fstat(file.fileno()).st_size
                    archive.addfile(info, file)
            else:
                archive.addfile(info)
