"""Dockerfiles without a container program: an instruction is a sandbox whose files become a layer.

base -> for each step: its layer by name, or a sandbox on the layers so far -> exec -> its files as a layer
"""

from __future__ import annotations

import re
import shlex
import tempfile
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import PurePosixPath
from typing import IO, TYPE_CHECKING

from e2b_dockerfile_utils import PatternMatcher

from envsdk.contracts.failures import ConfigurationError
from envsdk.rewards.sandbox import scripts
from envsdk.rewards.sandbox.bubblewrap.roots import digest
from envsdk.rewards.sandbox.bubblewrap.sandbox import BubblewrapSandbox, is_number
from envsdk.rewards.sandbox.contract import (
    ExecEnd,
    ExecResult,
    Image,
    Root,
    SandboxError,
    SandboxFileError,
)
from envsdk.rewards.sandbox.images.build import Build
from envsdk.rewards.sandbox.images.context import Context, digest_of, write_archive
from envsdk.rewards.sandbox.images.dockerfile import Copy, Run, Stage, read_dockerfile
from envsdk.rewards.sandbox.threads import in_thread

if TYPE_CHECKING:
    from envsdk.rewards.sandbox.bubblewrap.backend import BubblewrapBackend

MAX_COPY_BYTES = 2 << 30
"""Limit of one COPY from another stage."""
_INSTALLS = re.compile(r"\bapt(-get)?\b")
_NO_PACKAGES = (
    "`host` has no package manager: name a root folder by `images` in its place, see docs/swe-sandbox.md."
)
_COPIED = "/tmp/.envsdk-copied"
_COPY_IN, _COPY_OUT = scripts.script("copy_in"), scripts.script("copy_out")


async def build_on_layers(backend: BubblewrapBackend, build: Build) -> Image:
    """As `images.build_image`."""
    text = await in_thread(build.file.read_text, encoding="utf-8", errors="surrogateescape")
    stages = read_dockerfile(
        text, file=str(build.file), args=build.args, base_env=backend.base_env, target=build.target
    )
    context = await in_thread(Context.open, build.context, build.file)
    return await _Builder(backend, build, context, stages).stage(len(stages) - 1)


