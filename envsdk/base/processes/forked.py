"""Processes that fork from one parent, which starts all of them and does nothing else.

    host -- start(pipe) --> parent, which has imported everything -- fork --> serve(pipe): answers calls
    host -- end(pid) -----> parent kills the process with its descendants

The parent has imported everything that its processes need, so that starting one costs a fork instead of a
second of imports. It also finds the processes that a dead one leaves behind: orphans become its children
(Linux's subreaper), and it kills them. When the process that started the parent ends, the parent and all its
processes end, too.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import multiprocessing.spawn
import os
import pickle
import select
import signal
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from typing import Any, Protocol

import numpy as np
import psutil

from envsdk.base.display.terminal import say
from envsdk.base.processes.interrupts import ignore_ctrl_c
from envsdk.base.processes.process_tree import adopt_orphans, die_with_parent, kill_descendants, kill_tree
from envsdk.contracts.failures import Failure

_START, _END = b"+", b"-"
_PARENT = "import sys; sys.path[:] = {path}; from {module} import main; main({socket})"
_REQUEST = struct.Struct("=cq")
_PID = struct.Struct("=q")
STATUS = struct.Struct("=i")
"""What the parent writes into a status pipe: the exit code of the process, negative for a signal."""


class Blueprint(Protocol):
    """How a process builds the object whose methods the host calls. Picklable."""

    def build(self) -> Any: ...

    def failure_of(self, error: BaseException, verb: str) -> Failure:
        """What the host gets when `verb` raises; "start" stands for `build`."""


class ForkedProcesses:
    """Starts and ends processes through one parent, which is started when first needed.

    `preload` runs in the parent before it forks, to import what the processes need; its errors are ignored,
    since they come again where the import is needed.
    """

    def __init__(self, preload: Callable[[], object]) -> None:
        self._preload = preload
        self._lock = threading.Lock()
        self._socket: socket.socket | None = None
        self._parent: subprocess.Popen[bytes] | None = None
        self._is_closed = False
        atexit.register(self.close)

    def start(self, pipe: Connection | socket.socket, status: int | None = None) -> int:
        """Start a process that serves `pipe`, and return its id. The first call takes about a second.

        When the process ends, its exit code is written to the pipe `status` (see `STATUS`).
        """
        files = [pipe.fileno()] if status is None else [pipe.fileno(), status]
        with self._lock:
            for _ in range(2):
                if self._is_closed:
                    break
                parent = self._socket = self._socket or self._start_parent()
                with contextlib.suppress(OSError):
                    socket.send_fds(parent, [_REQUEST.pack(_START, 0)], files)
                    if answer := parent.recv(_PID.size):
                        return int(_PID.unpack(answer)[0])
                # The parent was killed, and its processes with it.
                parent.close()
                self._socket = None
                if self._parent is not None:
                    self._parent.kill()
                    self._parent.wait()
            raise OSError("the process that starts others ends at once")

    def end(self, pid: int) -> None:
        """Kill a process and its descendants, without waiting for their end."""
        # Without the lock, which a thread may hold for as long as a parent takes to start.
        parent = self._socket
        if parent is not None:
            with contextlib.suppress(OSError):
                parent.send(_REQUEST.pack(_END, pid))

    def close(self) -> None:
        """Kill the parent and all its processes, for good. A `start` under way on another thread fails."""
        atexit.unregister(self.close)
        self._is_closed = True
        parent = self._parent
        if parent is not None and parent.poll() is None:
            # It may be in the middle of its preparation, where it does not see that the socket is closed.
            kill_tree(parent.pid)
            parent.wait()
        with self._lock:
            if self._socket is not None:
                self._socket.close()
                self._socket = None

    def _start_parent(self) -> socket.socket:
        if _imports_main:
            say(NO_GUARD, err=True, flush=True)
            raise RuntimeError(NO_GUARD)
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        preparation = multiprocessing.spawn.get_preparation_data("envsdk-forked")
        preparation.pop("authkey", None)  # refuses to be pickled
        program = _PARENT.format(path=sys.path, module=__name__, socket=theirs.fileno())
        with theirs:
            self._parent = subprocess.Popen(
                [sys.executable, "-c", program], pass_fds=[theirs.fileno()], stdin=subprocess.PIPE
            )
        assert self._parent.stdin is not None
        with self._parent.stdin, contextlib.suppress(BrokenPipeError):
            pickle.dump(preparation, self._parent.stdin)
            pickle.dump(self._preload, self._parent.stdin)
        return ours


def serve(pipe: Connection) -> None:
    """Body of a process.

    It receives a blueprint, builds its object, and then answers `(method, keyword arguments)` until the pipe
    closes. Each answer is `(True, result)` or `(False, Failure)`.
    """
    blueprint: Blueprint | None = None
    with contextlib.suppress(EOFError, BrokenPipeError, ConnectionResetError):
        while True:
            verb, arguments = pipe.recv()
            try:
                if blueprint is None:
                    blueprint = arguments["blueprint"]
                    served, answer = blueprint.build(), None
                else:
                    answer = getattr(served, verb)(**arguments)
                pipe.send((True, answer))
            except (BrokenPipeError, ConnectionResetError):
                raise
            except BaseException as error:  # noqa: BLE001 - boundary: a plug-in's code, sent to its host
                assert blueprint is not None
                pipe.send((False, blueprint.failure_of(error, verb)))


_imports_main = False
"""Whether this process is a parent that imports the main module of its host."""
NO_GUARD = (
    "a script that starts processes is imported by each of them: put what it does under "
    '`if __name__ == "__main__":`, as for multiprocessing'
)
NO_GUARD_EXIT = 77
"""Exit code of a spawned process whose main module would start processes of its own."""


def check_guard() -> None:
    """End this process where it was spawned and imports a main module that calls this: see `NO_GUARD`."""
    if getattr(multiprocessing.current_process(), "_inheriting", False):
        sys.exit(NO_GUARD_EXIT)


@contextlib.contextmanager
def _importing_main() -> Iterator[None]:
    """A script without a guard would start parents of its own here, which nobody ends."""
    global _imports_main
    _imports_main = True
    try:
        yield
    finally:
        _imports_main = False


def main(requests: int) -> None:
    """Body of the parent."""
    ignore_ctrl_c()
    # Processes can then import the same modules as the host, and its main module's classes.
    with _importing_main():
        multiprocessing.spawn.prepare(pickle.load(sys.stdin.buffer))
    with contextlib.suppress(BaseException):
        pickle.load(sys.stdin.buffer)()
    # Collections in the processes leave these pages shared.
    gc.freeze()
    adopt_orphans()
    woken, wake = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda number, frame: None)
    processes: dict[int, int | None] = {}
    with socket.socket(fileno=requests) as host:
        while True:
            ready, _, _ = select.select([host.fileno(), woken], [], [])
            if woken in ready:
                with contextlib.suppress(BlockingIOError):
                    os.read(woken, 4096)
                _bury(processes)
            if host.fileno() in ready and not _answer(host, processes, [woken, wake]):
                break
    kill_descendants(os.getpid())


def _answer(host: socket.socket, processes: dict[int, int | None], ours: list[int]) -> bool:
    """Answer one request. Returns False when the host is gone.

    `processes` maps each living process to its status pipe.
    """
    try:
        request, files, _, _ = socket.recv_fds(host, _REQUEST.size, 2)
    except OSError:
        return False
    if not request:
        return False
    kind, pid = _REQUEST.unpack(request)
    if kind == _END:
        if pid in processes:
            kill_tree(pid)
        return True
    pipe, status = files[0], files[1] if len(files) > 1 else None
    pid = os.fork()
    if pid == 0:
        statuses = [each for each in (status, *processes.values()) if each is not None]
        _become_process(pipe, [*ours, host.fileno(), *statuses])
    os.close(pipe)
    processes[pid] = status
    try:
        host.send(_PID.pack(pid))
    except OSError:
        return False
    return True


def _become_process(pipe: int, not_its_own: list[int]) -> None:
    code = 1
    try:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for each in not_its_own:
            os.close(each)
        die_with_parent()
        # Orphans among its descendants become its children, where they are found.
        adopt_orphans()
        # The fork copied the parent's generator, which would give all processes the same numbers.
        np.random.seed()
        serve(Connection(pipe))
        code = 0
    finally:
        os._exit(code)


def _bury(processes: dict[int, int | None]) -> None:
    """Collect ended processes, and kill the orphans of dead ones."""
    with contextlib.suppress(ChildProcessError):
        while (ended := os.waitpid(-1, os.WNOHANG))[0] != 0:
            status = processes.pop(ended[0], None)
            if status is not None:
                with contextlib.suppress(OSError):  # the host does not wait for it any more
                    os.write(status, STATUS.pack(os.waitstatus_to_exitcode(ended[1])))
                os.close(status)
    for child in psutil.Process().children():
        if child.pid not in processes:
            kill_tree(child.pid)
