"""Runs one launcher to its end: drains what it prints, ends it at a limit, waits until all is gone.

    spawned -> running --exits, or end(reason)--> exited --its namespace is empty--> finished

`end` may be called at any time and any number of times; the first reason counts.

The first process of a namespace, or of a command in it, outlives the launcher that made it, and nobody would
bury it where the machine's own first process does not, as in a container without an init. So this process
adopts orphans while such launchers run, and buries those whose handles it holds; it asks for no other child.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import json
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from envsdk.rewards.sandbox.contract import ExecEnd
from envsdk.rewards.sandbox.output import HeadTail

_PR_SET_CHILD_SUBREAPER = 36
GONE_TIMEOUT_S = 20.0
"""How long killed processes may take to end; longer is a fault of the machine, such as a disk that hangs."""
MAX_PIPE_READS = 16
"""The largest pipe that a user may have, in pieces of what is read at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """How a launcher, or a shell in a container, ended."""

    reason: ExecEnd
    returncode: int
    """Return code of the launcher or shell; negative after a signal."""
    output: HeadTail
    elapsed_s: float
    command_exited: bool = True
    """For a launcher: whether the sandbox was set up and its command came to an end of its own."""


@dataclass(slots=True)
class _Status:
    """What bubblewrap tells through `--json-status-fd`, as it arrives."""

    text: str = ""
    child_pid: int | None = None
    exited: bool = False

    def feed(self, chunk: bytes) -> None:
        self.text += chunk.decode("ascii", "replace")
        *lines, self.text = self.text.split("\n")
        for line in lines:
            record = json.loads(line)
            self.child_pid = record.get("child-pid", self.child_pid)
            self.exited = self.exited or "exit-code" in record


