"""What a sandbox is: a repository to run shell commands in, cut off from the machine around it.

    backend.probe() -> start(image) -> exec | read | write | diff | snapshot | restore ... -> close()

What a command does to itself (fails, runs too long, prints or stores too much) is a result. What the
machine does to a command is `ExecEnd.INFRASTRUCTURE` from `exec` and SandboxError from everything else:
such an episode is masked, never scored 0.

    backend = open_backend("bubblewrap", {})
    await backend.probe()
    sandbox = await backend.start(Image(tree=Path("repo")))
    result = await sandbox.exec("pytest -q", timeout_s=60)
    patch = await sandbox.diff()
    await sandbox.close()
    await backend.aclose()

A backend and its sandboxes belong to the event loop that first awaited one of their methods. Commands of
one sandbox run one after another; those of different sandboxes run at once, as many as the backend has
slots for.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path, PurePosixPath
from typing import Protocol, Self

from envsdk.contracts.failures import Boundary, ConfigurationError, EnvsdkError

WORKDIR = "/testbed"

MAX_ADDED_FILES = 1000
MAX_ADDED_BYTES = 8 << 20
"""What a comparison counts as new files at most; an agent's leftovers go first."""
BULK_FILES = 100
"""Where a top folder has more new files, they are the first to be left out."""
ENVIRONMENT_FILE = "pyvenv.cfg"
"""Marks the folder it is in as a virtual environment."""
INSTALLED_FOLDERS = ("node_modules", "site-packages", "dist-packages")
"""Folders of installed packages."""


class ExecEnd(StrEnum):
    """Why a command ended."""

    EXIT = "exit"
    """The script ended by itself, with any return code."""
    TIMEOUT = "timeout"
    OUTPUT_LIMIT = "output_limit"
    DISK_LIMIT = "disk_limit"
    """Bytes or files of the episode's state."""
    OUT_OF_MEMORY = "out_of_memory"
    INFRASTRUCTURE = "infrastructure"
    """The sandbox failed, not the command."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecResult:
    """What became of one command."""

    output: str
    """Standard output and error as they came. Of more than `Limits.kept_output_bytes` the head and the tail
    with a line between that counts what is left out. Invalid UTF-8 is U+FFFD; control characters other
    than newline, tab and carriage return are written out (`\\x1b`), so that printing it is harmless."""
    returncode: int | None
    """The shell's return code; 128 + N after signal N. None with `ExecEnd.INFRASTRUCTURE`; 137 after a
    limit."""
    reason: ExecEnd
    elapsed_s: float
    """Seconds of the command itself; waiting for a slot is not counted."""
    total_bytes: int
    """Length of all of the output."""

    @property
    def ok(self) -> bool:
        return self.reason is ExecEnd.EXIT and self.returncode == 0

    @classmethod
    def infrastructure(cls, message: str, elapsed_s: float = 0.0) -> Self:
        """Result of a command that the sandbox failed, with why."""
        return cls(
            output=message,
            returncode=None,
            reason=ExecEnd.INFRASTRUCTURE,
            elapsed_s=elapsed_s,
            total_bytes=len(message),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What one sandbox may use."""

    processes: int = 256
    """Processes and threads at once."""
    memory_mb: int = 2048
    """Memory of all processes together."""
    file_mb: int = 256
    """Size of one file."""
    disk_mb: int = 1024
    """Size of everything the episode has written, `/tmp` included."""
    files: int = 50_000
    """Files and folders the episode has made or changed."""
    open_files: int = 1024
    """Descriptors of one process."""
    shm_mb: int = 64
    """Size of `/dev/shm`."""
    output_bytes: int = 32 << 20
    """A command that prints more is ended."""
    kept_output_bytes: int = 64 << 10
    """How much of the output a result keeps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Root:
    """A root file system on this machine, as `images.build_image` makes it for bubblewrap. It belongs to the
    backend's `state_dir`."""

    layers: tuple[str, ...]
    """Names of layers, the first on top; the last is the base."""
    places: tuple[str, ...] = ()
    """Folders of this machine, at these paths, that the base does not hold itself."""
    user: int = 0
    """Whom commands run as where none is named."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Image:
    """What a sandbox starts from. Nothing a sandbox does changes it."""

    tree: Path | None = None
    """Folder on this machine shown, writable, at `workdir`; what is written stays with the episode. A git
    repository (`.git` folder inside) where `diff()` is wanted. May not change while sandboxes use it. Any
    owner will do: what the sandbox's user does not own is copied once per backend."""
    container: str | None = None
    """Container image, for the backends that run containers; with `tree`, the tree is laid into it."""
    root: Root | None = None
    """For bubblewrap: everything is writable, and kept, below a root of the sandbox's own."""
    network: bool = False
    """Whether commands reach this machine's network, which the backend's settings have to allow."""
    workdir: str = WORKDIR
    """Where commands start, and what `diff()` compares with the commit."""
    binds: Mapping[str, Path] = field(default_factory=dict)
    """Further files and folders of this machine, read-only, by their absolute path inside; a path below
    `workdir` hides what the tree has there, whatever the commands do to it."""
    renewed: tuple[str, ...] = ()
    """Folders that `Sandbox.renew` replaces, by absolute path inside; bubblewrap's, with `root`."""
    volumes: Mapping[str, str] = field(default_factory=dict)
    """Folders shared with containers beside it, by path inside: NAME:ro or NAME:rw. For docker and podman."""
    python: Path | None = None
    """Interpreter of this machine that `python` means inside, with its virtual environment, for example
    `.venv/bin/python`; shown at the paths it has here. None: the backend's setting."""
    env: Mapping[str, str] = field(default_factory=dict)
    """For every command. Nothing of this process's own environment is passed on."""
    keeps_processes: bool = False
    """Whether what a command leaves running goes on; otherwise it ends with its command."""


