"""The `unsandboxed` backend: commands run as this user, in a copy of the tree. It protects from nothing."""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

from envsdk.failures import ConfigurationError
from envsdk.sandbox import scripts
from envsdk.sandbox.contract import (
    ExecEnd,
    ExecResult,
    Image,
    Limits,
    SandboxError,
    SandboxFileError,
    SandboxUnavailable,
    Snapshot,
)
from envsdk.sandbox.output import exact
from envsdk.sandbox.process import Finished, Process, fed
from envsdk.sandbox.settings import UnsandboxedSettings, parse_settings
from envsdk.sandbox.threads import in_thread

log = logging.getLogger(__name__)

_OWN_WORK_TIMEOUT_S = 120.0
_MAX_PATCH_BYTES = 64 << 20


@dataclass(frozen=True, slots=True)
class CopySnapshot:
    folder: Path


@dataclass(slots=True, eq=False)
class Unsandboxed:
    """A copy of a tree, and no protection. Made by `UnsandboxedBackend.start`."""

    id: str
    image: Image
    limits: Limits
    folder: Path
    slots: asyncio.Semaphore
    _lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    _closed: bool = False

    @property
    def tree(self) -> Path:
        return self.folder / "tree"

    async def exec(
        self,
        script: str,
        *,
        timeout_s: float,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        stdin: bytes = b"",
    ) -> ExecResult:
        async with self._lock, self.slots:
            if not await self.alive():
                return ExecResult.infrastructure("the sandbox is closed")
            folder = self._place(cwd or self.image.workdir)
            file = self.folder / "command"
            file.write_text(script, errors="surrogateescape")
            try:
                with fed(stdin) as given:
                    finished = await self._run(
                        ["bash", "-c", 'cd -- "$1" && exec bash "$2"', "bash", str(folder), str(file)],
                        {**self.image.env, **(env or {})},
                        timeout_s,
                        self.limits.kept_output_bytes,
                        self.limits.output_bytes,
                        given,
                    )
            except OSError as error:
                return ExecResult.infrastructure(str(error))
        text = await asyncio.to_thread(finished.output.text)
        ended = finished.reason is ExecEnd.EXIT
        code = finished.returncode if finished.returncode >= 0 else 128 - finished.returncode
        return ExecResult(
            output=text,
            returncode=code if ended else 137,
            reason=finished.reason,
            elapsed_s=finished.elapsed_s,
            total_bytes=finished.output.total,
        )

    async def read(self, path: str, *, max_bytes: int = 32 << 20) -> bytes:
        place = self._inside(path)
        if not place.is_file():
            raise SandboxFileError(f"{path}: it is missing or not a regular file")
        if place.stat().st_size > max_bytes:
            raise SandboxFileError(f"{path}: it is too large")
        return await asyncio.to_thread(place.read_bytes)

    async def write(self, path: str, data: bytes) -> None:
        place = self._inside(path)
        try:
            place.parent.mkdir(parents=True, exist_ok=True)
            await in_thread(place.write_bytes, data)
        except OSError as error:
            raise SandboxFileError(f"{path}: {error.strerror}") from error

    async def diff(self) -> str:
        if self.image.tree is None or not (self.image.tree / ".git").is_dir():
            raise SandboxFileError("the image names no git repository: there is no commit to compare with")
        async with self._lock, self.slots:
            scratch = tempfile.mkdtemp(dir=self.folder)
            finished = await self._run(
                ["bash", "-c", scripts.diff_script(str(self.image.tree.resolve() / ".git"), scratch)],
                {"SANDBOX_WORKDIR": str(self.tree)},
                _OWN_WORK_TIMEOUT_S,
                2 * _MAX_PATCH_BYTES,
                _MAX_PATCH_BYTES,
            )
        if finished.reason is not ExecEnd.EXIT or finished.returncode:
            raise SandboxFileError(f"the tree cannot be compared: {finished.reason}, {finished.returncode}")
        return await asyncio.to_thread(lambda: exact(finished.output.content()))

    async def pack(self, *, max_bytes: int = 4 << 30) -> bytes:
        """The files of the copy alone: `/tmp` is this machine's."""
        async with self._lock:
            archive = await asyncio.to_thread(_tar, self.tree, "--create", "--gzip", ".")
        if len(archive) > max_bytes:
            raise SandboxFileError(f"{self.image.workdir}: it is too large")
        return archive

    async def unpack(self, archive: bytes) -> None:
        async with self._lock:
            await in_thread(shutil.rmtree, self.tree)
            self.tree.mkdir()
            await in_thread(_tar, self.tree, "--extract", "--gzip", given=archive)

    async def snapshot(self) -> Snapshot:
        async with self._lock:
            kept = self.folder / f"kept-{secrets.token_hex(4)}"
            await in_thread(shutil.copytree, self.tree, kept, symlinks=True)
            return CopySnapshot(kept)

    async def restore(self, snapshot: Snapshot) -> None:
        assert isinstance(snapshot, CopySnapshot)
        async with self._lock:
            await in_thread(shutil.rmtree, self.tree)
            await in_thread(shutil.copytree, snapshot.folder, self.tree, symlinks=True)

    async def alive(self) -> bool:
        return not self._closed and self.tree.is_dir()

    async def close(self) -> None:
        self._closed = True
        await asyncio.to_thread(shutil.rmtree, self.folder, ignore_errors=True)

    async def _run(
        self,
        argv: list[str],
        env: Mapping[str, str],
        timeout_s: float,
        keep: int,
        max_output: int,
        stdin: int | None = None,
    ) -> Finished:
        process = Process.start(
            argv,
            env={
                "PATH": os.environ.get("PATH", os.defpath),
                "HOME": str(self.folder),
                "LANG": "C.UTF-8",
                **env,
            },
            pass_fds=(),
            stdin=subprocess.DEVNULL if stdin is None else stdin,
            status=None,
            keep=keep,
            max_output=max_output,
        )
        return await process.finish(timeout_s)

    def _place(self, path: str) -> Path:
        """Where a path inside is on this machine: below `workdir` in the copy, elsewhere as it is."""
        absolute = PurePosixPath(self.image.workdir) / path
        if absolute.is_relative_to(self.image.workdir):
            return self.tree / absolute.relative_to(self.image.workdir)
        return Path(absolute)

    def _inside(self, path: str) -> Path:
        """A file of the copy. Raises SandboxFileError: it is none."""
        place = self._place(path)
        if "\0" in path or not place.resolve().is_relative_to(self.tree.resolve()):
            raise SandboxFileError(f"{path!r} is outside of {self.image.workdir}")
        return place


