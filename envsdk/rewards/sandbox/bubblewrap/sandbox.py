"""One sandbox of the `bubblewrap` backend: fresh namespaces for every command, over files that stay.

    made: a folder on disk -> exec: launcher and namespaces come and go -> ... -> close: the folder is deleted

An idle sandbox holds no process, no mount and no memory, unless its image keeps processes: `kept.py`.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shlex
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath

from envsdk.rewards.sandbox import scripts
from envsdk.rewards.sandbox.bubblewrap import leases
from envsdk.rewards.sandbox.bubblewrap.cgroups import Cgroup, CgroupRoot
from envsdk.rewards.sandbox.bubblewrap.kept import Kept
from envsdk.rewards.sandbox.bubblewrap.launch import (
    BASE_REPOSITORY,
    INSIDE_ID,
    SCRATCH,
    Command,
    Host,
    System,
    bwrap_options,
    in_memory_lines,
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
from envsdk.rewards.sandbox.contract import ExecEnd, Image, Limits, SandboxError, Snapshot
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
    _renewed: Sequence[tuple[str, str]] = ()
    """Bound over `own_root`, for commands since `renew`."""
    _usage: Usage = field(default_factory=lambda: Usage(0, 0))
    _mounted: tuple[str, ...] = ()
    _running: set[Process] = field(default_factory=set)
    _kept: Kept | None = None
    _beginning: asyncio.Lock = field(default_factory=asyncio.Lock)

    @contextlib.asynccontextmanager
    async def _comparison(self, repository: Path) -> AsyncIterator[tuple[str, bytes]]:
        yield scripts.diff_script(BASE_REPOSITORY, SCRATCH), b""

    async def snapshot(self) -> Snapshot:
        async with self._at_rest():
            return replace(await in_thread(self.state.snapshot), usage=self._usage)

    async def restore(self, snapshot: Snapshot) -> None:
        assert isinstance(snapshot, LayerSnapshot)
        async with self._at_rest():
            left = await in_thread(self.state.restore, snapshot)
            self._usage, self._renewed = snapshot.usage, ()
            # Not waited for: it takes longer than all else.
            asyncio.get_running_loop().run_in_executor(None, leases.delete, left)

    async def fork(self, *, binds: Mapping[str, Path] | None = None) -> BubblewrapSandbox:
        image = self.image if binds is None else replace(self.image, binds=binds)
        async with self._at_rest():
            made = await self.another(image, self.limits)
            try:
                made._held = await in_thread(self.state.forked, made.state, self.shared.forked)
            except BaseException:
                await made.close()
                raise
            made._usage = self._usage
            return made

    async def end_processes(self) -> None:
        async with self._at_rest():
            pass

    async def renew(self) -> None:
        async with self._in_use():
            self._renewed = await in_thread(self.state.renew, self.image.renewed if self.own_root else ())

    @contextlib.asynccontextmanager
    async def _at_rest(self) -> AsyncIterator[None]:
        """The sandbox, to itself, and none of its processes."""
        async with self._in_use():
            await self._end_kept()
            yield

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
        for process in (*self._running, *([self._kept.process] if self._kept is not None else [])):
            process.end(ExecEnd.INFRASTRUCTURE)
        async with self._lock:
            if first:
                await self._end_kept()
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
        kept = await self._joined(work) if self.image.keeps_processes else None
        async with standard_input(work) as stdin:
            with contextlib.ExitStack() as descriptors:
                process = self._launch(descriptors, work, stdin, 0 if user == "root" else int(user), kept)
            watched = kept.watched if kept is not None else self._watched(process)
            watched.limits, watched.allowed = work.limits, allowed_usage(work.limits, self._usage)
            self._running.add(process)
            try:
                with self.shared.watch.over(watched) if kept is None else kept.beside(process):
                    finished = await process.finish(work.timeout_s)
            finally:
                self._running.discard(process)
            self._usage = await asyncio.to_thread(self.state.usage)
        reason = self._reason(finished, watched, kept)
        if kept is not None:
            watched.limits, watched.allowed = self.limits, allowed_usage(self.limits, self._usage)
            if reason in (ExecEnd.OUT_OF_MEMORY, ExecEnd.DISK_LIMIT):
                await self._end_kept()
        return replace(finished, reason=reason)

    def _reason(self, finished: Finished, watched: Watched, kept: Kept | None) -> ExecEnd:
        if finished.reason is not ExecEnd.EXIT:
            return finished.reason
        if kept is not None and kept.process.reason is not None:
            return kept.process.reason
        if watched.kills():
            return ExecEnd.OUT_OF_MEMORY
        if is_over(self._usage, watched.allowed):
            return ExecEnd.DISK_LIMIT
        if finished.command_exited or (self.own_root and finished.output.text().startswith(NO_SHELL)):
            return ExecEnd.EXIT
        # A process that another command has left may have killed the shell before it began.
        return ExecEnd.EXIT if kept is not None and finished.returncode >= 128 else ExecEnd.INFRASTRUCTURE

    def _watched(self, process: Process) -> Watched:
        return Watched(
            process=process,
            state=self.state,
            limits=self.limits,
            allowed=allowed_usage(self.limits, self._usage),
            cgroup=self.cgroup,
            kills_before=self.cgroup.kills() if self.cgroup else 0,
        )

    async def _joined(self, work: Work) -> Kept | None:
        """What a command joins; None: nothing runs beside it."""
        async with self._beginning:
            if work.compares or (self._kept is not None and not self._kept.goes_on):
                await self._end_kept()
            if self._kept is None and not work.compares:
                self._kept = await self._begin()
                if self._closed:
                    raise SandboxError(f"sandbox {self.id} is closed")
            return self._kept

    async def _begin(self) -> Kept:
        self._usage = await asyncio.to_thread(self.state.usage)
        status = os.pipe()
        process = Process.start(
            self._host().first(status[1]),
            env={"PATH": _LAUNCHER_PATH, leases.MARK: self.shared.lease},
            pass_fds=(),
            stdin=subprocess.DEVNULL,
            status=status,
            keep=1 << 12,
            max_output=1 << 12,
        )
        return await Kept.begin(replace(self._watched(process), beside=set()), self.shared.watch)

    async def _end_kept(self) -> None:
        kept, self._kept = self._kept, None
        if kept is not None:
            await kept.end()
            for process in list(self._running):
                await process.gone()

    def _host(self) -> Host:
        return Host(
            owner=self.shared.owner,
            fstab=self._fstab(),
            cgroups=[self.cgroup.folder] if self.cgroup is not None else [],
            network=self.image.network,
        )

    def _launch(
        self, descriptors: contextlib.ExitStack, work: Work, stdin: int, user: int, kept: Kept | None
    ) -> Process:
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
                own_root=[*self.own_root, *self._renewed],
                user=user,
                network=self.image.network,
                joins=kept is not None,
            ),
        )
        args_fd = descriptors.enter_context(_memfd(options))
        if kept is None:
            argv = self._host().launcher(args_fd, work.limits, work.cwd, own_root=bool(self.own_root))
        else:
            argv = self._host().joining(kept.process.pid, kept.first, args_fd, work.limits, work.cwd)
        return Process.start(
            argv,
            env={"PATH": _LAUNCHER_PATH, leases.MARK: self.shared.lease},
            pass_fds=[fd for fd in (script_fd, args_fd, seccomp_fd) if fd is not None],
            stdin=stdin,
            status=status,
            keep=work.keep,
            max_output=work.limits.output_bytes,
            drains=kept.drains if kept is not None else None,
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
                *(in_memory_lines(self.shared.owner, self.limits) if self.image.keeps_processes else ()),
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