class SandboxError(EnvsdkError):
    """A sandbox failed, through no doing of the commands in it."""

    boundary = Boundary.SANDBOX


class SandboxUnavailable(SandboxError):
    """A backend cannot run here; the message says why and what to do."""


class SandboxesFull(SandboxError):
    """There is no place for another sandbox; one that closes makes one."""


class SandboxFileError(Exception):
    """A path inside a sandbox cannot be read or written: it is missing, a folder, too large ...."""


class Snapshot(Protocol):
    """A sandbox's state at one moment. Belongs to the sandbox that made it and ends with it."""


class Sandbox(Protocol):
    """One episode's machine. Between two commands nothing runs, unless its image keeps processes."""

    @property
    def id(self) -> str: ...

    @property
    def image(self) -> Image: ...

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
        """Run a bash script of any length in a new shell; never raises for what the script does.

        Only files outlive the command: every process it leaves behind is killed when the shell ends.
        Cancelling the call ends the command.

        With `Image.keeps_processes` it goes on. A time-out, too much output and cancelling end the command's
        process group: what has begun one of its own, as daemons do, goes on. Past a limit on memory or disk,
        which count for all together and between commands, too, everything ends.

        Args:
            script: Read by bash from a file. Everything inside may read that file while the command runs.
            timeout_s: After this many seconds all processes are killed.
            env: Added to the image's.
            cwd: Absolute path inside; None is the image's `workdir`.
            stdin: Standard input, a pipe: what has been read from it is nowhere else inside. Or a descriptor
                to read from, which may be a terminal.
            waits: It waits for something outside most of the time, so it takes none of the backend's slots;
                where the image keeps processes, others run beside it.
            user: Name or number of a user of an image with `root` or `container`; None is the image's.

        Raises ConfigurationError: the sandbox has no other users, or takes no descriptor.
        """
        ...

    async def read(self, path: str, *, max_bytes: int = 32 << 20) -> bytes:
        """A file's content, resolved inside the sandbox; relative to `workdir`.

        Raises SandboxFileError: it is missing, no regular file, unreadable or larger than `max_bytes`.
        """
        ...

    async def write(self, path: str, data: bytes) -> None:
        """Write a file, resolved inside the sandbox; relative to `workdir`. Parent folders are made.

        Raises SandboxFileError: the place is read-only, a folder, or over a limit.
        """
        ...

    async def diff(self) -> str:
        """The work tree against the image's commit, as `git diff --binary` writes it; new files included.

        Ignored files and nested repositories are left out, and so are virtual environments, installed
        packages, and new files beyond MAX_ADDED_FILES or MAX_ADDED_BYTES: those of folders with few new files
        come first, then Python source, then small ones. Computed with the image's own repository: nothing
        the commands did to `.git`, no configuration, hook or filter of theirs, is executed or believed. Bytes
        that are not UTF-8 are surrogates: `patch.encode(errors="surrogateescape")` is the exact patch.

        Raises SandboxFileError: the tree cannot be compared (it is over a limit, or no longer a folder).
        """
        ...

    async def pack(self, *, max_bytes: int = 4 << 30) -> bytes:
        """The files of `workdir`, `.git` included, and of `/tmp`, as an archive for `unpack`.

        Nothing is written inside for it, so neither names of files nor a full disk stand in its way. What the
        sandbox's user cannot read, and what the image binds there, is left out.

        Raises SandboxFileError: it would be larger than `max_bytes`.
        """
        ...

    async def unpack(self, archive: bytes) -> None:
        """Put the files of `pack` in place of those of `workdir` and `/tmp`; the same image is needed.

        Raises SandboxFileError: they do not fit the limits.
        """
        ...

    async def end_processes(self) -> None:
        """End what commands have left running, as `diff`, `snapshot`, `restore` and `fork` do first."""
        ...

    async def renew(self) -> None:
        """Put new, empty folders in place of the image's `renewed`: later commands share them, and processes
        that run already do not see them. Snapshots and forks lack them. Other backends do nothing."""
        ...

    async def snapshot(self) -> Snapshot:
        """All files, where the backend has layers or images of its own; elsewhere what `pack` gives."""
        ...

    async def restore(self, snapshot: Snapshot) -> None:
        """Back to the state of `snapshot`, which may be restored any number of times."""
        ...

    async def fork(self, *, binds: Mapping[str, Path] | None = None) -> Sandbox:
        """A new sandbox of the same image, limits and files, which goes its own way and outlives this one.

        Args:
            binds: In place of the image's.

        Raises SandboxError: its backend has no forks.
        """
        ...

    async def is_full(self) -> bool:
        """Whether its files are over the limits; they may then grow a little, so that they can be cleaned up.

        May be asked while a command runs.
        """
        ...

    async def alive(self) -> bool:
        """Whether a command would run: false after `close()` or when its state is gone."""
        ...

    async def close(self) -> None:
        """Delete the episode's state. Closing again does nothing."""
        ...


