"""A sandbox inside a container that somebody else runs: what docker, podman, E2B and
Kubernetes have in common.

A container has a first process that only waits. Each command is a shell of its own next to it, fed the
script on standard input; when it ends, it kills whatever else is running, unless the image keeps it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
import secrets
import tarfile
import tempfile
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath
from typing import IO, Any, ClassVar

from envsdk.contracts.failures import ConfigurationError
from envsdk.rewards.sandbox import scripts
from envsdk.rewards.sandbox.contract import ExecEnd, Image, Limits, SandboxError, Snapshot, check_image
from envsdk.rewards.sandbox.process import Finished
from envsdk.rewards.sandbox.settings import RemoteSettings
from envsdk.rewards.sandbox.shell_sandbox import ShellSandbox, Work, as_file
from envsdk.rewards.sandbox.threads import in_thread

log = logging.getLogger(__name__)

ENDED = "/dev/shm/.ended"
WAIT = f"""\
trap 'kill -9 -1; : > {ENDED}' USR1
while ((left = $1 - SECONDS, left > 0)); do sleep $((left < 60 ? left : 60)) & wait $!; done
"""
"""The first process: waits $1 seconds, and buries the processes that others leave, as bash does while it
waits for one of its own. On SIGUSR1 it kills all others: no shell can be started for that where they
have used up the limit on processes."""

END_ALL = scripts.script("end_all")

_RUN = f"""\
exec 2>&1
echo "$1"
keep=$3
head -c "$6" > /dev/shm/.command-$UID || exit 125
ulimit -f "$4" -n "$5" -c 0
[ -z "$7" ] || echo $$ > "$7"
(cd -- "$2" && exec bash /dev/shm/.command-$UID)
code=$?
if [ "$7" ]; then rm -f "$7"; exit $code; fi
{END_ALL}
exit $code
"""
"""$1: a line to print first, which tells that the container answered; $2: folder; $3: process to spare; $6:
how many bytes of standard input are the script; the rest is what the script reads; $7: file for the number
of the process group, where others are to go on."""
_RUN_ON = '[ -z "$3" ] || echo $$ > "$3"; cd -- "$1" && exec bash -c "$2"'

_CLEAN_UP = f"keep=$1\n{END_ALL}\nexit 0\n"
_END_GROUP = 'kill -9 -- -"$(cat "$2")" 2> /dev/null; rm -f "$2"'
_AFTER_SIGNAL = f"until [ -e {ENDED} ]; do sleep 0.05; done; rm {ENDED}\n{_CLEAN_UP}"
_CLEAN_UP_TIMEOUT_S = 60.0
_CLEAN_UP_INTERVAL_S = 0.2

_LAY_FILE = 'mkdir -p -- "$1" && tar -x -C "$1" --no-same-owner'
_LAY_FOLDER = scripts.script("lay_folder")


@dataclass(frozen=True, slots=True, kw_only=True)
class Shell:
    """A shell to run in a container."""

    argv: Sequence[str]
    stdin: IO[bytes] | int | None = None
    """A file with a descriptor, at its start; a number is one, of a terminal too."""
    user: str | None = None
    """None: the container's."""
    env: Mapping[str, str] = field(default_factory=dict)
    timeout_s: float
    keep: int = 1 << 12
    """Bytes of its output that are kept."""
    max_output: int = 1 << 12
    """It is ended after more bytes."""


