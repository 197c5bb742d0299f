"""The server's end of one sandbox: the processes that `inside` runs in it.

    down --first call--> starting: one `exec` is held open, `inside` connects --> up --exec ends--> down

The contract's `exec` ends all processes when its shell ends, so those that outlive calls live in one `exec`.
Each has a `Running`, whose followers get its events:

    guest = Guest(sandbox, folder, starts)
    running = await guest.start(argv=["/bin/bash", "-c", "echo one"])
    with running.events() as events:
        async for event in events: ...  # Printed, ..., Exited
"""

from __future__ import annotations

import asyncio
import compileall
import contextlib
import errno
import itertools
import json
import os
import shlex
import shutil
import signal
import socket
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from envsdk.rewards.sandbox.contract import ExecEnd, ExecResult, Sandbox, SandboxError
from envsdk.rewards.sandbox.sandboxd.inside import server as wire
from envsdk.rewards.sandbox.sandboxd.inside.files import CHUNK

CODE, DOOR = "/run/envsdk/code", "/run/envsdk/door"
"""Where a sandbox shows the code of `inside`, and the folder with its socket."""
SCRIPT = (
    "mkdir -p -- {workdir}; "
    f"exec python3 -I -S -c \"import sys; sys.path.insert(0, '{CODE}'); "
    f'from {wire.__name__} import main; main()" {{workdir}}'
)
START_TIMEOUT_S = 60.0
ANSWER_TIMEOUT_S = 30.0
"""How long the first process may take to start another."""
LIFE_S = 30 * 24 * 3600.0
"""Time-out of the held `exec`; the sandbox's own ends it before."""
MAX_FRAME = 1 << 20
MAX_UNTAKEN = 1 << 20
"""Bytes of input on their way to one process."""
GONE_S = 10.0
KILLED = 128 + signal.SIGKILL
"""A shell's code, whose command was killed."""
LIMIT_LOOK_S = 0.3
"""More than sandboxes take to notice that a process was killed for lack of memory."""


@dataclass(frozen=True, slots=True)
class Printed:
    stream: int
    """`wire.OUTPUT` or `wire.ERRORS`."""
    data: bytes


@dataclass(frozen=True, slots=True)
class Exited:
    code: int
    """Negative after a signal."""
    limit: ExecEnd | None = None
    """What ended it with all others in its sandbox: a limit, or `INFRASTRUCTURE`."""


Event = Printed | Exited


class NotStarted(Exception):
    """A process could not be started: no such program, or no such folder."""

    def __init__(self, number: int, text: str) -> None:
        super().__init__(text)
        self.errno = number
        """The number that OSError has."""


class Events:
    """What one follower gets of one process; a loop over it ends after `Exited`."""

    def __init__(self, running: Running, queue: asyncio.Queue[tuple[Event, list[int]]]) -> None:
        self._running = running
        self._queue = queue

    async def next(self, timeout_s: float | None = None) -> Event:
        """Raises TimeoutError: there was none for so long."""
        event, left = await asyncio.wait_for(self._queue.get(), timeout_s)
        self._running.taken(event, left)
        return event

    async def __aiter__(self) -> AsyncIterator[Event]:
        while True:
            event = await self.next()
            yield event
            if isinstance(event, Exited):
                return


