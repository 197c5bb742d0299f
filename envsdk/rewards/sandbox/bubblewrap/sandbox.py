"""One sandbox of the `bubblewrap` backend: fresh namespaces for every command, over files that stay.

    made: a folder on disk -> exec: launcher and namespaces come and go -> ... -> close: the folder is deleted

An idle sandbox holds no process, no mount and no memory.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shlex
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath

from envsdk.rewards.sandbox import scripts
from envsdk.rewards.sandbox.bubblewrap import leases
from envsdk.rewards.sandbox.bubblewrap.cgroups import Cgroup, CgroupRoot
from envsdk.rewards.sandbox.bubblewrap.launch import (
    BASE_REPOSITORY,
    INSIDE_ID,
    SCRATCH,
    Command,
    System,
    bwrap_options,
    launcher_argv,
)
from envsdk.rewards.sandbox.bubblewrap.layers import Layers, Trees
from envsdk.rewards.sandbox.bubblewrap.state import (
    LayerSnapshot,
    OverlayState,
    Owner,
    SharedLayers,
    Usage,
    bind_line,
)
from envsdk.rewards.sandbox.bubblewrap.watch import Watch, Watched, allowed_usage, is_over
from envsdk.rewards.sandbox.contract import ExecEnd, Image, Limits, Snapshot
from envsdk.rewards.sandbox.process import Finished, Process
from envsdk.rewards.sandbox.shell_sandbox import ShellSandbox, Work, standard_input
from envsdk.rewards.sandbox.threads import in_thread

NO_SHELL = "bwrap: execvp bash:"
"""What bubblewrap says where commands have broken the shell of their own root."""
_LAUNCHER_PATH = "/usr/sbin:/usr/bin:/sbin:/bin"


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """What a backend's probe has found, and its sandboxes share."""

    held: leases.Lease
    """The folder that this process holds."""
    owner: Owner
    system: System
    etc: Path
    """Folder with the sandboxes' own `/etc`."""
    seccomp: Path | None
    """File with the filter of system calls."""
    seccomp_own_root: Path | None
    """The one for sandboxes with a root of their own."""
    watch: Watch
    forked: SharedLayers
    trees: Trees
    layers: Layers
    """Layers of roots."""
    cgroups: CgroupRoot | None
    slots: asyncio.Semaphore

    @property
    def lease(self) -> str:
        return self.held.name