@dataclass(slots=True, kw_only=True)
class Container(ABC):
    """One running container; what a kind of container has not stays as it is here."""

    starts: asyncio.Semaphore
    """Limits how many start at once."""
    waiting_process: str = "1"
    """Process id, inside, of the one that waits."""

    @abstractmethod
    async def start(self, image: Any) -> None:
        """Start it. Raises SandboxError: that was refused."""

    @abstractmethod
    async def shell(self, shell: Shell) -> Finished:
        """Run a shell inside; raises OSError or SandboxError where that cannot be tried."""

    @abstractmethod
    async def is_running(self) -> bool: ...

    @abstractmethod
    async def end(self) -> None:
        """Delete it with all that was kept of it. Raises OSError or SandboxError."""

    async def end_all(self) -> bool:
        """Have the waiting process kill all others; False: this kind of container takes no signals."""
        return False

    async def memory_kills(self) -> int:
        """How many processes the kernel has killed in it for lack of memory; 0 where that is not known."""
        return 0

    async def disk_bytes(self) -> int:
        """What its files take beyond its image; 0 where that is not known."""
        return 0

    async def keep(self) -> str:
        """Keep all of its files as an image; returns the image's name, or nothing where there are none."""
        return ""

    async def replaced_by(self, kept: str) -> None:
        """Go on as a new container of what `keep` returned."""
        raise NotImplementedError

    async def meet(self) -> None:
        """Ask which process inside starts all others. Raises SandboxError: none answers."""
        argv = ["bash", "-c", "echo $PPID"]
        ended = await self.shell(Shell(argv=argv, timeout_s=120, keep=64, max_output=64))
        self.waiting_process = ended.output.text().strip()
        if ended.reason is not ExecEnd.EXIT or not self.waiting_process.isdigit():
            raise SandboxError(f"the sandbox does not answer: {ended.output.text()}")

    async def remove(self) -> None:
        """End it. Never raises: what is left ends with its time to live."""
        try:
            await self.end()
        except (OSError, SandboxError) as error:
            log.warning("a sandbox is left to its time to live: %s", error)


