"""The processes of one sandbox that outlive their commands.

    a first process sleeps --commands join its namespaces, and leave others--> ... --ended, or a limit--> over

A limit on all of them, of memory or disk, ends all. A limit on a command, or its cancellation, ends the
command's process group: what has begun one of its own (a daemon, a job of a terminal) goes on.
"""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field

from envsdk.rewards.sandbox.bubblewrap.watch import Watch, Watched
from envsdk.rewards.sandbox.contract import ExecEnd, SandboxError
from envsdk.rewards.sandbox.process import Finished, Process

FOREVER_S = 1e9


@dataclass(slots=True, eq=False)
class Kept:
    """A first process, and all that join its namespaces. Belongs to one event loop."""

    watched: Watched
    """What all of them may use."""
    over: asyncio.Task[Finished]
    drains: list[subprocess.Popen[bytes]] = field(default_factory=list)

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
        """A command runs."""
        assert self.watched.beside is not None
        self.watched.beside.add(command)
        self.watched.next_look = 0.0
        try:
            yield
        finally:
            self.watched.beside.discard(command)

    async def end(self) -> None:
        """Nothing runs afterwards."""
        self.process.end(ExecEnd.INFRASTRUCTURE)
        await asyncio.wait({self.over})
        for drain in self.drains:
            drain.kill()
            await asyncio.to_thread(drain.wait)


async def _finished(watched: Watched, watch: Watch) -> Finished:
    with watch.over(watched):
        return await watched.process.finish(FOREVER_S)