@dataclass(slots=True, eq=False)
class Running:
    """One process. Belongs to its `Guest`.

    asked for -> started (has a pid) -> ... -> exited
    """

    guest: Guest
    number: int
    asked: Mapping[str, Any]
    pid: int = 0
    exited: Exited | None = None
    started: asyncio.Future[int] = field(default_factory=lambda: asyncio.get_running_loop().create_future())
    untaken: int = 0
    was_killed: bool = False
    """Whether a client has killed it."""
    _room: asyncio.Event = field(default_factory=asyncio.Event)
    _followers: list[asyncio.Queue[tuple[Event, list[int]]]] = field(default_factory=list)
    _unread: int = 0
    _deadline: asyncio.TimerHandle | None = None
    _is_followed: bool = False

    def __post_init__(self) -> None:
        # What it prints before anybody can follow it waits for the first who does.
        self._followers.append(asyncio.Queue())

    @contextlib.contextmanager
    def events(self) -> Iterator[Events]:
        """What it prints from now on, and its end. It waits for its slowest follower."""
        if self._is_followed:
            self._followers.append(asyncio.Queue())
            if self.exited is not None:
                self._followers[-1].put_nowait((self.exited, [1]))
        self._is_followed, queue = True, self._followers[-1]
        try:
            yield Events(self, queue)
        finally:
            self._followers.remove(queue)
            while not queue.empty():
                self.taken(*queue.get_nowait())

    def tell(self, event: Event) -> None:
        if isinstance(event, Printed):
            self._unread += len(event.data)
            if self._unread > 4 * wire.WINDOW:
                raise ValueError("more than was asked for")
        left = [len(self._followers)]
        for queue in self._followers:
            queue.put_nowait((event, left))
        if not self._followers and isinstance(event, Printed):
            self._acknowledge(event)
        if isinstance(event, Exited):
            self.exited = event
            self._room.set()
            if self._deadline is not None:
                self._deadline.cancel()

    def taken(self, event: Event, left: list[int]) -> None:
        left[0] -= 1
        if not left[0] and isinstance(event, Printed):
            self._acknowledge(event)

    def _acknowledge(self, printed: Printed) -> None:
        self._unread -= len(printed.data)
        if self.exited is None:
            self.guest.send(wire.ACKNOWLEDGE, self.number, str(len(printed.data)).encode())

    async def write(self, data: bytes) -> None:
        """Input; waits while it does not read. Without effect once it has ended."""
        view = memoryview(data)
        while view and self.exited is None:
            while self.untaken >= MAX_UNTAKEN and self.exited is None:
                self._room.clear()
                await self._room.wait()
            part, view = view[:CHUNK], view[CHUNK:]
            self.untaken += len(part)
            self.guest.send(wire.INPUT, self.number, bytes(part))

    def took(self, number: int) -> None:
        self.untaken -= number
        self._room.set()

    def end_input(self) -> None:
        self.guest.send(wire.END_INPUT, self.number)

    def signal(self, which: int) -> None:
        """Send a signal to it and its children."""
        self.was_killed = self.was_killed or which == signal.SIGKILL
        self.guest.send(wire.SIGNAL, self.number, bytes([which]))

    def resize(self, columns: int, rows: int) -> None:
        self.guest.send(wire.RESIZE, self.number, json.dumps([columns, rows]).encode())

    def end_after(self, seconds: float) -> None:
        """Kill it then, whether or not its client is still there."""
        loop = asyncio.get_running_loop()
        self._deadline = loop.call_later(seconds, lambda: self.guest.keep(loop.create_task(self.end())))

    async def end(self) -> None:
        """Kill it; where it does not end, everything in its sandbox."""
        with self.events() as events:
            self.signal(signal.SIGKILL)
            try:
                async with asyncio.timeout(GONE_S):
                    async for _ in events:
                        pass
            except TimeoutError:
                await self.guest.stop()


