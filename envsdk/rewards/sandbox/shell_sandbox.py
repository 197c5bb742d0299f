"""What the sandboxes of all backends share: commands and files through bash, one script after another.

    exec, read, write, diff, pack, unpack -> Work -> the backend's `_run` -> Finished

A backend says how it runs a script, and how files are kept and come back.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath
from typing import IO, ClassVar

from envsdk.contracts.failures import ConfigurationError
from envsdk.rewards.sandbox import scripts
from envsdk.rewards.sandbox.contract import (
    ExecEnd,
    ExecResult,
    Image,
    Limits,
    Sandbox,
    SandboxError,
    SandboxFileError,
    Snapshot,
)
from envsdk.rewards.sandbox.output import exact
from envsdk.rewards.sandbox.process import Finished, fed
from envsdk.rewards.sandbox.threads import in_thread

PACK_TIMEOUT_S = 600.0
"""For all files of an episode at once."""
MAX_PATCH_BYTES = 64 << 20
_MAX_VARIABLE_BYTES = 120_000
"""The kernel takes 128 KiB for one variable."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """A bash script to run in a sandbox."""

    script: str
    env: Mapping[str, str]
    cwd: str
    stdin: bytes | IO[bytes] | int
    """A file has a descriptor and is at its start; a number is one."""
    timeout_s: float
    keep: int
    """Bytes of its output that are kept."""
    limits: Limits
    is_ours: bool = False
    """Whether the script is one of `scripts`, not a policy's command."""
    compares: bool = False
    """Whether the script compares the work tree with the image's repository."""
    user: str | None = None
    """None: the image's."""


