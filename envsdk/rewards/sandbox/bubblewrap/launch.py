"""The command line of one sandboxed command; pure.

    unshare -> sh: mounts the stage -> (root: setpriv) -> bwrap: namespaces, binds -> bash: limits -> bash

Where commands may replace that bash, one of this machine sets the limits, in a user namespace around bwrap's.

Where processes outlive their command, the stage and the namespaces are a first process's, which only sleeps:

    unshare -> sh: mounts the stage -> (python: loopback) -> (root: setpriv) -> unshare -> sleep
    sh -> nsenter: its namespaces -> (root: setpriv) -> nsenter: the user's -> bash: limits -> bwrap -> bash

bwrap, outside, is not among the processes inside. Every command has user namespaces of its own, so that no
other process inside may look into it, whatever it still holds of this machine while it is being set up.

The launcher makes a mount namespace, puts the overlay and all that an unprivileged user could not reach
under STAGE, and becomes bubblewrap, which makes all other namespaces and shows the stage's parts where
they belong. Each step replaces the one before, so there are two processes in all: bubblewrap outside and
the first process inside.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from envsdk.rewards.sandbox.bubblewrap.state import STAGE, Owner
from envsdk.rewards.sandbox.contract import Limits

INSIDE_ID = 1000
"""User and group inside."""

SCRIPT = "/run/command"
BASE_REPOSITORY = "/run/base.git"
SCRATCH = "/run/scratch"

_MOUNT_AND_GO = (
    'echo 1000 > /proc/self/oom_score_adj; for group in $1; do echo $$ > "$group/cgroup.procs"; done; '
    '[ -z "$2" ] || mount --fstab "$2" --all && shift 2 && exec "$@"'
)
_LOOPBACK_AND_GO = """\
import fcntl, os, socket, struct, sys
fcntl.ioctl(socket.socket(), 0x8914, struct.pack("16sh", b"lo", 1))
os.execvp(sys.argv[1], sys.argv[1:])
"""
"""Brings up the loopback of a new network namespace."""
_SLEEP = (
    'read -r pid rest < /proc/self/stat; echo "{\\"child-pid\\": $pid}" >&$1; '
    "exec env --ignore-signal=CHLD sleep infinity"
)
"""Says which process it is, as bubblewrap does. The kernel buries what it adopts."""
_LIMIT = 'ulimit -u "$1" -d "$2" -f "$3" -n "$4" -c 0 -l 0 -q 0'
_LIMIT_AND_GO = f'{_LIMIT} && cd -- "$5" && exec bash {SCRIPT}'
_LIMIT_FIRST = f'{_LIMIT} && shift 4 && exec "$@"'
_GO = 'cd -- "$1" && export HOME=${HOME-~} && exec bash "$2"'
"""Bash finds the home of a user who was given none."""

RUN = "/run"
ALTERNATIVES = "/etc/alternatives"
"""Hundreds of links: shown where they are, and copied only into roots."""
_IN_MEMORY = ("run", "shm")
OWN_MOUNTS = ("/dev", "/proc", RUN)
"""Not of the image, even where its root is writable."""
RESOLVER = "/etc/resolv.conf"
KEPT_SCRIPT = "/dev/command"
"""Where processes that stay may write into RUN, which is the sandbox's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class System:
    """The read-only system that every sandbox of a backend shows."""

    links: tuple[tuple[str, str], ...]
    """Symbolic links at the top, (target, path): `/bin` to `usr/bin`."""
    folders: tuple[str, ...]
    """Folders shown at their own path."""
    hidden: tuple[str, ...]
    """Folders below them that are shown empty."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """One command to launch."""

    script_fd: int
    status_fd: int
    seccomp_fd: int | None
    env: Mapping[str, str]
    workdir: str
    binds: Sequence[tuple[str, str]]
    """(name below STAGE, absolute path inside), read-only."""
    shows_repository: bool
    """Whether the tree's own `.git`, out of the commands' reach, is shown at BASE_REPOSITORY, and a folder in
    memory at SCRATCH."""
    limits: Limits
    own_root: Sequence[tuple[str, str]] = ()
    """(path below STAGE, path inside) of `root_mounts`, writable: in place of the read-only system."""
    user: int = INSIDE_ID
    network: bool = False
    joins: bool = False
    """Whether it joins a first process, whose stage has RUN, `/proc` and `/dev/shm`."""

    @property
    def script(self) -> str:
        """Its place inside."""
        return KEPT_SCRIPT if self.joins else SCRIPT


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """What of this machine all launchers of a sandbox need."""

    owner: Owner
    fstab: Path
    cgroups: Sequence[Path]
    network: bool = False
    """Whether its processes are in this machine's network."""

    def launcher(self, args_fd: int, limits: Limits, cwd: str, *, own_root: bool = False) -> list[str]:
        """The launcher; it reads bubblewrap's options from `args_fd`: no command line inside shows them."""
        before = ["unshare", *self._user(), "--mount", "--", *self._set_up(str(self.fstab)), *self._drop()]
        bwrap = ["bwrap", "--args", str(args_fd), "--", "bash", "-c"]
        if not own_root:
            return [*before, *bwrap, _LIMIT_AND_GO, "bash", *_ulimits(limits), cwd]
        # Processes are counted in every user namespace around them: this one holds a single command's.
        around = ["unshare", "--user", "--map-current-user", "--"]
        return [*before, *around, *_limited(limits), *bwrap, _GO, "bash", cwd, SCRIPT]

    def first(self, status_fd: int) -> list[str]:
        """The launcher of a first process; all in its namespaces end with it, and it with its starter."""
        net = [] if self.network else ["--net"]
        up = [] if self.network else [sys.executable, "-I", "-S", "-c", _LOOPBACK_AND_GO]
        return [
            *("setpriv", "--pdeathsig=KILL", "--", "unshare", *self._user(), "--mount", "--pid", "--ipc"),
            *(*net, "--fork", "--kill-child", "--", *self._set_up(str(self.fstab)), *up, *self._drop()),
            *("unshare", "--user", "--map-current-user", "--", "bash", "-c", _SLEEP, "bash", str(status_fd)),
        ]

    def joining(self, outside: int, first: int, args_fd: int, limits: Limits, cwd: str) -> list[str]:
        """The launcher of a command beside the process `first`, which `outside` has made."""
        user = [] if self.owner.is_root else [f"--user=/proc/{outside}/ns/user", "--preserve-credentials"]
        net = [] if self.network else ["--net"]
        return [
            *(*self._set_up(""), "nsenter", *user, f"--target={first}", "--mount", "--pid", "--ipc", *net),
            *("--no-fork", "--", *self._drop(), "nsenter", f"--user=/proc/{first}/ns/user"),
            *("--preserve-credentials", "--", *_limited(limits)),
            *("bwrap", "--args", str(args_fd), "--", "bash", "-c", _GO, "bash", cwd, KEPT_SCRIPT),
        ]

    def _set_up(self, fstab: str) -> list[str]:
        return ["sh", "-c", _MOUNT_AND_GO, "sh", " ".join(map(str, self.cgroups)), fstab]

    def _user(self) -> list[str]:
        return [] if self.owner.is_root else ["--user", "--map-root-user"]

    def _drop(self) -> list[str]:
        ids = f"--reuid={self.owner.uid}", f"--regid={self.owner.gid}", "--clear-groups"
        # A change of user forgets the signal.
        return ["setpriv", *ids, "--pdeathsig=KILL", "--"] if self.owner.is_root else []