@dataclass(slots=True, eq=False)
class Guest:
    """All processes of one sandbox. Belongs to one event loop."""

    sandbox: Sandbox
    folder: Path
    """This machine's folder that the sandbox shows at DOOR."""
    starts: asyncio.Semaphore
    """Limits how many sandboxes start their first process at once."""
    running: dict[int, Running] = field(default_factory=dict)
    _numbers: itertools.count[int] = field(default_factory=lambda: itertools.count(1))
    _lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    _held: asyncio.Task[ExecResult] | None = None
    _reading: asyncio.Task[None] | None = None
    _writer: asyncio.StreamWriter | None = None
    _passed: ExecEnd | None = None
    _kept: set[asyncio.Future[None]] = field(default_factory=set)

    async def start(
        self,
        argv: Sequence[str] = (),
        *,
        env: Mapping[str, str] | None = None,
        cwd: str = "",
        stdin: bool = False,
        terminal: tuple[int, int] | None = None,
    ) -> Running:
        """Start a process.

        Raises NotStarted: its program or folder is not there.
        Raises SandboxError: the sandbox does not answer.
        """
        asked = {"argv": list(argv), "env": dict(env or {}), "cwd": cwd, "stdin": stdin, "terminal": terminal}
        return await self._start(asked)

    async def call(self, name: str, *, stdin: bool = False, **arguments: object) -> Running:
        """Start one of the calls of `inside.files`."""
        return await self._start({"call": name, "arguments": arguments, "stdin": stdin})

    async def answer(self, name: str, **arguments: object) -> Any:
        """What a call prints. Raises OSError: it failed inside. Raises SandboxError: the sandbox did."""
        running = await self._start({"call": name, "arguments": arguments, "stdin": False})
        with running.events() as events:
            return await answer_of(events)

    def processes(self) -> list[Running]:
        """Those that a client has started and that run."""
        return [each for each in self.running.values() if each.pid and "argv" in each.asked]

    def find(self, pid: int) -> Running:
        """Raises ProcessLookupError: there is none of this id."""
        for each in self.processes():
            if each.pid == pid:
                return each
        raise ProcessLookupError(errno.ESRCH, f"process with pid {pid} not found")

    def send(self, kind: int, number: int, payload: bytes = b"") -> None:
        if self._writer is not None and not self._writer.is_closing():
            self._writer.write(wire.HEAD.pack(len(payload) + 5, kind, number) + payload)

    def keep(self, task: asyncio.Future[None]) -> None:
        """Hold a task until it is done."""
        self._kept.add(task)
        task.add_done_callback(self._kept.discard)

    def signal_all(self, which: int) -> None:
        self.send(wire.SIGNAL_ALL, 0, bytes([which]))

    async def stop(self, limit: ExecEnd | None = None) -> None:
        """End everything inside, for this reason; files stay. The next call starts anew."""
        if self._held is not None and not self._held.done():
            self._passed = limit
            self._held.cancel()
        if waited := {each for each in (self._held, self._reading) if each is not None}:
            await asyncio.wait(waited)

    @contextlib.asynccontextmanager
    async def at_rest(self) -> AsyncIterator[None]:
        """Nothing runs inside, and nothing starts, until the block ends.

        Raises SandboxError: a client's process is running.
        """
        async with self._lock:
            for each in self.processes():
                if each.was_killed:
                    await each.end()
            if running := self.processes():
                pids = ", ".join(str(each.pid) for each in running)
                raise SandboxError(f"processes {pids} run, and only files can be kept: end them first")
            await self.stop()
            yield

    async def _start(self, asked: Mapping[str, Any]) -> Running:
        async with self._lock:
            if self._writer is None:
                await self._rise()
            running = Running(self, next(self._numbers), asked)
            self.running[running.number] = running
            self.send(wire.START, running.number, json.dumps(asked).encode())
        try:
            running.pid = await asyncio.wait_for(asyncio.shield(running.started), ANSWER_TIMEOUT_S)
        except TimeoutError:  # something inside has stopped the first process: all of them end
            await self.stop()
        except asyncio.CancelledError:
            running.signal(signal.SIGKILL)
            raise
        return running

    async def _rise(self) -> None:
        """Hold an `exec` open and wait until `inside` connects."""
        if self._reading is not None:
            await asyncio.wait({self._reading})
        async with self.starts:
            listener = _listen(self.folder)
            accepting = asyncio.ensure_future(_accepted(listener))
            script = SCRIPT.format(workdir=shlex.quote(self.sandbox.image.workdir))
            self._held = asyncio.create_task(self.sandbox.exec(script, timeout_s=LIFE_S, cwd="/", waits=True))
            try:
                await asyncio.wait(
                    {accepting, self._held}, timeout=START_TIMEOUT_S, return_when=asyncio.FIRST_COMPLETED
                )
                if not accepting.done():
                    why = self._held.result().output[-500:] if self._held.done() else "it does not answer"
                    raise SandboxError(f"sandbox {self.sandbox.id}: its first process did not start: {why}")
                reader, self._writer = await asyncio.open_connection(sock=accepting.result())
            except BaseException:
                self._held.cancel()
                raise
            finally:
                accepting.cancel()
                listener.close()
                (self.folder / "door").unlink(missing_ok=True)
        self._reading = asyncio.create_task(self._read(reader, self._held))

    async def _read(self, reader: asyncio.StreamReader, held: asyncio.Task[ExecResult]) -> None:
        """Hand on what is said inside, until the held `exec` ends."""
        try:
            while True:
                length, kind, number = wire.HEAD.unpack(await reader.readexactly(wire.HEAD.size))
                if not 5 <= length <= MAX_FRAME:
                    raise ValueError("a frame is too long")
                self._handle(kind, number, await reader.readexactly(length - 5))
        except (asyncio.IncompleteReadError, OSError, ValueError, TypeError):
            pass  # it ended, or something else speaks in its place
        finally:
            assert self._writer is not None
            self._writer.close()
            self._writer = None
            await asyncio.wait({held}, timeout=GONE_S)
            held.cancel()
            await asyncio.wait({held})
            exited = Exited(-signal.SIGKILL, self._passed or _limit(held))
            self._passed = None
            lost, self.running = list(self.running.values()), {}
            for each in lost:
                if not each.started.done():  # what it runs may have ended everything before that was told
                    each.started.set_result(0)
                each.tell(exited)

    def _handle(self, kind: int, number: int, payload: bytes) -> None:
        running = self.running.get(number)
        if running is None:
            return
        if kind == wire.STARTED and not running.started.done():
            running.started.set_result(int(payload))
        elif kind == wire.FAILED and not running.started.done():
            del self.running[number]
            code, text = json.loads(payload)
            running.started.set_exception(NotStarted(int(code), str(text)[:1000]))
            running.started.exception()
        elif kind in (wire.OUTPUT, wire.ERRORS):
            running.tell(Printed(kind, payload))
        elif kind == wire.TAKEN:
            running.took(int(payload))
        elif kind == wire.ENDED:
            self.keep(asyncio.ensure_future(self._ended(running, int(payload))))

    async def _ended(self, running: Running, code: int) -> None:
        """Tell a process's end, and the limit that has ended it, or that it has passed."""
        if code in (-signal.SIGKILL, KILLED) and not running.was_killed:
            # For lack of memory the kernel kills one process; the sandbox's watch ends all, a moment later.
            await asyncio.sleep(LIMIT_LOOK_S)
        elif "argv" in running.asked:
            with contextlib.suppress(SandboxError):
                if await self.sandbox.is_full():
                    await self.stop(ExecEnd.DISK_LIMIT)
        if self.running.pop(running.number, None) is not None:
            running.tell(Exited(code))


