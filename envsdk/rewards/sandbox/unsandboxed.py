"""The `unsandboxed` backend: commands run as this user, in a copy of the tree. It protects from nothing."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import secrets
import shutil
import tempfile
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Any

from envsdk.contracts.failures import ConfigurationError
from envsdk.rewards.sandbox import scripts
from envsdk.rewards.sandbox.contract import (
    Image,
    Limits,
    SandboxError,
    SandboxFileError,
    SandboxUnavailable,
    check_image,
)
from envsdk.rewards.sandbox.process import Finished, Process
from envsdk.rewards.sandbox.settings import UnsandboxedSettings, parse_settings
from envsdk.rewards.sandbox.shell_sandbox import ShellSandbox, Work, standard_input
from envsdk.rewards.sandbox.threads import in_thread

log = logging.getLogger(__name__)


@dataclass(slots=True, eq=False, kw_only=True)
class Unsandboxed(ShellSandbox):
    """A copy of a tree, and no protection. Made by `UnsandboxedBackend.start`.

    `/tmp` is this machine's, so `pack` leaves it out.
    """

    pack_script = scripts.PACK_TREE
    unpack_script = scripts.UNPACK_TREE

    folder: Path

    @property
    def tree(self) -> Path:
        return self.folder / "tree"

    async def _run(self, work: Work) -> Finished:
        file = self.folder / "command"
        file.write_text(work.script, errors="surrogateescape")
        folder = self._place(work.cwd)
        async with standard_input(work) as stdin:
            process = Process.start(
                ["bash", "-c", 'cd -- "$1" && exec bash "$2"', "bash", str(folder), str(file)],
                env={
                    "PATH": os.environ.get("PATH", os.defpath),
                    "HOME": str(self.folder),
                    "LANG": "C.UTF-8",
                    **work.env,
                },
                pass_fds=(),
                stdin=stdin,
                status=None,
                keep=work.keep,
                max_output=work.limits.output_bytes,
            )
            finished = await process.finish(work.timeout_s)
        code = finished.returncode
        return replace(finished, returncode=code if code >= 0 else 128 - code)

    @contextlib.asynccontextmanager
    async def _comparison(self, repository: Path) -> AsyncIterator[tuple[str, bytes]]:
        scratch = tempfile.mkdtemp(dir=self.folder)
        yield scripts.diff_script(str(await asyncio.to_thread(repository.resolve)), scratch), b""

    def _is_gone(self) -> bool:
        return self._closed or not self.tree.is_dir()

    async def close(self) -> None:
        self._closed = True
        await asyncio.to_thread(shutil.rmtree, self.folder, ignore_errors=True)

    def _place(self, path: str) -> Path:
        """Where a path inside is on this machine: below `workdir` in the copy, elsewhere as it is."""
        absolute = PurePosixPath(self.image.workdir) / path
        if absolute.is_relative_to(self.image.workdir):
            return self.tree / absolute.relative_to(self.image.workdir)
        return Path(absolute)

    def _absolute(self, path: str) -> str:
        """The place of a file of the copy. Raises SandboxFileError: it is none."""
        place = self._place(path)
        if "\0" in path or not place.resolve().is_relative_to(self.tree.resolve()):
            raise SandboxFileError(f"{path!r} is outside of {self.image.workdir}")
        return str(place)


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
        check_image(image)
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
        sandbox = Unsandboxed(
            id=secrets.token_hex(6), image=image, limits=limits or Limits(), slots=self._slots, folder=folder
        )
        self._sandboxes.append(sandbox)
        return sandbox

    async def aclose(self) -> None:
        await asyncio.gather(*(sandbox.close() for sandbox in self._sandboxes))
        self._sandboxes.clear()


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