class SandboxBackend(Protocol):
    """A way to run sandboxes. Made by `open_backend(name, settings)`."""

    @property
    def name(self) -> str: ...

    async def probe(self) -> None:
        """Run a small command for real.

        Raises SandboxUnavailable: what is wrong and what to do.
        """
        ...

    async def start(self, image: Image, *, limits: Limits | None = None) -> Sandbox:
        """A new sandbox of `image`.

        Args:
            limits: None is `Limits()`.

        Raises ConfigurationError: the image does not fit this backend or names what is not there.
        Raises SandboxError: it could not be started.
        """
        ...

    async def aclose(self) -> None:
        """Close every sandbox and release what the backend holds."""
        ...


def check_image(image: Image, *has: str, forbidden: str = "") -> None:
    """Raises ConfigurationError: a bind's source is not there, its place inside is no absolute path, or the
    image asks for what its backend has not.

    Args:
        has: Which of `network`, `root` and `keeps_processes` images may ask for.
        forbidden: Characters that neither a source nor a place may have, because the backend's program
            reads them as its own.
    """
    if image.keeps_processes and "keeps_processes" not in has:
        raise ConfigurationError(
            "the image asks that processes outlive their command: `bubblewrap`, `podman` and `docker` do that"
        )
    if image.network and "network" not in has:
        raise ConfigurationError("the image asks for the network: the backend's `network: true` allows it")
    if image.root is not None and "root" not in has:
        raise ConfigurationError("the image has a `root`, which only backend `bubblewrap` shows")
    for inside, source in image.binds.items():
        bind = f"the image binds {source} at {inside!r}"
        if not source.exists():
            raise ConfigurationError(f"{bind}: the source is not there")
        if not inside.startswith("/") or ".." in PurePosixPath(inside).parts:
            raise ConfigurationError(f"{bind}, which is no absolute path")
        if any(character in f"{source.resolve()}{inside}" for character in forbidden):
            raise ConfigurationError(f"{bind}: this backend takes no path with one of {forbidden!r} in it")
