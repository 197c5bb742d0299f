"""One sandbox of the `bubblewrap` backend: fresh namespaces for every command, over files that stay.

    made: a folder on disk -> exec: launcher and namespaces come and go -> ... -> close: the folder is deleted

An idle sandbox holds no process, no mount and no memory.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath

from envsdk.sandbox import scripts
from envsdk.sandbox.bubblewrap import leases
from envsdk.sandbox.bubblewrap.cgroups import Cgroup
from envsdk.sandbox.bubblewrap.launch import (
    BASE_REPOSITORY,
    SCRATCH,
    Command,
    System,
    bwrap_options,
    launcher_argv,
)
from envsdk.sandbox.bubblewrap.state import LayerSnapshot, Owner, State, Usage, bind_line
from envsdk.sandbox.bubblewrap.watch import Watch, Watched, allowed_usage, is_over
from envsdk.sandbox.contract import (
    ExecEnd,
    ExecResult,
    Image,
    Limits,
    SandboxError,
    SandboxFileError,
    Snapshot,
)
from envsdk.sandbox.output import exact
from envsdk.sandbox.process import Finished, Process, fed
from envsdk.sandbox.threads import in_thread

OWN_WORK_TIMEOUT_S = 120.0
"""For reading, writing and comparing files."""
PACK_TIMEOUT_S = 600.0
"""For all files of an episode at once."""
MAX_PATCH_BYTES = 64 << 20
_LAUNCHER_PATH = "/usr/sbin:/usr/bin:/sbin:/bin"
_MAX_VARIABLE_BYTES = 120_000
"""The kernel takes 128 KiB for one variable."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """What all sandboxes of a backend share."""

    lease: str
    owner: Owner
    system: System
    etc: Path
    """Folder with the sandboxes' own `/etc`."""
    seccomp: Path | None
    """File with the filter of system calls."""
    slots: asyncio.Semaphore
    watch: Watch