@dataclass(slots=True, eq=False, kw_only=True)
class ShellSandbox(ABC):
    """A `Sandbox` whose backend can run a bash script."""

    own_work_timeout_s: ClassVar[float] = 120.0
    """For reading, writing and comparing files."""
    takes_descriptors: ClassVar[bool] = False
    pack_script: ClassVar[str] = scripts.PACK
    unpack_script: ClassVar[str] = scripts.UNPACK

    id: str
    image: Image
    limits: Limits
    slots: asyncio.Semaphore
    """The backend's: one per script that runs."""
    _lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    _closed: bool = False

    @abstractmethod
    async def _run(self, work: Work) -> Finished:
        """Run a script; `ExecEnd.INFRASTRUCTURE` where the sandbox failed.

        Raises OSError or SandboxError: it could not be started.
        """

    @abstractmethod
    def _comparison(self, repository: Path) -> AbstractAsyncContextManager[tuple[str, bytes | IO[bytes]]]:
        """The script that compares the work tree with the image's `repository`, and its standard input."""

    async def exec(
        self,
        script: str,
        *,
        timeout_s: float,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        stdin: bytes | int = b"",
        waits: bool = False,
        user: str | None = None,
    ) -> ExecResult:
        _check_env(env or {})
        if user is not None and not self._has_users():
            raise ConfigurationError(f"this sandbox has one user, so nothing can run as {user!r}")
        if isinstance(stdin, int) and not self.takes_descriptors:
            raise ConfigurationError(
                "this sandbox takes no descriptor as standard input: no terminal runs in it"
            )
        work = Work(
            script=script,
            env={**self.image.env, **(env or {})},
            cwd=cwd or self.image.workdir,
            stdin=stdin,
            timeout_s=timeout_s,
            keep=self.limits.kept_output_bytes,
            limits=self.limits,
            user=user,
        )
        is_beside = waits and self.image.keeps_processes
        async with contextlib.nullcontext() if is_beside else self._lock:
            if self._is_gone():
                return ExecResult.infrastructure("the sandbox is closed, or its folder was deleted")
            try:
                async with contextlib.nullcontext() if waits else self.slots:
                    finished = await self._run(work)
            except (OSError, SandboxError) as error:
                return ExecResult.infrastructure(f"the sandbox could not run the command: {error}")
        text = await asyncio.to_thread(finished.output.text)
        if finished.reason is ExecEnd.INFRASTRUCTURE:
            return ExecResult.infrastructure(text, finished.elapsed_s)
        return ExecResult(
            output=text,
            returncode=finished.returncode if finished.reason is ExecEnd.EXIT else 137,
            reason=finished.reason,
            elapsed_s=finished.elapsed_s,
            total_bytes=finished.output.total,
        )

    async def read(self, path: str, *, max_bytes: int = 32 << 20) -> bytes:
        return await self._own_work(scripts.READ, path=path, max_output=max_bytes)

    async def write(self, path: str, data: bytes) -> None:
        await self._own_work(scripts.WRITE, path=path, stdin=data)

    async def diff(self) -> str:
        if self.image.tree is None or not (self.image.tree / ".git").is_dir():
            raise SandboxFileError("the image names no git repository: there is no commit to compare with")
        async with self._comparison(self.image.tree / ".git") as (script, stdin):
            patch = await self._own_work(script, stdin=stdin, max_output=MAX_PATCH_BYTES, compares=True)
        return await asyncio.to_thread(exact, patch)

    async def pack(self, *, max_bytes: int = 4 << 30) -> bytes:
        return await self._own_work(self.pack_script, max_output=max_bytes, timeout_s=PACK_TIMEOUT_S)

    async def unpack(self, archive: bytes) -> None:
        # What is put back was within the limits, apart from the image's own files.
        limits = replace(self.limits, disk_mb=1 << 40, files=1 << 40)
        await self._own_work(self.unpack_script, stdin=archive, timeout_s=PACK_TIMEOUT_S, limits=limits)

    async def snapshot(self) -> Snapshot:
        await self.end_processes()
        return await self.pack()

    async def restore(self, snapshot: Snapshot) -> None:
        assert isinstance(snapshot, bytes)
        await self.end_processes()
        await self.unpack(snapshot)

    async def fork(self, *, binds: Mapping[str, Path] | None = None) -> Sandbox:
        raise SandboxError(f"sandbox {self.id}: its backend has no forks; snapshot and restore it instead")

    async def end_processes(self) -> None:
        return None

    async def renew(self) -> None:
        return None

    async def is_full(self) -> bool:
        return False

    def _has_users(self) -> bool:
        """Whether a command may run as another user than the image's."""
        return False

    @property
    def is_closed(self) -> bool:
        return self._closed

    async def alive(self) -> bool:
        return not self._is_gone()

    def _is_gone(self) -> bool:
        return self._closed

    @contextlib.asynccontextmanager
    async def _in_use(self) -> AsyncIterator[None]:
        """The sandbox, to itself and alive."""
        async with self._lock:
            if self._is_gone():
                raise SandboxError(f"sandbox {self.id} is closed, or its folder was deleted")
            try:
                yield
            except (OSError, subprocess.CalledProcessError) as error:
                raise SandboxError(f"sandbox {self.id}: {error}") from error

    async def _own_work(
        self,
        script: str,
        *,
        path: str | None = None,
        stdin: bytes | IO[bytes] = b"",
        max_output: int = 1 << 11,
        timeout_s: float | None = None,
        limits: Limits | None = None,
        compares: bool = False,
    ) -> bytes:
        """What one of our scripts prints; `path` is the work tree unless given.

        Raises SandboxFileError, about `path`: the script fails.
        """
        path = path or self.image.workdir
        work = Work(
            script=script,
            env={
                "SANDBOX_WORKDIR": self._absolute(self.image.workdir),
                "SANDBOX_PATH": self._absolute(path),
                "SANDBOX_MAX_BYTES": str(max_output),
            },
            cwd="/",
            stdin=stdin,
            timeout_s=timeout_s or self.own_work_timeout_s,
            keep=2 * max_output,
            limits=replace(limits or self.limits, output_bytes=max_output),
            is_ours=True,
            compares=compares,
        )
        async with self._in_use(), self.slots:
            finished = await self._run(work)
        if finished.reason is ExecEnd.INFRASTRUCTURE:
            raise SandboxError(f"sandbox {self.id}: {finished.output.text().strip()}")
        if finished.reason is not ExecEnd.EXIT:
            raise SandboxFileError(f"{path}: ended by {finished.reason}")
        if finished.returncode:
            problem = scripts.PROBLEMS.get(finished.returncode, f"exit code {finished.returncode}")
            raise SandboxFileError(f"{path}: {problem}")
        return await asyncio.to_thread(finished.output.content)

    def _absolute(self, path: str) -> str:
        if "\0" in path or len(os.fsencode(path)) > _MAX_VARIABLE_BYTES:
            raise SandboxFileError(f"{path[:200]!r} is no path")
        return str(PurePosixPath(self.image.workdir) / path)


@contextlib.asynccontextmanager
async def as_file(content: bytes | IO[bytes]) -> AsyncIterator[IO[bytes]]:
    """A file with a descriptor and no place on disk."""
    if not isinstance(content, bytes):
        yield content
        return
    with os.fdopen(os.memfd_create("sandbox"), "w+b") as file:
        if content:
            await in_thread(file.write, content)
            file.seek(0)
        yield file


@contextlib.asynccontextmanager
async def standard_input(work: Work) -> AsyncIterator[int]:
    """The descriptor of a script's standard input: a pipe for a command, a file for our own scripts."""
    if isinstance(work.stdin, int):
        yield work.stdin
    elif isinstance(work.stdin, bytes) and not work.is_ours:
        with fed(work.stdin) as descriptor:
            yield descriptor
    else:
        async with as_file(work.stdin) as file:
            yield file.fileno()


def _check_env(env: Mapping[str, str]) -> None:
    for name, value in env.items():
        if not name or "=" in name or "\0" in name + value or len(os.fsencode(value)) > _MAX_VARIABLE_BYTES:
            raise ValueError(
                f"environment variable {name!r}: no `=` or NUL, at most {_MAX_VARIABLE_BYTES} bytes"
            )