@dataclass(slots=True)
class _Builder:
    backend: BubblewrapBackend
    build: Build
    context: Context
    stages: list[Stage]
    _images: dict[int, Image] = field(default_factory=dict)

    async def stage(self, number: int) -> Image:
        """The image of a stage."""
        if number not in self._images:
            self._images[number] = await self._stage(self.stages[number])
        return self._images[number]

    async def _stage(self, stage: Stage) -> Image:
        image = replace(await self._image(stage.base, stage.line), env=stage.settings.env)
        for step in stage.steps:
            image = await self._step(image, step)
        root, user = _root(image), stage.settings.user
        if user != "root" and not is_number(user):
            sandbox = await self.backend.start(replace(image, workdir="/"))
            result = await sandbox.exec(f"id -u -- {shlex.quote(user)}", timeout_s=60, user="root")
            await sandbox.close()
            self._check(result, stage.line, "USER")
            user = result.output.strip()
        root = replace(root, user=0 if user == "root" else int(user))
        settings = stage.settings
        return replace(image, root=root, env=settings.env, workdir=settings.workdir, network=False)

    async def _image(self, base: int | str, line: int) -> Image:
        if isinstance(base, int):
            return await self.stage(base)
        try:
            return Image(root=await self.backend.base(base), env=self.backend.base_env(base), workdir="/")
        except ConfigurationError as error:
            raise self._error(line, str(error)) from None

    async def _step(self, image: Image, step: Run | Copy) -> Image:
        work: Callable[[BubblewrapSandbox], Awaitable[None]]
        match step:
            case Run():
                settings = step.settings
                image = replace(
                    image, env=settings.env, workdir=settings.workdir, network=self.backend.settings.network
                )
                work, what = self._run(step, _root(image).places), digest(step.argv, step.args, settings)
            case Copy(origin=None):
                work, what = await self._copy(step, self.context)
            case Copy(origin=str(name)) if (files := self.backend.bare_folder(name)) is not None:
                work, what = await self._copy(step, Context(files, PatternMatcher([])))
            case Copy():
                assert step.origin is not None
                origin = await self._image(step.origin, step.line)
                work = self._copy_from(origin, step)
                what = digest(_root(origin).layers, step.sources, step.target, step.mode)
        if not isinstance(step, Run):
            image = replace(image, workdir="/")
        return await self.backend.layered(image, digest(_root(image).layers, what), work, self.build.limits)

    def _run(self, run: Run, places: Sequence[str]) -> Callable[[BubblewrapSandbox], Awaitable[None]]:
        env = {**run.args, **run.settings.env}
        installs = places and _INSTALLS.search(" ".join(run.argv))
        advice = f"\n{_NO_PACKAGES}" if installs else ""

        async def work(sandbox: BubblewrapSandbox) -> None:
            result = await sandbox.exec(
                f"exec {shlex.join(run.argv)}",
                timeout_s=self.build.timeout_s,
                env=env,
                user=run.settings.user,
            )
            self._check(result, run.line, "RUN", advice=advice)

        return work

    async def _copy(
        self, copy: Copy, context: Context
    ) -> tuple[Callable[[BubblewrapSandbox], Awaitable[None]], str]:
        try:
            entries = await in_thread(context.entries, copy)
            what = digest(await in_thread(digest_of, entries), copy.target)
        except (OSError, ValueError) as error:
            raise self._error(copy.line, f"{copy.instruction} {error}") from None
        is_file = len(entries) == 1 and not entries[0].is_inner and not copy.target.endswith("/")

        async def work(sandbox: BubblewrapSandbox) -> None:
            with tempfile.TemporaryFile() as archive:
                try:
                    await in_thread(write_archive, entries, archive)
                except OSError as error:
                    raise self._error(copy.line, f"{copy.instruction}: {error}") from None
                single = (entries[0].name, f"{entries[0].permissions:o}") if is_file else ("", "")
                await self._unpack(sandbox, copy, archive, single)

        return work, what

    def _copy_from(self, origin: Image, copy: Copy) -> Callable[[BubblewrapSandbox], Awaitable[None]]:
        sources = [f"/{source.lstrip('/')}" for source in copy.sources]

        async def work(sandbox: BubblewrapSandbox) -> None:
            other = await self.backend.start(replace(origin, workdir="/"), limits=self.build.limits)
            try:
                mode = "" if copy.mode is None else f"--mode={copy.mode:o}"
                script = f"set -- {shlex.join(sources)}; mode={mode} copied={_COPIED}\n{_COPY_OUT}"
                result = await other.exec(script, timeout_s=self.build.timeout_s, user="root")
                self._check(result, copy.line, "COPY")
                packed = await other.read(_COPIED, max_bytes=MAX_COPY_BYTES)
            except SandboxFileError as error:
                raise self._error(copy.line, f"{copy.instruction}: {error}") from None
            finally:
                await other.close()
            mode = result.output.strip()
            is_file = mode and not copy.target.endswith("/")
            with tempfile.TemporaryFile() as archive:
                await in_thread(archive.write, packed)
                name = PurePosixPath(sources[0]).name
                await self._unpack(sandbox, copy, archive, (name, mode) if is_file else ("", ""))

        return work

    async def _unpack(
        self, sandbox: BubblewrapSandbox, copy: Copy, archive: IO[bytes], single: tuple[str, str]
    ) -> None:
        """Unpack an archive; `single` is name and mode of its only file, which `target` may rename."""
        name, mode = single
        if copy.mode is not None:
            mode = f"{copy.mode:o}"
        archive.flush()
        archive.seek(0)
        script = f"set -- {shlex.join([copy.target, name, mode])}\n{_COPY_IN}"
        result = await sandbox.exec(
            script, timeout_s=self.build.timeout_s, stdin=archive.fileno(), user="root"
        )
        self._check(result, copy.line, copy.instruction)

    def _check(self, result: ExecResult, line: int, instruction: str, *, advice: str = "") -> None:
        if result.reason is ExecEnd.INFRASTRUCTURE:
            raise SandboxError(f"{self.build.file}:{line}: {instruction}: {result.output}")
        if not result.ok:
            how = f"code {result.returncode}" if result.reason is ExecEnd.EXIT else f"`{result.reason}`"
            said = result.output.strip()[-2000:]
            raise self._error(line, f"{instruction} ended with {how}{': ' if said else ''}{said}{advice}")

    def _error(self, line: int, message: str) -> ConfigurationError:
        return ConfigurationError(f"{self.build.file}:{line}: {message}")


def _root(image: Image) -> Root:
    assert image.root is not None
    return image.root