def _limited(limits: Limits) -> list[str]:
    return ["bash", "-c", _LIMIT_FIRST, "bash", *_ulimits(limits)]


def _ulimits(limits: Limits) -> list[str]:
    # Processes are counted per user namespace, so the limit is set inside. Of memory, one process may ask for
    # twice what all may use together: one that grows past its share is ended by the limit that names it.
    return [
        str(limits.processes),
        str(2 * limits.memory_mb << 10),
        str(limits.file_mb << 10),
        str(limits.open_files),
    ]


def bwrap_options(system: System, command: Command) -> bytes:
    """Options as `bwrap --args` reads them: each ended by a NUL."""
    return b"".join(option.encode("utf-8", "surrogateescape") + b"\0" for option in _options(system, command))


def _options(system: System, command: Command) -> Iterator[str]:
    yield from ("--unshare-user", "--uid", str(command.user), "--gid", str(command.user), "--disable-userns")
    yield from ("--unshare-uts", "--unshare-cgroup-try")
    if not command.joins:
        yield from ("--unshare-pid", "--unshare-ipc")
    if not (command.joins or command.network):
        yield "--unshare-net"
    yield from ("--hostname", "sandbox", "--die-with-parent", "--new-session", "--cap-drop", "ALL")
    yield from ("--json-status-fd", str(command.status_fd))
    if command.seccomp_fd is not None:
        yield from ("--seccomp", str(command.seccomp_fd))
    yield from _own_root(command) if command.own_root else _read_only_system(system)
    yield from ("--bind", f"{STAGE}/proc", "/proc") if command.joins else ("--proc", "/proc")
    yield from ("--dev", "/dev", *_in_memory("/dev/shm", command))
    yield from ("--ro-bind-data", str(command.script_fd), command.script, "--remount-ro", "/dev")
    if not command.own_root:
        yield from ("--dir", "/var/tmp", "--bind", f"{STAGE}/tmp", "/tmp")
        yield from ("--bind", f"{STAGE}/tree", command.workdir)
    for name, path in command.binds:
        yield from ("--ro-bind", f"{STAGE}/{name}", path)
    if command.shows_repository:
        yield from ("--ro-bind", f"{STAGE}/base/.git", BASE_REPOSITORY)
        yield from ("--size", str(command.limits.disk_mb << 20), "--tmpfs", SCRATCH)
    if not command.own_root:
        yield from ("--remount-ro", "/")
    yield from ("--chdir", "/", "--clearenv")
    for name, value in command.env.items():
        yield from ("--setenv", name, value)