def _limit(held: asyncio.Task[ExecResult]) -> ExecEnd | None:
    """What ended a held `exec`; None: something inside, or the server."""
    if held.cancelled():
        return None
    if held.exception() is not None:
        return ExecEnd.INFRASTRUCTURE
    return None if held.result().reason is ExecEnd.EXIT else held.result().reason


async def answer_of(events: Events, max_bytes: int = 16 << 20) -> Any:
    """What a call answers at its end."""
    said: dict[int, bytearray] = {wire.OUTPUT: bytearray(), wire.ERRORS: bytearray()}
    async for event in events:
        if isinstance(event, Printed):
            said[event.stream] += event.data
            if len(said[event.stream]) > max_bytes:
                raise SandboxError("an answer is too long")
        else:
            raise_failure(event, bytes(said[wire.ERRORS]))
    return json.loads(said[wire.OUTPUT] or b"null")


def raise_failure(exited: Exited, said: bytes) -> None:
    """Raises OSError as the call inside did, where it did. Raises SandboxError: it was ended."""
    if exited.limit in (ExecEnd.DISK_LIMIT, ExecEnd.OUT_OF_MEMORY):
        raise OSError(errno.ENOSPC, f"ended by {exited.limit}")
    if exited.code < 0:
        raise SandboxError(f"ended by {exited.limit or 'a signal'}")
    if exited.code:
        try:
            number, text = json.loads(said)
            raise OSError(int(number), str(text)[:1000])
        except (ValueError, TypeError):
            raise OSError(errno.EIO, said.decode(errors="replace")[:1000]) from None


def lay_code(folder: Path) -> None:
    """Copy `inside`, compiled, to where every sandbox shows it from."""
    target = folder.joinpath(*wire.__name__.split(".")[:-1])
    shutil.copytree(Path(wire.__file__).parent, target, ignore=shutil.ignore_patterns("__pycache__"))
    compileall.compile_dir(str(target), quiet=2)
    for path in (folder, *folder.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)


def _listen(folder: Path) -> socket.socket:
    """A socket for one connection: the first process opens it before there are others."""
    (folder / "door").unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX)
    place = os.open(folder, os.O_PATH)  # an address holds 107 bytes, a path may have more
    try:
        listener.bind(f"/proc/self/fd/{place}/door")
        (folder / "door").chmod(0o666)
        listener.listen(1)
        listener.setblocking(False)
    except BaseException:
        listener.close()
        raise
    finally:
        os.close(place)
    return listener


async def _accepted(listener: socket.socket) -> socket.socket:
    connection, _ = await asyncio.get_running_loop().sock_accept(listener)
    return connection