@dataclass(slots=True, eq=False, kw_only=True)
class BubblewrapSandbox(ShellSandbox):
    """Made by `BubblewrapBackend.start`."""

    takes_descriptors = True

    folder: Path
    tree: Path
    """The image's tree, owned by the sandbox's user."""
    state: OverlayState
    binds: Mapping[str, Path]
    """Everything shown read-only, by absolute path inside; outer folders first."""
    env: Mapping[str, str]
    shared: Surroundings
    cgroup: Cgroup | None
    give_back: Callable[[], Awaitable[None]]
    """Returns the tree, and the root's layers."""
    another: Callable[[Image, Limits], Awaitable[BubblewrapSandbox]]
    """Starts one of the same backend."""
    _held: Sequence[str] = ()
    """Layers of the sandbox that it is a fork of."""
    own_root: Sequence[tuple[str, str]] = ()
    """What is bound of the writable parts, where the image has a root."""
    _usage: Usage = field(default_factory=lambda: Usage(0, 0))
    _mounted: tuple[str, ...] = ()
    _process: Process | None = None

    @contextlib.asynccontextmanager
    async def _comparison(self, repository: Path) -> AsyncIterator[tuple[str, bytes]]:
        yield scripts.diff_script(BASE_REPOSITORY, SCRATCH), b""

    async def snapshot(self) -> Snapshot:
        async with self._in_use():
            return replace(await in_thread(self.state.snapshot), usage=self._usage)

    async def restore(self, snapshot: Snapshot) -> None:
        assert isinstance(snapshot, LayerSnapshot)
        async with self._in_use():
            left = await in_thread(self.state.restore, snapshot)
            self._usage = snapshot.usage
            # Not waited for: it takes longer than all else.
            asyncio.get_running_loop().run_in_executor(None, leases.delete, left)

    async def fork(self, *, binds: Mapping[str, Path] | None = None) -> BubblewrapSandbox:
        image = self.image if binds is None else replace(self.image, binds=binds)
        async with self._in_use():
            made = await self.another(image, self.limits)
            try:
                made._held = await in_thread(self.state.forked, made.state, self.shared.forked)
            except BaseException:
                await made.close()
                raise
            made._usage = self._usage
            return made

    async def is_full(self) -> bool:
        allowed = allowed_usage(self.limits, self._usage)
        self._usage = await asyncio.to_thread(self.state.usage)
        return is_over(self._usage, allowed)

    def _is_gone(self) -> bool:
        return self._closed or not self.folder.is_dir()

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
                    await in_thread(self.shared.forked.release, [*self._held, *self.state.shared()])
                    await self.give_back()
        return first

    def _has_users(self) -> bool:
        return self.image.root is not None

    async def _run(self, work: Work) -> Finished:
        user = str(self.image.root.user if self.image.root else INSIDE_ID) if work.user is None else work.user
        user, _, _ = user.partition(":")  # all files have one owner, and no group matters
        if user != "root" and not is_number(user):
            question = f"id -u -- {shlex.quote(user)}"
            answer = await self._run(replace(work, script=question, user="root", stdin=b"", keep=1 << 10))
            user = answer.output.text().strip()
            if answer.reason is not ExecEnd.EXIT or answer.returncode or not is_number(user):
                return replace(answer, returncode=answer.returncode or 1)
        async with standard_input(work) as stdin:
            with contextlib.ExitStack() as descriptors:
                process = self._launch(descriptors, work, stdin, 0 if user == "root" else int(user))
                watched = Watched(
                    process=process,
                    state=self.state,
                    limits=work.limits,
                    allowed=allowed_usage(work.limits, self._usage),
                    cgroup=self.cgroup,
                    kills_before=self.cgroup.kills() if self.cgroup else 0,
                )
            self._process = process
            try:
                with self.shared.watch.over(watched):
                    finished = await process.finish(work.timeout_s)
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
        if finished.command_exited or (self.own_root and finished.output.text().startswith(NO_SHELL)):
            return ExecEnd.EXIT
        return ExecEnd.INFRASTRUCTURE

    def _launch(self, descriptors: contextlib.ExitStack, work: Work, stdin: int, user: int) -> Process:
        """Start the launcher; `descriptors` closes this process's copies of what it is given."""
        script_fd = descriptors.enter_context(_memfd(work.script.encode("utf-8", "surrogateescape")))
        seccomp = self.shared.seccomp_own_root if self.own_root else self.shared.seccomp
        seccomp_fd = os.open(seccomp, os.O_RDONLY | os.O_CLOEXEC) if seccomp is not None else None
        if seccomp_fd is not None:
            descriptors.callback(os.close, seccomp_fd)
        status = os.pipe()
        options = bwrap_options(
            self.shared.system,
            Command(
                script_fd=script_fd,
                status_fd=status[1],
                seccomp_fd=seccomp_fd,
                env={**self.env, **work.env},
                workdir=self.image.workdir,
                binds=[
                    (f"b{number}", path)
                    for number, path in enumerate(self.binds)
                    # What hides a part of the work tree is no change of the tree's.
                    if not (work.compares and PurePosixPath(path).is_relative_to(self.image.workdir))
                ],
                shows_repository=work.compares,
                limits=work.limits,
                own_root=self.own_root,
                user=user,
                network=self.image.network,
            ),
        )
        args_fd = descriptors.enter_context(_memfd(options))
        cgroups = [self.cgroup.folder] if self.cgroup is not None else []
        return Process.start(
            launcher_argv(
                self.shared.owner,
                self._fstab(),
                cgroups,
                args_fd,
                work.limits,
                work.cwd,
                own_root=bool(self.own_root),
            ),
            env={"PATH": _LAUNCHER_PATH, leases.MARK: self.shared.lease},
            pass_fds=[fd for fd in (script_fd, args_fd, seccomp_fd) if fd is not None],
            stdin=stdin,
            status=status,
            keep=work.keep,
            max_output=work.limits.output_bytes,
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


def is_number(user: str) -> bool:
    """Whether a user is given by number, and the kernel has it."""
    return user.isascii() and user.isdecimal() and len(user) < 10


@contextlib.contextmanager
def _memfd(content: bytes) -> Iterator[int]:
    """A file in memory, at its start: of any length, and in no folder."""
    with os.fdopen(os.memfd_create("sandbox"), "w+b") as file:
        file.write(content)
        file.seek(0)
        yield file.fileno()