@dataclass(slots=True, eq=False)
class Process:
    """A running launcher. Belongs to the event loop it was started in."""

    pid: int
    _popen: subprocess.Popen[bytes]
    _output_fd: int
    _status_fd: int | None
    _exit_fd: int
    _max_output: int
    _kept: HeadTail
    _loop: asyncio.AbstractEventLoop
    _gone: asyncio.Future[None]
    _started: float
    _status: _Status = field(default_factory=_Status)
    _inside_fd: int | None = None
    _is_inside: asyncio.Event = field(default_factory=asyncio.Event)
    _drains: list[subprocess.Popen[bytes]] | None = None
    _is_open: bool = True
    """Whether something may still print."""
    _returncode: int | None = None
    _reason: ExecEnd | None = None
    _deadline: asyncio.TimerHandle | None = None

    @classmethod
    def start(
        cls,
        argv: Sequence[str],
        *,
        env: Mapping[str, str],
        pass_fds: Sequence[int],
        stdin: int,
        status: tuple[int, int] | None,
        keep: int,
        max_output: int,
        drains: list[subprocess.Popen[bytes]] | None = None,
    ) -> Self:
        """Start `argv` in a session of its own.

        Args:
            stdin: Descriptor that becomes its standard input.
            drains: Gets a process that reads on, and forgets, where others still print at the end: a closed
                pipe would end a server with the first line of its log.
            status: Read and write end of the pipe given to `--json-status-fd`; both are taken over.
        """
        loop = asyncio.get_running_loop()
        started = time.perf_counter()
        is_deaf = signal.getsignal(signal.SIGINT) is signal.SIG_IGN
        with contextlib.ExitStack() as undone:
            if status is not None:
                _orphans.adopt()
                undone.callback(_orphans.leave)
                undone.callback(os.close, status[0])
            try:
                popen = subprocess.Popen(
                    argv,
                    env=dict(env),
                    cwd="/",
                    pass_fds=[*pass_fds, *(status[1:] if status else ())],
                    stdin=stdin,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                    preexec_fn=_heed_interrupts if is_deaf else None,
                    bufsize=0,
                )
            finally:
                if status is not None:
                    os.close(status[1])
            assert popen.stdout is not None
            # Where no descriptor is left for it, nothing would ever end what has been started.
            undone.enter_context(popen)
            undone.callback(os.killpg, popen.pid, signal.SIGKILL)
            exit_fd = os.pidfd_open(popen.pid)
            undone.pop_all()
        self = cls(
            pid=popen.pid,
            _popen=popen,
            _output_fd=popen.stdout.fileno(),
            _status_fd=status[0] if status else None,
            _exit_fd=exit_fd,
            _max_output=max_output,
            _kept=HeadTail(keep),
            _loop=loop,
            _gone=loop.create_future(),
            _started=started,
            _drains=drains,
        )
        self._watch(self._output_fd, self._on_output)
        if self._status_fd is not None:
            self._watch(self._status_fd, self._on_status)
        loop.add_reader(self._exit_fd, self._on_exit)
        return self

    @property
    def reason(self) -> ExecEnd | None:
        """Why `end` was called first; None: it was not."""
        return self._reason

    @property
    def inside_pid(self) -> int | None:
        """The first process that a launcher has started inside, as this machine calls it."""
        return self._status.child_pid

    @property
    def is_stopped(self) -> bool:
        """Whether `inside_pid` is stopped, by SIGSTOP."""
        with contextlib.suppress(OSError):
            return Path(f"/proc/{self.inside_pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"
        return False

    def signal_inside(self, which: int) -> None:
        """Signal `inside_pid` and, once it has one, its process group."""
        if self.inside_pid is not None:
            for send in (os.kill, os.killpg):
                with contextlib.suppress(ProcessLookupError):
                    send(self.inside_pid, which)

    async def inside(self) -> int | None:
        """Wait for `inside_pid`; None: the launcher has ended without one."""
        await self._is_inside.wait()
        return self.inside_pid

    async def gone(self) -> None:
        """Wait for the end, as `finish` does."""
        await asyncio.shield(self._gone)

    def end(self, reason: ExecEnd) -> None:
        """Kill everything, for this reason."""
        if self._returncode is None:
            self._reason = self._reason or reason
            self._expect_the_end()
            # The launcher's group holds bubblewrap and, until it starts a session, the child; afterwards the
            # child dies with bubblewrap, and with the child its PID namespace: but not its group, where it
            # has joined another's namespace.
            for group in (self.inside_pid or self.pid, self.pid):
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(group, signal.SIGKILL)

    async def finish(self, timeout_s: float) -> Finished:
        """Wait for the end, by itself or by a limit; nothing is running afterwards.

        Where processes do not end although they were killed, the reason is `INFRASTRUCTURE`. Cancelling ends
        the processes first.
        """
        timer = self._loop.call_later(timeout_s, self.end, ExecEnd.TIMEOUT)
        try:
            await asyncio.shield(self._gone)
        except asyncio.CancelledError:
            self.end(ExecEnd.INFRASTRUCTURE)
            while not self._gone.done():  # however often it is cancelled: nobody else would bury them
                with contextlib.suppress(asyncio.CancelledError):
                    await asyncio.shield(self._gone)
            raise
        finally:
            timer.cancel()
            if self._deadline is not None:
                self._deadline.cancel()
            self._close()
        return Finished(
            reason=self._reason or ExecEnd.EXIT,
            returncode=-signal.SIGKILL if self._returncode is None else self._returncode,
            output=self._kept,
            elapsed_s=time.perf_counter() - self._started,
            command_exited=self._status.exited,
        )

    def _expect_the_end(self) -> None:
        """Give up waiting some time after the processes were to end."""
        if self._deadline is None:
            self._deadline = self._loop.call_later(GONE_TIMEOUT_S, self._give_up)

    def _give_up(self) -> None:
        self._reason = ExecEnd.INFRASTRUCTURE
        if not self._gone.done():
            self._gone.set_result(None)

    def _watch(self, descriptor: int, callback: Callable[[], bool]) -> None:
        os.set_blocking(descriptor, False)

        def ready() -> None:
            if not callback():
                self._loop.remove_reader(descriptor)

        self._loop.add_reader(descriptor, ready)

    def _on_output(self) -> bool:
        if chunk := _ready(self._output_fd):
            self._kept.feed(chunk)
            if self._kept.total > self._max_output:
                self.end(ExecEnd.OUTPUT_LIMIT)
        return chunk != b""

    def _on_status(self) -> bool:
        assert self._status_fd is not None
        while chunk := _ready(self._status_fd):
            self._status.feed(chunk)
            if self._inside_fd is None and self._status.child_pid is not None:
                self._inside_fd = _open_child(self._status.child_pid, self.pid)
                self._is_inside.set()
        return chunk != b""

    def _on_exit(self) -> None:
        self._loop.remove_reader(self._exit_fd)
        self._returncode = self._popen.wait()
        self._expect_the_end()
        if self._status_fd is not None:
            self._on_status()
        if self._inside_fd is None:
            self._all_gone()
        else:
            self._loop.add_reader(self._inside_fd, self._all_gone)

    def _all_gone(self) -> None:
        if self._inside_fd is not None:
            self._loop.remove_reader(self._inside_fd)
            _bury(os.P_PIDFD, self._inside_fd)
        # What a launcher was about to start when it was killed is of its group.
        _bury(os.P_PGID, self.pid)
        # What is left, without waiting for the end of the file: a fork of this process may hold the pipe.
        for _ in range(MAX_PIPE_READS):  # others may be printing
            if chunk := _ready(self._output_fd):
                self._kept.feed(chunk)
            else:
                self._is_open = chunk is None
                break
        self._is_inside.set()
        if not self._gone.done():
            self._gone.set_result(None)

    def _close(self) -> None:
        for descriptor in (self._output_fd, self._status_fd, self._exit_fd, self._inside_fd):
            if descriptor is not None:
                self._loop.remove_reader(descriptor)
        assert self._popen.stdout is not None
        if self._drains is not None and self._is_open:
            os.set_blocking(self._output_fd, True)
            pipe, quiet = self._popen.stdout, subprocess.DEVNULL
            self._drains.append(subprocess.Popen(["cat"], stdin=pipe, stdout=quiet, stderr=quiet))
        self._popen.stdout.close()
        if self._status_fd is not None:
            _orphans.leave()
        for descriptor in (self._status_fd, self._exit_fd, self._inside_fd):
            if descriptor is not None:
                os.close(descriptor)


@contextlib.contextmanager
def fed(content: bytes) -> Iterator[int]:
    """The end to read of a pipe into which the running event loop writes `content`."""
    reader, writer = os.pipe()
    loop = asyncio.get_running_loop()
    view = memoryview(content)

    def write() -> None:
        nonlocal view
        try:
            view = view[os.write(writer, view) :] if view else view
        except BlockingIOError:
            return
        except BrokenPipeError:
            view = view[:0]
        if not view:
            close()

    def close() -> None:
        nonlocal writer
        if writer >= 0:
            loop.remove_writer(writer)
            os.close(writer)
            writer = -1

    try:
        os.set_blocking(writer, False)
        loop.add_writer(writer, write)
        write()
        yield reader
    finally:
        close()
        os.close(reader)


class _Orphans:
    """Whether this process becomes the parent of those below it whose own parents have ended.

    no launcher: PID 1 gets them -> adopt, once per launcher -> this process does -> leave, as often -> PID 1
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._num_launchers = 0

    def adopt(self) -> None:
        self._count(1)

    def leave(self) -> None:
        self._count(-1)

    def _count(self, change: int) -> None:
        with self._lock:
            self._num_launchers += change
            ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, int(self._num_launchers > 0), 0, 0, 0)


_orphans = _Orphans()


def _heed_interrupts() -> None:
    """In a child: what a script starts in its background ignores Ctrl-C, and hands that down."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def _ready(descriptor: int) -> bytes | None:
    """What can be read at once; None: nothing yet, empty: the end."""
    try:
        return os.read(descriptor, 1 << 16)
    except BlockingIOError:
        return None


def _bury(kind: int, which: int) -> None:
    """Take note of the ends of adopted processes, so that they leave no zombies."""
    with contextlib.suppress(ChildProcessError):  # there is none, or the machine's first process did
        while os.waitid(kind, which, os.WEXITED | os.WNOHANG) is not None:
            pass


def _open_child(pid: int, launcher: int) -> int | None:
    """A handle on the process that a launcher has started inside; None: it has ended."""
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return None
    with contextlib.suppress(OSError), open(f"/proc/{pid}/status") as status:
        parent = next((line for line in status if line.startswith("PPid:")), "").split()
        if parent and int(parent[1]) in (launcher, os.getpid()):  # or the number is another process's by now
            return handle
    os.close(handle)
    return None