class UnsandboxedBackend:
    """Runs commands on this machine as they are, for programs that are trusted.

    Raises ConfigurationError: the settings do not say in as many words that this is wanted.
    """

    name = "unsandboxed"

    def __init__(self, settings: Mapping[str, Any]) -> None:
        if settings.get("commands_may_do_anything_to_this_machine") is not True:
            raise ConfigurationError(
                "backend `unsandboxed` runs what a policy writes as this user, with its files, network and "
                "secrets: set `commands_may_do_anything_to_this_machine: true` if that is wanted"
            )
        self.settings = parse_settings(UnsandboxedSettings, settings, backend=self.name)
        self._slots = asyncio.Semaphore(self.settings.commands_at_once)
        self._sandboxes: list[Unsandboxed] = []

    async def probe(self) -> None:
        if shutil.which("bash") is None:
            raise SandboxUnavailable("there is no bash: install it")
        log.warning("commands run without a sandbox: they may do anything to this machine")

    async def start(self, image: Image, *, limits: Limits | None = None) -> Unsandboxed:
        outside = [path for path in image.binds if not PurePosixPath(path).is_relative_to(image.workdir)]
        if outside or image.container is not None:
            raise ConfigurationError(
                f"backend `unsandboxed` cannot show {outside or image.container}: nothing is graded in it; "
                "use another sandbox backend"
            )
        folder = Path(tempfile.mkdtemp(prefix="envsdk-unsandboxed-"))
        try:
            await in_thread(_lay_out, image, folder)
        except BaseException as error:
            await in_thread(shutil.rmtree, folder, ignore_errors=True)
            if isinstance(error, OSError):
                raise SandboxError(f"the tree could not be copied: {error}") from error
            raise
        sandbox = Unsandboxed(secrets.token_hex(6), image, limits or Limits(), folder, self._slots)
        self._sandboxes.append(sandbox)
        return sandbox

    async def aclose(self) -> None:
        await asyncio.gather(*(sandbox.close() for sandbox in self._sandboxes))
        self._sandboxes.clear()


def _tar(folder: Path, *arguments: str, given: bytes = b"") -> bytes:
    """What tar prints, working in `folder`. Raises SandboxFileError: it fails."""
    done = subprocess.run(["tar", *arguments], cwd=folder, input=given, check=False, capture_output=True)
    if done.returncode:
        raise SandboxFileError(f"{folder}: {done.stderr.decode(errors='replace').strip()[-500:]}")
    return done.stdout


def _lay_out(image: Image, folder: Path) -> None:
    if image.tree is None:
        (folder / "tree").mkdir()
    else:
        shutil.copytree(image.tree, folder / "tree", symlinks=True)
    for inside, source in image.binds.items():
        target = folder / "tree" / PurePosixPath(inside).relative_to(image.workdir)
        if source.is_dir():
            shutil.copytree(source, target, symlinks=True, dirs_exist_ok=True)
        else:
            shutil.copyfile(source, target)