@dataclass(slots=True, eq=False, kw_only=True)
class RemoteSandbox(ShellSandbox):
    """A sandbox in a container. Made by a backend's `start`."""

    own_work_timeout_s = 300.0

    container: Container
    relays_binds: bool = False
    """Whether `image.binds` are laid anew, as copies, before every command: the backend cannot mount."""
    _disk_at_start: int = 0
    _users: set[str | None] = field(default_factory=set)
    """Whom commands have run as."""
    _kills: int = 0
    """Processes that the kernel had killed for lack of memory when it was last asked."""

    async def prepare(self) -> None:
        """Lay the image's tree into the new container.

        Raises SandboxError: the container did not take it.
        """
        if self.image.tree is not None:
            await self._lay(self.image.tree, self.image.workdir)
        self._disk_at_start = await self.container.disk_bytes()

    async def _run(self, work: Work) -> Finished:
        answer = f"{secrets.token_hex(8)}\n"
        group = f"/dev/shm/.group-{answer.strip()}" if self.image.keeps_processes else ""
        given = work.stdin
        self._users.add(work.user)
        if isinstance(given, int):
            return await self._run_on(given, work, group)
        if isinstance(given, bytes) and not work.is_ours:
            if self.relays_binds:
                await self._lay_binds()
            command = work.script.encode("utf-8", "surrogateescape")
            waiting = self.container.waiting_process
            sizes = (self.limits.file_mb << 10, self.limits.open_files, len(command))
            argv = ["bash", "-c", _RUN, "bash", answer.strip(), work.cwd, waiting, *map(str, sizes), group]
            given = command + given
        else:
            argv = ["bash", "-c", f"echo {answer}{work.script}"]
        try:
            async with as_file(given) as stdin:
                finished = await self.container.shell(_shell(work, argv, stdin, answer))
        except asyncio.CancelledError:
            await self._clean_up(work.user, group)
            raise
        if finished.reason is not ExecEnd.EXIT or (finished.returncode >= 128 and not group):
            await self._clean_up(work.user, group)
        answered = finished.output.drop_start(answer.encode())
        return replace(finished, reason=await self._reason(work, finished, answered))

    async def _run_on(self, descriptor: int, work: Work, group: str) -> Finished:
        argv = ["bash", "-c", _RUN_ON, "bash", work.cwd, work.script, group]
        try:
            return await self.container.shell(_shell(work, argv, descriptor))
        finally:
            await self._clean_up(work.user, group)

    async def _reason(self, work: Work, ended: Finished, answered: bool) -> ExecEnd:
        if not answered:
            return ExecEnd.INFRASTRUCTURE
        if work.is_ours or ended.reason is not ExecEnd.EXIT:
            return ended.reason
        if ended.returncode and not await self.container.is_running():
            return ExecEnd.INFRASTRUCTURE
        if ended.returncode:
            kills_before, self._kills = self._kills, await self.container.memory_kills()
            if self._kills > kills_before:
                return ExecEnd.OUT_OF_MEMORY
        return ExecEnd.DISK_LIMIT if await self.is_full() else ExecEnd.EXIT

    async def is_full(self) -> bool:
        return await self.container.disk_bytes() - self._disk_at_start > self.limits.disk_mb << 20

    async def end_processes(self) -> None:
        if self.image.keeps_processes:
            async with self._in_use():
                for user in self._users:
                    await self._clean_up(user)

    async def _clean_up(self, user: str | None, group: str = "") -> None:
        """Kill what a command that was cut off has left; a container in which that fails is removed.

        Args:
            group: The file with the number of the only process group to kill.
        """
        with contextlib.suppress(OSError, SandboxError):
            if await self._ran(_END_GROUP if group else _CLEAN_UP, user, group):
                return
            if await self.container.end_all():
                # What is to be killed may leave no process, and little time, to the shell that looks.
                loop = asyncio.get_running_loop()
                until = loop.time() + _CLEAN_UP_TIMEOUT_S
                while loop.time() < until:
                    if await self._ran(_AFTER_SIGNAL, user):
                        return
                    await asyncio.sleep(_CLEAN_UP_INTERVAL_S)
        await self.container.remove()

    async def _ran(self, script: str, user: str | None, group: str = "") -> bool:
        """Whether a script that cleans up came to its end."""
        argv = ["bash", "-c", script, "bash", self.container.waiting_process, group]
        ended = await self.container.shell(Shell(argv=argv, user=user, timeout_s=_CLEAN_UP_TIMEOUT_S))
        return ended.reason is ExecEnd.EXIT and ended.returncode == 0

    @contextlib.asynccontextmanager
    async def _comparison(self, repository: Path) -> AsyncIterator[tuple[str, IO[bytes]]]:
        scratch = f"/tmp/.compare-{secrets.token_hex(8)}"
        script = (
            f"mkdir {scratch} && tar -x -C {scratch} --no-same-owner || exit {scripts.FAILED}\n"
            f"trap 'rm -rf {scratch}' EXIT\n"
            + scripts.diff_script(f"{scratch}/.git", scratch, self._bound_below(self.image.workdir))
        )
        async with packed(repository.parent, ".git", ".git") as archive:
            yield script, archive

    async def snapshot(self) -> Snapshot:
        await self.end_processes()
        async with self._in_use(), self.slots:
            kept = await self.container.keep()
        return kept or await super().snapshot()

    async def restore(self, snapshot: Snapshot) -> None:
        if not isinstance(snapshot, str):
            return await super().restore(snapshot)
        async with self._in_use(), self.slots:
            await self.container.replaced_by(snapshot)
            self._kills = 0

    async def alive(self) -> bool:
        return not self._closed and await self.container.is_running()

    async def close(self) -> None:
        if not self._closed:
            self._closed = True
            await self.container.remove()

    async def _lay(self, source: Path, target: str) -> None:
        """Put a folder's content, or a file, at `target`, in place of what is there."""
        folder, name, as_name, place = _parts(source, target)
        bound = self._bound_below(target)
        script = _LAY_FOLDER if name == "." else _LAY_FILE
        async with packed(folder, name, as_name, bound) as archive:
            argv = ["bash", "-c", script, "bash", place, *(_as_pattern(f"{place}/{path}") for path in bound)]
            ended = await self.container.shell(
                Shell(argv=argv, stdin=archive, timeout_s=self.own_work_timeout_s, max_output=1 << 20)
            )
        if ended.reason is not ExecEnd.EXIT or ended.returncode:
            why = ended.output.text().strip()
            raise SandboxError(f"sandbox {self.id}: {target} could not be laid out: {why}")

    def _bound_below(self, folder: str) -> list[str]:
        """The binds inside `folder`, relative to it."""
        inside = (PurePosixPath(path) for path in self.image.binds)
        below = (path.relative_to(folder) for path in inside if path.is_relative_to(folder))
        return sorted(str(path) for path in below if path.parts)

    async def _lay_binds(self) -> None:
        for inside, source in sorted(self.image.binds.items()):
            await self._lay(source, inside)