def _read_only_system(system: System) -> Iterator[str]:
    for folder in system.folders:
        yield from ("--ro-bind", folder, folder)
    for target, path in system.links:
        yield from ("--symlink", target, path)
    for folder in system.hidden:
        yield from ("--tmpfs", folder, "--remount-ro", folder)
    yield from ("--ro-bind", f"{STAGE}/etc", "/etc", "--ro-bind-try", ALTERNATIVES, ALTERNATIVES)


def _own_root(command: Command) -> Iterator[str]:
    for source, path in command.own_root:
        yield from ("--bind", f"{STAGE}/{source}", path)
    yield from _in_memory(RUN, command)


def _in_memory(path: str, command: Command) -> tuple[str, ...]:
    if command.joins:
        return "--bind", f"{STAGE}/{PurePosixPath(path).name}", path
    return "--size", str(command.limits.shm_mb << 20), "--tmpfs", path


def in_memory_lines(owner: Owner, limits: Limits) -> list[str]:
    """Lines of fstab of what the stage has for commands that join a first process."""
    user = f"uid={owner.uid},gid={owner.gid}" if owner.is_root else "uid=0,gid=0"
    tmpfs = [f"tmpfs {STAGE}/{name} tmpfs size={limits.shm_mb}m,mode=755,{user} 0 0" for name in _IN_MEMORY]
    return [f"proc {STAGE}/proc proc nosuid,nodev,noexec 0 0", *tmpfs]


def root_mounts(parts: Mapping[str, str], inner: Iterable[str]) -> list[tuple[str, str]]:
    """What to bind of a root that commands may write, outer folders first: (path below STAGE, path inside).

    Every folder on the way to a mount is a mount itself, so no command can put a link in its place, which
    would lead the next command's mounts astray on this machine.

    Args:
        parts: Place inside, by name below STAGE; one of them at `/`.
        inner: Places of further mounts.
    """
    ways = {parent for path in (*parts.values(), *inner) for parent in PurePosixPath(path).parents}
    places = {PurePosixPath(place): part for part, place in parts.items()}
    mounts = []
    for path in sorted(ways | set(places)):
        place = next(place for place in (path, *path.parents) if place in places)
        mounts.append((str(PurePosixPath(places[place]) / path.relative_to(place)), str(path)))
    return mounts
