"""Ends commands whose files or memory pass their limits: looks at all running ones a few times a second.

One task per backend, which runs only while commands do. Reading happens in a thread, so the event loop
never waits for a disk.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from envsdk.rewards.sandbox.bubblewrap.cgroups import Cgroup
from envsdk.rewards.sandbox.bubblewrap.state import OverlayState, Usage
from envsdk.rewards.sandbox.contract import ExecEnd, Limits
from envsdk.rewards.sandbox.process import Process

log = logging.getLogger(__name__)

INTERVAL_S = 0.1
REST_S = 1.0
"""Between two looks at processes that outlive their commands, while no command runs."""
DISK_SHARE = 0.05
"""How much of the time one sandbox's files may be counted: a large tree is looked at less often."""


@dataclass(slots=True, eq=False)
class Watched:
    """One running command, or all that join one first process, and what they may use."""

    process: Process
    state: OverlayState
    limits: Limits
    allowed: Usage
    """On disk."""
    cgroup: Cgroup | None
    kills_before: int = 0
    next_look: float = 0.0
    beside: set[Process] | None = None
    """Commands that join its processes; None: none can."""
    stopped: frozenset[Process] = frozenset()
    """Those that were found stopped, and told to go on, by the last look."""

    @property
    def pids(self) -> set[int]:
        return {self.process.pid, *(command.pid for command in self.beside or ())}

    @property
    def rests(self) -> bool:
        """Whether no command runs."""
        return self.beside is not None and not self.beside

    def kills(self) -> int:
        return self.cgroup.kills() - self.kills_before if self.cgroup is not None else 0


@dataclass(slots=True)
class Watch:
    """All commands of a backend that are running."""

    _running: set[Watched] = field(default_factory=set)
    _task: asyncio.Task[None] | None = None

    @contextlib.contextmanager
    def over(self, watched: Watched) -> Iterator[None]:
        """Watch a command while the block runs."""
        self._running.add(watched)
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._run())
        try:
            yield
        finally:
            self._running.discard(watched)

    async def _run(self) -> None:
        # The first look comes after one interval: most commands have ended by then.
        while True:
            await asyncio.sleep(INTERVAL_S)
            if not self._running:
                self._task = None
                return
            looked_at = list(self._running)
            for watched, reason in await asyncio.to_thread(_over_limits, looked_at):
                if watched in self._running:
                    watched.process.end(reason)


def _over_limits(running: Sequence[Watched]) -> list[tuple[Watched, ExecEnd]]:
    found = []
    now = time.monotonic()
    running = [watched for watched in running if not watched.rests or now >= watched.next_look]
    uncounted = {pid for watched in running if watched.cgroup is None for pid in watched.pids}
    memory = memory_by_ancestor(uncounted) if uncounted else {}
    for watched in running:
        _end_stopped(watched)
        held = sum(memory.get(pid, 0) for pid in watched.pids)
        if watched.kills() or held > watched.limits.memory_mb << 20:
            found.append((watched, ExecEnd.OUT_OF_MEMORY))
        elif time.monotonic() >= watched.next_look and _is_over_disk(watched):
            found.append((watched, ExecEnd.DISK_LIMIT))
    return found


def _end_stopped(watched: Watched) -> None:
    """Let commands go on that something inside has stopped, and end those that it stops again."""
    stopped = frozenset(command for command in list(watched.beside or ()) if command.is_stopped)
    for command in stopped:
        command.signal_inside(signal.SIGKILL if command in watched.stopped else signal.SIGCONT)
    watched.stopped = stopped


def _is_over_disk(watched: Watched) -> bool:
    started = time.monotonic()
    usage = watched.state.usage()
    ended = time.monotonic()
    watched.next_look = ended + max((ended - started) / DISK_SHARE, REST_S if watched.rests else 0)
    return is_over(usage, watched.allowed)


def is_over(usage: Usage, allowed: Usage) -> bool:
    return usage.bytes > allowed.bytes or usage.files > allowed.files


def allowed_usage(limits: Limits, before: Usage) -> Usage:
    """What a command may reach: the limits, or a little more than a state that is over them has already, so
    that it can be looked at and cleaned up."""
    limit = Usage(limits.disk_mb << 20, limits.files)
    return Usage(
        limit.bytes if before.bytes <= limit.bytes else before.bytes + (16 << 20),
        limit.files if before.files <= limit.files else before.files + 1000,
    )


def memory_by_ancestor(ancestors: set[int]) -> Mapping[int, int]:
    """Bytes of anonymous and shared memory that the processes below each of `ancestors` hold together."""
    parents: dict[int, int] = {}
    held: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError, ValueError):
                parent, size = _status(entry / "status")
                parents[int(entry.name)] = parent
                held[int(entry.name)] = size
    total = dict.fromkeys(ancestors, 0)
    for pid, size in held.items():
        above = pid
        while above and above not in ancestors:
            above = parents.get(above, 0)
        if above in ancestors:
            total[above] += size
    return total


def _status(file: Path) -> tuple[int, int]:
    """A process's parent, and the bytes of memory that only processes can hold."""
    parent = kibibytes = 0
    for line in file.read_text(errors="replace").splitlines():
        name, _, value = line.partition(":")
        if name == "PPid":
            parent = int(value)
        elif name in ("RssAnon", "RssShmem"):
            kibibytes += int(value.split()[0])
    return parent, kibibytes << 10