@dataclass(slots=True, eq=False)
class BubblewrapSandbox:
    """Made by `BubblewrapBackend.start`."""

    id: str
    image: Image
    limits: Limits
    folder: Path
    tree: Path
    """The image's tree, owned by the sandbox's user."""
    state: State
    binds: Mapping[str, Path]
    """Everything shown read-only, by absolute path inside; outer folders first."""
    env: Mapping[str, str]
    shared: Surroundings
    cgroup: Cgroup | None
    give_back: Callable[[], Awaitable[None]]
    """Returns the tree."""
    _lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    _usage: Usage = field(default_factory=lambda: Usage(0, 0))
    _mounted: tuple[str, ...] = ()
    _closed: bool = False
    _process: Process | None = None

    async def exec(
        self,
        script: str,
        *,
        timeout_s: float,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        stdin: bytes = b"",
    ) -> ExecResult:
        _check_env(env or {})
        async with self._lock:
            if not await self.alive():
                return ExecResult.infrastructure("the sandbox is closed, or its folder was deleted")
            try:
                with fed(stdin) as given:
                    finished = await self._run(
                        script.encode("utf-8", "surrogateescape"),
                        timeout_s=timeout_s,
                        env=env or {},
                        cwd=cwd,
                        keep=self.limits.kept_output_bytes,
                        limits=self.limits,
                        stdin=given,
                    )
            except OSError as error:
                return ExecResult.infrastructure(f"the sandbox could not be launched: {error}")
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
        env = {"SANDBOX_PATH": self._absolute(path), "SANDBOX_MAX_BYTES": str(max_bytes)}
        finished = await self._own_work(path, scripts.READ, env=env, keep=2 * max_bytes)
        return await asyncio.to_thread(finished.output.content)

    async def write(self, path: str, data: bytes) -> None:
        async with _large_memfd(data) as stdin:
            await self._own_work(path, scripts.WRITE, env={"SANDBOX_PATH": self._absolute(path)}, stdin=stdin)

    async def diff(self) -> str:
        if not (self.tree / ".git").is_dir():
            raise SandboxFileError(
                f"{self.image.tree} is no git repository: there is no commit to compare with"
            )
        finished = await self._own_work(
            self.image.workdir,
            scripts.diff_script(BASE_REPOSITORY, SCRATCH),
            env={"SANDBOX_WORKDIR": self.image.workdir},
            keep=2 * MAX_PATCH_BYTES,
            shows_repository=True,
        )
        return await asyncio.to_thread(lambda: exact(finished.output.content()))

    async def pack(self, *, max_bytes: int = 4 << 30) -> bytes:
        finished = await self._own_work(
            self.image.workdir,
            scripts.PACK,
            env={"SANDBOX_WORKDIR": self.image.workdir},
            keep=2 * max_bytes,
            timeout_s=PACK_TIMEOUT_S,
        )
        return await asyncio.to_thread(finished.output.content)

    async def unpack(self, archive: bytes) -> None:
        async with _large_memfd(archive) as stdin:
            await self._own_work(
                self.image.workdir,
                scripts.UNPACK,
                env={"SANDBOX_WORKDIR": self.image.workdir},
                stdin=stdin,
                timeout_s=PACK_TIMEOUT_S,
                # What is put back was within them, apart from the image's own files.
                limits=replace(self.limits, disk_mb=1 << 40, files=1 << 40),
            )

    async def snapshot(self) -> Snapshot:
        async with self._in_use():
            return await in_thread(self.state.snapshot)

    async def restore(self, snapshot: Snapshot) -> None:
        assert isinstance(snapshot, LayerSnapshot)
        async with self._in_use():
            await in_thread(self.state.restore, snapshot)
            self._usage = await asyncio.to_thread(self.state.usage)

    @property
    def is_closed(self) -> bool:
        return self._closed

    async def alive(self) -> bool:
        return not self._closed and self.folder.is_dir()

    async def close(self) -> None:
        if await self.stop():
            await asyncio.to_thread(leases.delete, self.folder)

    async def stop(self) -> bool:
        """End the running command and refuse all others; the files stay. False: that was done before."""
        first, self._closed = not self._closed, True
        if self._process is not None:
            self._process.end(ExecEnd.INFRASTRUCTURE)
        async with self._lock:
            if first:
                try:
                    if self.cgroup is not None:
                        await asyncio.to_thread(self.cgroup.delete)
                finally:
                    await self.give_back()
        return first

    @contextlib.asynccontextmanager
    async def _in_use(self) -> AsyncIterator[None]:
        """The sandbox, to itself and alive."""
        async with self._lock:
            if not await self.alive():
                raise SandboxError(f"sandbox {self.id} is closed, or its folder was deleted")
            try:
                yield
            except (OSError, subprocess.CalledProcessError) as error:
                raise SandboxError(f"sandbox {self.id}: {error}") from error

    async def _own_work(
        self,
        path: str,
        script: str,
        *,
        env: Mapping[str, str],
        keep: int = 1 << 12,
        stdin: int | None = None,
        shows_repository: bool = False,
        timeout_s: float = OWN_WORK_TIMEOUT_S,
        limits: Limits | None = None,
    ) -> Finished:
        """Run a script of ours; raises SandboxFileError, about `path`, where it fails."""
        async with self._in_use():
            finished = await self._run(
                script.encode(),
                timeout_s=timeout_s,
                env=env,
                cwd="/",
                keep=keep,
                limits=replace(limits or self.limits, output_bytes=keep // 2),
                stdin=stdin,
                shows_repository=shows_repository,
            )
        if finished.reason is ExecEnd.INFRASTRUCTURE:
            raise SandboxError(f"sandbox {self.id}: {finished.output.text().strip()}")
        if finished.reason is not ExecEnd.EXIT:
            raise SandboxFileError(f"{path}: ended by {finished.reason}")
        if finished.returncode:
            problem = scripts.PROBLEMS.get(finished.returncode, f"exit code {finished.returncode}")
            raise SandboxFileError(f"{path}: {problem}")
        return finished

    async def _run(
        self,
        script: bytes,
        *,
        timeout_s: float,
        env: Mapping[str, str],
        cwd: str | None,
        keep: int,
        limits: Limits,
        stdin: int | None = None,
        shows_repository: bool = False,
    ) -> Finished:
        async with self.shared.slots:
            with contextlib.ExitStack() as descriptors:
                process = self._launch(
                    descriptors,
                    script,
                    {**self.env, **env},
                    cwd or self.image.workdir,
                    keep,
                    limits,
                    stdin,
                    shows_repository,
                )
                watched = Watched(
                    process=process,
                    state=self.state,
                    limits=limits,
                    allowed=allowed_usage(limits, self._usage),
                    cgroup=self.cgroup,
                    kills_before=self.cgroup.kills() if self.cgroup else 0,
                )
            self._process = process
            try:
                with self.shared.watch.over(watched):
                    finished = await process.finish(timeout_s)
            finally:
                self._process = None
            self._usage = await asyncio.to_thread(self.state.usage)
        return replace(finished, reason=self._reason(finished, watched))

    def _reason(self, finished: Finished, watched: Watched) -> ExecEnd:
        if finished.reason is not ExecEnd.EXIT:
            return finished.reason
        if watched.kills():
            return ExecEnd.OUT_OF_MEMORY
        if is_over(self._usage, watched.allowed):
            return ExecEnd.DISK_LIMIT
        return ExecEnd.EXIT if finished.command_exited else ExecEnd.INFRASTRUCTURE

    def _launch(
        self,
        descriptors: contextlib.ExitStack,
        script: bytes,
        env: Mapping[str, str],
        cwd: str,
        keep: int,
        limits: Limits,
        stdin: int | None,
        shows_repository: bool,
    ) -> Process:
        """Start the launcher; `descriptors` closes this process's copies of what it is given."""
        script_fd = descriptors.enter_context(_memfd(script))
        seccomp_fd = (
            descriptors.enter_context(_opened(self.shared.seccomp))
            if self.shared.seccomp is not None
            else None
        )
        if stdin is None:
            stdin = descriptors.enter_context(_opened(Path(os.devnull)))
        status = os.pipe()
        options = bwrap_options(
            self.shared.system,
            Command(
                script_fd=script_fd,
                status_fd=status[1],
                seccomp_fd=seccomp_fd,
                env=env,
                workdir=self.image.workdir,
                binds=[
                    (f"b{number}", path)
                    for number, path in enumerate(self.binds)
                    # What hides a part of the work tree is no change of the tree's.
                    if not (shows_repository and PurePosixPath(path).is_relative_to(self.image.workdir))
                ],
                shows_repository=shows_repository,
                limits=limits,
            ),
        )
        args_fd = descriptors.enter_context(_memfd(options))
        cgroups = [self.cgroup.folder] if self.cgroup is not None else []
        return Process.start(
            launcher_argv(self.shared.owner, self._fstab(), cgroups, args_fd, limits, cwd),
            env={"PATH": _LAUNCHER_PATH, leases.MARK: self.shared.lease},
            pass_fds=[fd for fd in (script_fd, args_fd, seccomp_fd) if fd is not None],
            stdin=stdin,
            status=status,
            keep=keep,
            max_output=limits.output_bytes,
        )

    def _fstab(self) -> Path:
        """What the launcher mounts, written anew where it has changed."""
        file = self.folder / "fstab"
        lines = tuple(self.state.mounts())
        if lines != self._mounted:
            fixed = [
                bind_line(str(self.folder / "stage"), ""),
                bind_line(str(self.tree), "base", read_only=True),
                bind_line(str(self.shared.etc), "etc", read_only=True),
                *(bind_line(str(source), f"b{number}") for number, source in enumerate(self.binds.values())),
            ]
            file.write_text("\n".join([*fixed, *lines]) + "\n")
            self._mounted = lines
        return file

    def _absolute(self, path: str) -> str:
        if "\0" in path or len(os.fsencode(path)) > _MAX_VARIABLE_BYTES:
            raise SandboxFileError(f"{path[:200]!r} is no path")
        return str(PurePosixPath(self.image.workdir) / path)


def _check_env(env: Mapping[str, str]) -> None:
    for name, value in env.items():
        if not name or "=" in name or "\0" in name + value or len(os.fsencode(value)) > _MAX_VARIABLE_BYTES:
            raise ValueError(
                f"environment variable {name!r}: no `=` or NUL, at most {_MAX_VARIABLE_BYTES} bytes"
            )


@contextlib.contextmanager
def _memfd(content: bytes) -> Iterator[int]:
    """A file in memory, at its start: of any length, and in no folder."""
    descriptor = os.memfd_create("sandbox")
    try:
        _fill(descriptor, content)
        yield descriptor
    finally:
        os.close(descriptor)


@contextlib.asynccontextmanager
async def _large_memfd(content: bytes) -> AsyncIterator[int]:
    """As `_memfd`, filled in a thread."""
    with _memfd(b"") as descriptor:
        await in_thread(_fill, descriptor, content)
        yield descriptor


def _fill(descriptor: int, content: bytes) -> None:
    view = memoryview(content)
    while view:
        view = view[os.write(descriptor, view) :]
    os.lseek(descriptor, 0, os.SEEK_SET)


@contextlib.contextmanager
def _opened(file: Path) -> Iterator[int]:
    descriptor = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
    try:
        yield descriptor
    finally:
        os.close(descriptor)
