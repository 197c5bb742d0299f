"""Processes for environments. One parent process starts all of them and does nothing else.

    host -- start_process(pipe) --> parent of environments -- fork --> serve(pipe): answers calls
    host -- end_process(pid) -----> kills it with its descendants

The parent has imported everything that environments need, so that starting one costs a fork instead of a
second of imports. It also finds the processes that a dead environment leaves behind: orphans become its
children (Linux's subreaper), and it kills them. When the process that started the parent ends, the parent and
all environments end, too.
"""

from __future__ import annotations

import atexit
import contextlib
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
from multiprocessing.connection import Connection

import numpy as np
import psutil

from envsdk.managers.env_host import EnvBlueprint, failure_of
from envsdk.processes.interrupts import ignore_ctrl_c
from envsdk.processes.process_tree import adopt_orphans, die_with_parent, kill_descendants, kill_tree

_START, _END = b"+", b"-"
_PARENT = "import sys; sys.path[:] = {path}; from {module} import main; main({socket})"
_REQUEST = struct.Struct("=cq")
_PID = struct.Struct("=q")


class EnvProcesses:
    """Starts and ends environment processes through one parent, which is started when first needed."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._socket: socket.socket | None = None

    def start(self, pipe: Connection) -> int:
        """Start a process that serves `pipe`, and return its id. The first call takes about a second."""
        with self._lock:
            for _ in range(2):
                parent = self._socket = self._socket or _start_parent()
                with contextlib.suppress(OSError):
                    socket.send_fds(parent, [_REQUEST.pack(_START, 0)], [pipe.fileno()])
                    if answer := parent.recv(_PID.size):
                        return int(_PID.unpack(answer)[0])
                # The parent was killed, and its environments with it.
                parent.close()
                self._socket = None
            raise OSError("the process that starts environments ends at once")

    def end(self, pid: int) -> None:
        """Kill a process and its descendants, without waiting for their end."""
        with self._lock, contextlib.suppress(OSError):
            if self._socket is not None:
                self._socket.send(_REQUEST.pack(_END, pid))

    def close(self) -> None:
        """Kill the parent and all environments."""
        with self._lock:
            if self._socket is not None:
                self._socket.close()
                self._socket = None


ENV_PROCESSES = EnvProcesses()
"""The one of this process."""
atexit.register(ENV_PROCESSES.close)


def _start_parent() -> socket.socket:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    preparation = multiprocessing.spawn.get_preparation_data("envsdk-env")
    preparation.pop("authkey", None)  # refuses to be pickled
    with theirs:
        parent = subprocess.Popen(
            [sys.executable, "-c", _PARENT.format(path=sys.path, module=__name__, socket=theirs.fileno())],
            pass_fds=[theirs.fileno()],
            stdin=subprocess.PIPE,
        )
    assert parent.stdin is not None
    with parent.stdin, contextlib.suppress(BrokenPipeError):
        pickle.dump(preparation, parent.stdin)
    return ours


def serve(pipe: Connection) -> None:
    """Body of an environment's process.

    It receives a blueprint, builds the environment, and then answers `(method, keyword arguments)` until the
    pipe closes. Each answer is `(True, result)` or `(False, Failure)`.
    """
    env = None
    with contextlib.suppress(EOFError, BrokenPipeError, ConnectionResetError):
        while True:
            verb, arguments = pipe.recv()
            try:
                if env is None:
                    blueprint: EnvBlueprint = arguments["blueprint"]
                    env, answer = blueprint.build(), None
                else:
                    answer = getattr(env, verb)(**arguments)
                pipe.send((True, answer))
            except (BrokenPipeError, ConnectionResetError):
                raise
            except BaseException as error:  # noqa: BLE001 - boundary: environment, sent to its host
                pipe.send((False, failure_of(error, verb)))


def main(requests: int) -> None:
    """Body of the parent of environments."""
    ignore_ctrl_c()
    # Environments can then import the same modules as the playing process, and its main module's classes.
    multiprocessing.spawn.prepare(pickle.load(sys.stdin.buffer))
    adopt_orphans()
    woken, wake = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda number, frame: None)
    environments: set[int] = set()
    with socket.socket(fileno=requests) as host:
        while True:
            ready, _, _ = select.select([host.fileno(), woken], [], [])
            if woken in ready:
                with contextlib.suppress(BlockingIOError):
                    os.read(woken, 4096)
                _bury(environments)
            if host.fileno() in ready and not _answer(host, environments, [woken, wake]):
                break
    kill_descendants(os.getpid())


def _answer(host: socket.socket, environments: set[int], ours: list[int]) -> bool:
    """Answer one request. Returns False when the host is gone."""
    try:
        request, pipes, _, _ = socket.recv_fds(host, _REQUEST.size, 1)
    except OSError:
        return False
    if not request:
        return False
    kind, pid = _REQUEST.unpack(request)
    if kind == _END:
        if pid in environments:
            kill_tree(pid)
        return True
    pid = os.fork()
    if pid == 0:
        _become_environment(pipes[0], [*ours, host.fileno()])
    os.close(pipes[0])
    environments.add(pid)
    host.send(_PID.pack(pid))
    return True


def _become_environment(pipe: int, not_its_own: list[int]) -> None:
    code = 1
    try:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for each in not_its_own:
            os.close(each)
        die_with_parent()
        # Orphans among its descendants become its children, where they are found.
        adopt_orphans()
        # The fork copied the parent's generator, which would give all environments the same numbers.
        np.random.seed()
        serve(Connection(pipe))
        code = 0
    finally:
        os._exit(code)


def _bury(environments: set[int]) -> None:
    """Collect ended processes, and kill the orphans of dead environments."""
    with contextlib.suppress(ChildProcessError):
        while (pid := os.waitpid(-1, os.WNOHANG)[0]) != 0:
            environments.discard(pid)
    for child in psutil.Process().children():
        if child.pid not in environments:
            kill_tree(child.pid)
