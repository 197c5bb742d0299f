"""The command line of one sandboxed command; pure.

    unshare -> sh: mounts the stage -> (root: setpriv) -> bwrap: namespaces, binds -> bash: limits -> bash

Where commands may replace that bash, one of this machine sets the limits, in a user namespace around bwrap's.

The launcher makes a mount namespace, puts the overlay and all that an unprivileged user could not reach
under STAGE, and becomes bubblewrap, which makes all other namespaces and shows the stage's parts where
they belong. Each step replaces the one before, so there are two processes in all: bubblewrap outside and
the first process inside.
"""

from __future__ import annotations

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
    'mount --fstab "$2" --all && shift 2 && exec "$@"'
)
_LIMIT = 'ulimit -u "$1" -d "$2" -f "$3" -n "$4" -c 0 -l 0 -q 0'
_LIMIT_AND_GO = f'{_LIMIT} && cd -- "$5" && exec bash {SCRIPT}'
_LIMIT_FIRST = f'{_LIMIT} && shift 4 && exec "$@"'
_GO = f'cd -- "$1" && export HOME=${{HOME-~}} && exec bash {SCRIPT}'
"""Bash finds the home of a user who was given none."""

RUN = "/run"
OWN_MOUNTS = ("/dev", "/proc", RUN)
"""Not of the image, even where its root is writable."""
RESOLVER = "/etc/resolv.conf"


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


def launcher_argv(
    owner: Owner,
    fstab: Path,
    cgroups: Sequence[Path],
    args_fd: int,
    limits: Limits,
    cwd: str,
    *,
    own_root: bool = False,
) -> list[str]:
    """The launcher; it reads bubblewrap's options from `args_fd`, so no command line inside shows them."""
    user = [] if owner.is_root else ["--user", "--map-root-user"]
    drop = ["setpriv", f"--reuid={owner.uid}", f"--regid={owner.gid}", "--clear-groups", "--"]
    groups = " ".join(str(group) for group in cgroups)
    before = [
        *("unshare", *user, "--mount", "--", "sh", "-c", _MOUNT_AND_GO, "sh", groups, str(fstab)),
        *(drop if owner.is_root else ()),
    ]
    bwrap = ["bwrap", "--args", str(args_fd), "--", "bash", "-c"]
    if not own_root:
        return [*before, *bwrap, _LIMIT_AND_GO, "bash", *_ulimits(limits), cwd]
    # Processes are counted in every user namespace around them: this one holds a single command's.
    around = ["unshare", "--user", "--map-current-user", "--", "bash", "-c", _LIMIT_FIRST, "bash"]
    return [*before, *around, *_ulimits(limits), *bwrap, _GO, "bash", cwd]


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
    yield from ("--unshare-pid", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup-try")
    if not command.network:
        yield "--unshare-net"
    yield from ("--hostname", "sandbox", "--die-with-parent", "--new-session", "--cap-drop", "ALL")
    yield from ("--json-status-fd", str(command.status_fd))
    if command.seccomp_fd is not None:
        yield from ("--seccomp", str(command.seccomp_fd))
    yield from _own_root(command) if command.own_root else _read_only_system(system)
    yield from ("--proc", "/proc", "--dev", "/dev")
    yield from ("--size", str(command.limits.shm_mb << 20), "--tmpfs", "/dev/shm", "--remount-ro", "/dev")
    if not command.own_root:
        yield from ("--dir", "/var/tmp", "--bind", f"{STAGE}/tmp", "/tmp")
        yield from ("--bind", f"{STAGE}/tree", command.workdir)
    for name, path in command.binds:
        yield from ("--ro-bind", f"{STAGE}/{name}", path)
    if command.shows_repository:
        yield from ("--ro-bind", f"{STAGE}/base/.git", BASE_REPOSITORY)
        yield from ("--size", str(command.limits.disk_mb << 20), "--tmpfs", SCRATCH)
    yield from ("--ro-bind-data", str(command.script_fd), SCRIPT)
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
    yield from ("--ro-bind", f"{STAGE}/etc", "/etc")


def _own_root(command: Command) -> Iterator[str]:
    for source, path in command.own_root:
        yield from ("--bind", f"{STAGE}/{source}", path)
    yield from ("--size", str(command.limits.shm_mb << 20), "--tmpfs", RUN)


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
