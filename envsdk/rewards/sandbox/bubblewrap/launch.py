"""The command line of one sandboxed command; pure.

    unshare -> sh: mounts the stage -> (root: setpriv) -> bwrap: namespaces, binds -> bash: limits -> bash

The launcher makes a mount namespace, puts the overlay and all that an unprivileged user could not reach
under STAGE, and becomes bubblewrap, which makes all other namespaces and shows the stage's parts where
they belong. Each step replaces the one before, so there are two processes in all: bubblewrap outside and
the first process inside.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

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
_LIMIT_AND_GO = 'ulimit -u "$1" -d "$2" -f "$3" -n "$4" -c 0 -l 0 -q 0 && cd -- "$5" && exec bash ' + SCRIPT


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


def launcher_argv(
    owner: Owner, fstab: Path, cgroups: Sequence[Path], args_fd: int, limits: Limits, cwd: str
) -> list[str]:
    """The launcher; it reads bubblewrap's options from `args_fd`, so no command line inside shows them."""
    user = [] if owner.is_root else ["--user", "--map-root-user"]
    drop = ["setpriv", f"--reuid={owner.uid}", f"--regid={owner.gid}", "--clear-groups", "--"]
    groups = " ".join(str(group) for group in cgroups)
    return [
        *("unshare", *user, "--mount", "--", "sh", "-c", _MOUNT_AND_GO, "sh", groups, str(fstab)),
        *(drop if owner.is_root else ()),
        *("bwrap", "--args", str(args_fd), "--"),
        *("bash", "-c", _LIMIT_AND_GO, "bash", *_ulimits(limits), cwd),
    ]


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
    yield from ("--unshare-user", "--uid", str(INSIDE_ID), "--gid", str(INSIDE_ID), "--disable-userns")
    yield from ("--unshare-pid", "--unshare-net", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup-try")
    yield from ("--hostname", "sandbox", "--die-with-parent", "--new-session", "--cap-drop", "ALL")
    yield from ("--json-status-fd", str(command.status_fd))
    if command.seccomp_fd is not None:
        yield from ("--seccomp", str(command.seccomp_fd))
    for folder in system.folders:
        yield from ("--ro-bind", folder, folder)
    for target, path in system.links:
        yield from ("--symlink", target, path)
    for folder in system.hidden:
        yield from ("--tmpfs", folder, "--remount-ro", folder)
    yield from ("--ro-bind", f"{STAGE}/etc", "/etc", "--proc", "/proc", "--dev", "/dev")
    yield from ("--size", str(command.limits.shm_mb << 20), "--tmpfs", "/dev/shm", "--remount-ro", "/dev")
    yield from (
        "--dir",
        "/var/tmp",
        "--bind",
        f"{STAGE}/tmp",
        "/tmp",
        "--bind",
        f"{STAGE}/tree",
        command.workdir,
    )
    for name, path in command.binds:
        yield from ("--ro-bind", f"{STAGE}/{name}", path)
    if command.shows_repository:
        yield from ("--ro-bind", f"{STAGE}/base/.git", BASE_REPOSITORY)
        yield from ("--size", str(command.limits.disk_mb << 20), "--tmpfs", SCRATCH)
    yield from ("--ro-bind-data", str(command.script_fd), SCRIPT, "--remount-ro", "/")
    yield from ("--chdir", "/", "--clearenv")
    for name, value in command.env.items():
        yield from ("--setenv", name, value)
