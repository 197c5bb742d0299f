"""The first process inside a sandbox of `envsdk sandboxd`: starts processes and file calls for the server.

    frame: length of what follows (4 bytes), kind (1), process (4), payload

It is run by the sandbox's own Python, alone: only the standard library, 3.8 or newer. The server takes
nothing it says on trust, for whatever runs inside may speak in its place.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import selectors
import signal
import socket
import struct
import sys

from envsdk.rewards.sandbox.sandboxd.inside.files import CHUNK, answered

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

START, INPUT, END_INPUT, SIGNAL, RESIZE, ACKNOWLEDGE, SIGNAL_ALL = range(1, 8)
"""Kinds from the server."""
STARTED, FAILED, OUTPUT, ERRORS, ENDED, TAKEN = range(1, 7)
"""Kinds from here; TAKEN says how many bytes of input a process has got."""

HEAD = struct.Struct("<IBI")
WINDOW = 256 << 10
"""Bytes of one process that may be on their way to the server."""
DOOR = "/run/envsdk/door/door"
NO_PROCESS_LEFT = "the sandbox's limit on processes is reached"


class Process:
    """One that runs.

    started -> prints, reads -> exited -> all it printed is sent -> told
    """

    def __init__(self, pid: int, stdin: int | None, outputs: dict[int, int]) -> None:
        self.pid = pid
        self.stdin = stdin
        """Its input, or a terminal, which is one of its outputs as well."""
        self.outputs = outputs
        """The kind of what each descriptor gives."""
        self.waiting = bytearray()
        self.input_ends = False
        self.unacknowledged = 0
        self.status: int | None = None

    @property
    def has_room(self) -> bool:
        return self.unacknowledged < WINDOW

    def descriptors(self) -> set[int]:
        return {*self.outputs, *([] if self.stdin is None else [self.stdin])}


class Server:
    def __init__(self, connection: socket.socket, workdir: str) -> None:
        self.connection = connection
        self.workdir = workdir
        self.processes: dict[int, Process] = {}
        self.selector = selectors.DefaultSelector()
        self.received = bytearray()

    def run(self) -> None:
        wakes, woken = os.pipe()
        for descriptor in wakes, woken:
            os.set_blocking(descriptor, False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(woken, warn_on_full_buffer=False)
        self.selector.register(wakes, selectors.EVENT_READ, lambda: self.reap(wakes))
        self.selector.register(self.connection, selectors.EVENT_READ, self.receive)
        while True:
            for key, _ in self.selector.select():
                if self.selector.get_map().get(key.fd) is key:
                    key.data()

    def send(self, kind: int, number: int, payload: bytes = b"") -> None:
        self.connection.sendall(HEAD.pack(len(payload) + 5, kind, number) + payload)

    def receive(self) -> None:
        chunk = self.connection.recv(1 << 18)
        if not chunk:
            sys.exit(0)
        self.received += chunk
        while len(self.received) >= HEAD.size:
            length, kind, number = HEAD.unpack_from(self.received)
            if len(self.received) < length + 4:
                return
            payload = bytes(self.received[HEAD.size : length + 4])
            del self.received[: length + 4]
            self.handle(kind, number, payload)

    def handle(self, kind: int, number: int, payload: bytes) -> None:
        process = self.processes.get(number)
        if kind == START:
            self.start(number, json.loads(payload))
        elif kind == SIGNAL_ALL:
            kill(os.kill, -1, payload[0])
        elif process is None:
            return
        elif kind == SIGNAL and process.status is None:
            kill(os.killpg, process.pid, payload[0])
        elif kind == RESIZE and process.stdin is not None:
            resize(process.stdin, *json.loads(payload))
        else:
            if kind == INPUT:
                process.waiting += payload
            elif kind == END_INPUT:
                process.input_ends = True
            elif kind == ACKNOWLEDGE:
                process.unacknowledged -= int(payload)
            self.move(number, process)

    def start(self, number: int, asked: dict[str, Any]) -> None:
        try:
            process = spawn(asked, self.workdir)
        except OSError as error:
            why = NO_PROCESS_LEFT if error.errno == errno.EAGAIN else error.strerror or str(error)
            self.send(FAILED, number, json.dumps([error.errno, why]).encode())
            return
        self.processes[number] = process
        self.send(STARTED, number, str(process.pid).encode())
        for descriptor in process.descriptors():
            os.set_blocking(descriptor, False)
        self.attend(number, process)

    def attend(self, number: int, process: Process) -> None:
        """Wait for what a process can do next."""
        for descriptor in process.descriptors():
            reads = descriptor in process.outputs and process.has_room
            writes = descriptor == process.stdin and process.waiting
            wanted = (selectors.EVENT_READ if reads else 0) | (selectors.EVENT_WRITE if writes else 0)
            known = self.selector.get_map().get(descriptor)
            if known is not None and known.events != wanted:
                self.selector.unregister(descriptor)
                known = None
            if known is None and wanted:
                self.selector.register(descriptor, wanted, lambda: self.move(number, process))

    def forget(self, descriptor: int) -> None:
        if descriptor in self.selector.get_map():
            self.selector.unregister(descriptor)
        os.close(descriptor)

    def move(self, number: int, process: Process) -> None:
        """Pass on what a process prints, as much as the server has room for, and what it reads."""
        self.feed(number, process)
        self.drain(number, process)
        if process.status is not None and process.has_room:
            self.finish(number, process)
        else:
            self.attend(number, process)

    def drain(self, number: int, process: Process) -> None:
        moved = True
        while moved and process.has_room:
            moved = False
            for descriptor, kind in list(process.outputs.items()):
                chunk = read_some(descriptor)
                if chunk:
                    self.send(kind, number, chunk)
                    process.unacknowledged += len(chunk)
                    moved = True
                elif chunk is not None:
                    del process.outputs[descriptor]
                    process.stdin = None if descriptor == process.stdin else process.stdin
                    self.forget(descriptor)

    def feed(self, number: int, process: Process) -> None:
        before = len(process.waiting)
        if process.stdin is None:
            process.waiting.clear()
        try:
            while process.stdin is not None and process.waiting:
                del process.waiting[: os.write(process.stdin, process.waiting[:CHUNK])]
        except BlockingIOError:
            pass
        except OSError:  # nobody reads it
            process.waiting.clear()
        if before > len(process.waiting):
            self.send(TAKEN, number, str(before - len(process.waiting)).encode())
        if process.input_ends and not process.waiting:
            self.close_input(process)

    def close_input(self, process: Process) -> None:
        descriptor, process.stdin = process.stdin, None
        if descriptor is not None and descriptor not in process.outputs:
            self.forget(descriptor)

    def finish(self, number: int, process: Process) -> None:
        """Tell the end. What its children still print is read and dropped, so that they are not cut off."""
        del self.processes[number]
        self.close_input(process)
        for descriptor in process.outputs:
            if descriptor in self.selector.get_map():
                self.selector.unregister(descriptor)
            self.selector.register(descriptor, selectors.EVENT_READ, self.dropping(descriptor))
        self.send(ENDED, number, str(process.status).encode())

    def dropping(self, descriptor: int) -> Callable[[], None]:
        def drop() -> None:
            if read_some(descriptor) == b"":
                self.forget(descriptor)

        return drop

    def reap(self, wakes: int) -> None:
        read_some(wakes)
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if not pid:
                return
            for number, process in list(self.processes.items()):
                if process.pid == pid:
                    killed = os.WIFSIGNALED(status)
                    process.status = -os.WTERMSIG(status) if killed else os.WEXITSTATUS(status)
                    self.move(number, process)


def kill(call: Callable[[int, int], None], which: int, number: int) -> None:
    with contextlib.suppress(OSError):
        call(which, number)


def read_some(descriptor: int) -> bytes | None:
    """What is there; None: nothing yet, empty: the end."""
    try:
        return os.read(descriptor, CHUNK)
    except BlockingIOError:
        return None
    except OSError:  # a terminal whose last process has ended
        return b""


def resize(terminal: int, columns: int, rows: int) -> None:
    import fcntl
    import termios

    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))


def spawn(asked: dict[str, Any], workdir: str) -> Process:
    """Start what is asked for. Raises OSError: it cannot be started."""
    ours: list[int] = []
    theirs: list[int] = []
    try:
        stdin, outputs = channels(asked, ours, theirs)
        pid, problem = forked(asked, workdir, theirs)
        if problem:
            os.waitpid(pid, 0)
            raise OSError(*json.loads(problem))
    except OSError:
        for descriptor in ours:
            os.close(descriptor)
        raise
    finally:
        for descriptor in theirs:
            os.close(descriptor)
    return Process(pid, stdin, outputs)


def channels(asked: dict[str, Any], ours: list[int], theirs: list[int]) -> tuple[int | None, dict[int, int]]:
    """Open what connects the child to this process; what it returns is for `Process`."""

    def pair(opened: tuple[int, int], near: int) -> int:
        ours.append(opened[near])
        theirs.append(opened[1 - near])
        return opened[near]

    if asked.get("terminal"):
        terminal = pair(os.openpty(), 0)
        resize(terminal, *asked["terminal"])
        return terminal, {terminal: OUTPUT}
    stdin = pair(os.pipe(), 1) if asked["stdin"] else None
    if stdin is None:
        theirs.append(os.open("/dev/null", os.O_RDONLY))
    return stdin, {pair(os.pipe(), 0): OUTPUT, pair(os.pipe(), 0): ERRORS}


def forked(asked: dict[str, Any], workdir: str, theirs: list[int]) -> tuple[int, bytes]:
    """A child, and what kept it from becoming what is asked for."""
    said, says = os.pipe()
    problem = b""
    try:
        pid = os.fork()
        if not pid:
            become(asked, workdir, theirs, says)
        os.close(says)
        says = -1
        while True:
            part = os.read(said, 4096)
            if not part:
                return pid, problem
            problem += part
    finally:
        os.close(said)
        if says >= 0:
            os.close(says)


def become(asked: dict[str, Any], workdir: str, ends: list[int], says: int) -> None:
    """In the child: take its place. Never returns."""
    try:
        os.setsid()
        signal.set_wakeup_fd(-1)
        for which in signal.SIGPIPE, signal.SIGXFSZ, signal.SIGCHLD:
            signal.signal(which, signal.SIG_DFL)
        for target in range(3):
            os.dup2(ends[min(target, len(ends) - 1)], target)
        if asked.get("terminal"):
            import fcntl
            import termios

            fcntl.ioctl(0, termios.TIOCSCTTY, 0)
        if "call" in asked:
            os.closerange(3, os.sysconf("SC_OPEN_MAX"))
            os._exit(answered(asked["call"], workdir, asked["arguments"]))
        os.chdir(os.path.join(workdir, asked.get("cwd") or ""))
        os.environ.update(asked["env"])
        os.execvp(asked["argv"][0], asked["argv"])
    except BaseException as error:  # noqa: BLE001 - it must never go on as its parent
        number = getattr(error, "errno", None) or errno.EINVAL
        os.write(says, json.dumps([number, str(error)]).encode())
    finally:
        os._exit(127)


def main() -> None:
    try:
        import ctypes

        ctypes.CDLL(None).prctl(4, 0, 0, 0, 0)  # not dumpable: the others inside cannot look into it
    except (ImportError, OSError):
        pass
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(DOOR)
    Server(connection, sys.argv[1]).run()