class RemoteBackend(ABC):
    """Starts sandboxes in containers, and closes them.

    new --probe (the first `start` does it)--> probed --aclose--> new
    """

    forbidden_in_binds: ClassVar[str] = ""
    """Characters that no path of `Image.binds` may have."""
    has: Sequence[str] = ()
    """As of `check_image`."""

    def __init__(self, settings: RemoteSettings) -> None:
        self._starts = asyncio.Semaphore(settings.starts_at_once)
        self._slots = asyncio.Semaphore(settings.commands_at_once)
        self._probing = asyncio.Lock()
        self._is_probed = False
        self._sandboxes: list[RemoteSandbox] = []

    @abstractmethod
    async def _probe(self) -> None:
        """Connect, sweep and run a small command. Raises SandboxUnavailable."""

    @abstractmethod
    def _make(self, image: Image, limits: Limits) -> tuple[RemoteSandbox, Any]:
        """A sandbox whose container has not been started, and what to start it from."""

    async def probe(self) -> None:
        async with self._probing:
            if not self._is_probed:
                await self._probe()
                self._is_probed = True

    async def start(self, image: Image, *, limits: Limits | None = None) -> RemoteSandbox:
        check_image(image, *self.has, forbidden=self.forbidden_in_binds)
        await self.probe()
        return await self._start(image, limits or Limits())

    async def aclose(self) -> None:
        await asyncio.gather(*(sandbox.close() for sandbox in self._sandboxes))
        self._is_probed = False

    async def _start(self, image: Image, limits: Limits) -> RemoteSandbox:
        sandbox, source = self._make(image, limits)
        try:
            await sandbox.container.start(source)
            await sandbox.prepare()
        except OSError as error:
            raise SandboxError(f"a sandbox could not be started: {error}") from error
        except (ConfigurationError, SandboxError, asyncio.CancelledError):
            await sandbox.close()
            raise
        self._keep(sandbox)
        return sandbox

    async def _try_out(self, image: Image, script: str = "echo probe", answer: str = "probe") -> list[str]:
        """The lines that a small script prints after its answer. Raises SandboxError: that failed."""
        sandbox = await self._start(image, Limits())
        said = (await sandbox.exec(script, timeout_s=60, cwd="/")).output
        await sandbox.close()
        first, *lines = said.split("\n")
        if " ".join(first.split()) != answer:
            raise SandboxError(f"a trial sandbox answered {said[-500:]!r}")
        return lines

    def _keep(self, sandbox: RemoteSandbox) -> None:
        """Close it with the others."""
        others = (other for other in self._sandboxes if not other.is_closed and other is not sandbox)
        self._sandboxes = [*others, sandbox]


def _shell(work: Work, argv: Sequence[str], stdin: IO[bytes] | int, answer: str = "") -> Shell:
    """Runs a work's script; `answer` is printed before what the script prints."""
    return Shell(
        argv=argv,
        stdin=stdin,
        user=work.user,
        env=work.env,
        timeout_s=work.timeout_s,
        keep=work.keep + 2 * len(answer),
        max_output=work.limits.output_bytes + len(answer),
    )


def _parts(source: Path, target: str) -> tuple[Path, str, str, str]:
    """What to pack of `source` (folder, name, new name), and the folder to unpack it in as `target`."""
    if source.is_dir():
        return source, ".", ".", target
    place = PurePosixPath(target)
    return source.parent, source.name, place.name, str(place.parent)


def _as_pattern(path: str) -> str:
    """For `find -path`: what is special, escaped."""
    return re.sub(r"([*?\[\\])", r"\\\1", path)


@contextlib.asynccontextmanager
async def packed(
    folder: Path, name: str, as_name: str, without: Sequence[str] = ()
) -> AsyncIterator[IO[bytes]]:
    """A tar archive of `folder/name`, of no owner."""
    left_out = {str(PurePosixPath(as_name) / path) for path in without}

    def kept(entry: tarfile.TarInfo) -> tarfile.TarInfo | None:
        if str(PurePosixPath(entry.name)) in left_out:
            return None
        # `replace` is not there in Debian 12's Python 3.11.2.
        entry.uid = entry.gid = 0
        entry.uname = entry.gname = ""
        return entry

    def pack(archive: IO[bytes]) -> None:
        with tarfile.open(fileobj=archive, mode="w") as tar:
            tar.add(folder / name, arcname=as_name, filter=kept)
        archive.seek(0)

    with tempfile.TemporaryFile() as archive:
        await in_thread(pack, archive)
        yield archive
