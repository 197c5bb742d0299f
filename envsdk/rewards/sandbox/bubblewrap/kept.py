"""The processes of one sandbox that outlive their commands.

    a first process sleeps --commands join its namespaces, and leave others--> ... --ended, or a limit--> over

A limit on all of them, of memory or disk, ends all. A limit on a command, or its cancellation, ends the
command's session: what has begun one of its own (`setsid`, a daemon) goes on.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from envsdk.rewards.sandbox.bubblewrap.watch import Watch, Watched
from envsdk.rewards.sandbox.contract import ExecEnd, SandboxError
from envsdk.rewards.sandbox.process import GONE_TIMEOUT_S, Drains, Finished, Process
from envsdk.rewards.sandbox.threads import in_thread

FOREVER_S = 1e9
LOOK_S = 0.002


@dataclass(slots=True, eq=False)
class Kept:
    """A first process, and all that join its namespaces. Belongs to one event loop."""

    watched: Watched
    """Of all of them together."""
    over: asyncio.Task[Finished]
    drains: Drains = field(default_factory=Drains)

    @classmethod
    async def begin(cls, watched: Watched, watch: Watch) -> Kept:
        """Wait until the launcher has started the first process. Raises SandboxError: it has not."""
        kept = cls(watched, asyncio.create_task(_finished(watched, watch)))
        try:
            if await kept.process.inside() is None:
                why = (await kept.over).output.text().strip()
                raise SandboxError(f"the sandbox's first process did not start: {why}")
        except BaseException:
            await kept.end()
            raise
        return kept

    @property
    def process(self) -> Process:
        return self.watched.process

    @property
    def goes_on(self) -> bool:
        return self.process.reason is None and not self.over.done()

    @property
    def first(self) -> int:
        """Process id of the first process on this machine."""
        assert self.process.inside_pid is not None
        return self.process.inside_pid

    @contextlib.contextmanager
    def beside(self, command: Process) -> Iterator[None]:
        """A command runs, and what it leaves in its session where it is cut off is ended."""
        assert self.watched.beside is not None
        self.watched.beside.add(command.pid)
        self.watched.next_look = 0.0
        try:
            yield
        finally:
            self.watched.beside.discard(command.pid)

    async def end_session(self, process: Process) -> None:
        """End what a command that was cut off has left in its session, or all where that fails."""
        leader = process.inside_pid
        if leader is not None and not await in_thread(end_session, leader, self.first):
            self.process.end(ExecEnd.INFRASTRUCTURE)

    async def end(self) -> None:
        """Nothing runs afterwards."""
        self.process.end(ExecEnd.INFRASTRUCTURE)
        await asyncio.wait({self.over})
        self.drains.close()


async def _finished(watched: Watched, watch: Watch) -> Finished:
    with watch.over(watched):
        return await watched.process.finish(FOREVER_S)


def end_session(leader: int, first: int) -> bool:
    """Kill the processes of a session in the PID namespace of `first`; false: some do not end.

    All are stopped before any is killed, so that none can fork away.
    """
    until = time.monotonic() + GONE_TIMEOUT_S
    for number, ended in (signal.SIGSTOP, "TtZXx"), (signal.SIGKILL, "ZXx"):
        while left := [pid for pid, state in _session(leader, first) if state not in ended]:
            if time.monotonic() > until:
                return False
            for pid in left:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, number)
            time.sleep(LOOK_S)
    return True


def _session(leader: int, first: int) -> Iterator[tuple[int, str]]:
    """Process ids and states."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                state, _, _, session, *_ = (entry / "stat").read_text().rpartition(")")[2].split()
                if int(session) == leader and _namespace(entry.name) == _namespace(str(first)):
                    yield int(entry.name), state


def _namespace(pid: str) -> str:
    return os.readlink(f"/proc/{pid}/ns/pid")
