"""Starts Ray on this machine only, with a folder of logs and sockets per start, or joins a cluster."""

from __future__ import annotations

import errno
import functools
import logging
import os
import select
import shutil
import signal
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import ray
from ray._private import parameter, ray_constants, services

from envsdk.base.store.file_lock import locked
from envsdk.config.ray_models import RayArgs
from envsdk.contracts.failures import ConfigurationError, EngineError, Interrupted

CONNECT_TIMEOUT_S = 10.0
LOOK_AT_HEAD_S, ANSWER_S = 2.0, 3.0
MIN_OBJECT_STORE_BYTES = 80 * 1024**2
"""Ray refuses a smaller store."""
MAX_DEFAULT_OBJECT_STORE_BYTES = 512 * 1024**2
"""Weights and batches of the embedded engine need a few MB; a larger store must be configured."""

_LOG_BYTES, _LOG_BACKUPS = 16 * 1024**2, 1
"""For the log of each of Ray's processes; with Ray's defaults one may grow to gigabytes."""
_REPORTED_BY_US = ("Raylet is terminated", "A worker died or was killed")
_RECONNECT = "RAY_gcs_rpc_server_reconnect_timeout_s"
"""How long Ray itself waits for a head that is gone, 60 s unless it is set; then it ends the process."""
HEAD_PATIENCE_S = 7.0
"""For a head that does not come back; one with storage of its own may, and then `_RECONNECT` is set."""
START_TRIES, _TOO_SLOW = 3, "timed out during startup"
_CANNOT_ASK = (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS)
"""This machine lacks descriptors or memory, which says nothing about the head."""
_WATCHED = {"raylet": "Ray's node manager (raylet)", "gcs_server": "Ray's control process (gcs_server)"}
"""Processes of Ray whose end also ends the run."""


@contextmanager
def ray_runtime(
    args: RayArgs, *, if_lost: Sequence[str] = (), say: Callable[[str], None] = lambda text: None
) -> Iterator[None]:
    """Run Ray during the block. A Ray started here is ended with it; a joined cluster keeps running.

    When Ray dies on this machine, or the head of a joined cluster stays out of reach, Ray would end this
    process without a message, or block it for a minute. If `if_lost` names a program, that program replaces
    this process instead. Its last argument says what died.

    `say` gets a line about what is started.

    Raises ConfigurationError for an object store that does not fit into memory, and EngineError when Ray
    cannot be started or reached.
    """
    say("starting Ray on this machine" if args.address is None else f"joining Ray at {args.address}")
    os.environ.setdefault("RAY_ROTATION_MAX_BYTES", str(_LOG_BYTES))
    os.environ.setdefault("RAY_ROTATION_BACKUP_COUNT", str(_LOG_BACKUPS))
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    try:
        if args.address is not None:
            _check_reachable(args.address)
            ray.init(address=args.address, log_to_driver=False, logging_level=logging.ERROR)
        else:
            _stay_on_loopback()
            _start_here(args)
    except Exception as error:  # Ray raises a plain one when a machine is too busy to start it in time
        where = f"at ray.address={args.address}" if args.address else "on this machine"
        raise EngineError(
            f"Ray cannot be {'reached' if args.address else 'started'} {where}: {error}"
        ) from error
    with ExitStack() as held:
        if args.address is not None:
            watch = _joined(if_lost)
        else:
            worker: Any = ray._private.worker
            worker.print_to_stdstream = _without_last_words(worker.print_to_stdstream)
            session = Path(worker._global_node.get_session_dir_path())
            held.enter_context(held_session(session))
            watch = _started(session, worker._global_node.all_processes, if_lost)
        try:
            yield
        finally:
            watch.end()
            ray.shutdown()


def _start_here(args: RayArgs) -> None:
    """Start Ray on this machine. Ray gives itself 30 s for that; on a busy machine it is tried again."""
    for tries_left in reversed(range(START_TRIES)):
        before = {child.pid for child in psutil.Process().children()}
        try:
            with _apart_from_signals(), _few_processes(args.include_dashboard):
                ray.init(
                    address="local",  # else a cluster that somebody runs on this machine would be joined
                    num_cpus=args.num_cpus,
                    object_store_memory=object_store_bytes(args.object_store_memory),
                    include_dashboard=args.include_dashboard,
                    _node_ip_address="127.0.0.1",
                    log_to_driver=False,
                    logging_level=logging.ERROR,
                )
            return
        except Exception as error:  # a plain one
            if not tries_left or _TOO_SLOW not in str(error):
                raise
            end_processes([child.pid for child in psutil.Process().children() if child.pid not in before])


@contextmanager
def _few_processes(include_dashboard: bool) -> Iterator[None]:
    """Start none that sends logs here, that adds nodes, or that serves a dashboard nobody asked for."""
    params, serve = vars(parameter)["RayParams"], vars(services)["start_api_server"]
    vars(parameter)["RayParams"] = functools.partial(params, include_log_monitor="", no_monitor=True)
    if not include_dashboard:
        vars(services)["start_api_server"] = lambda *_, **__: ("", None)
    try:
        yield
    finally:
        vars(parameter)["RayParams"], vars(services)["start_api_server"] = params, serve


@contextmanager
def _apart_from_signals() -> Iterator[None]:
    """Start Ray's processes so that a signal to this process's group does not reach them.

    `timeout` and job schedulers send SIGTERM to the group. This process answers it with a checkpoint, for
    which it needs Ray. Ray's processes still end with this one: they ask the kernel for that.

    SIGTERM waits meanwhile: Ray sets handlers of its own, which print a stack of addresses.
    """
    ray_services: Any = services
    popen, term = ray_services.ConsolePopen, {signal.SIGTERM}

    def start(*args: Any, preexec_fn: Callable[[], None], **options: Any) -> Any:
        def before_exec() -> None:
            preexec_fn()
            signal.pthread_sigmask(signal.SIG_UNBLOCK, term)

        return popen(*args, preexec_fn=before_exec, start_new_session=True, **options)

    ray_services.ConsolePopen = start
    handler, mask = signal.getsignal(signal.SIGTERM), signal.pthread_sigmask(signal.SIG_BLOCK, term)
    try:
        yield
    finally:
        ray_services.ConsolePopen = popen
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, handler)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def _without_last_words(show: Callable[..., None]) -> Callable[..., None]:
    """Shows Ray's messages to the driver, except those about events that the run itself reports."""

    @functools.wraps(show)
    def shown(data: Mapping[str, Any], **options: Any) -> None:
        if not any(line.startswith(_REPORTED_BY_US) for line in data["lines"]):
            show(data, **options)

    return shown


def _started(session: Path, running: Mapping[str, Any], if_lost: Sequence[str]) -> Watch:
    """Watches a Ray that was started here; what is left of it is killed when a part dies."""
    logs = session / "logs"
    return Watch(
        {
            running[part][0].process.pid: (
                f"{name} died: it was killed, or the machine ran out of memory. Its logs are in {logs}"
            )
            for part, name in _WATCHED.items()
        },
        if_lost,
        to_end=[each.process.pid for processes in running.values() for each in processes],
    )


def _joined(if_lost: Sequence[str]) -> Watch:
    """Watches the part of a cluster that this process cannot do without: its own node, and the head."""
    address = ray.get_runtime_context().gcs_address
    node: Any = ray._private.worker._global_node
    raylet = _listener(node.raylet_socket_name)
    head = Head(
        address=address,
        is_reachable=lambda: _answers(address),
        patience_s=0.75 * float(os.environ[_RECONNECT]) if _RECONNECT in os.environ else HEAD_PATIENCE_S,
    )
    died = (
        f"{_WATCHED['raylet']} on this machine died: it was killed, the machine ran out of memory, or Ray's "
        f"head at {address} gave it up"
    )
    return Watch({} if raylet is None else {raylet: died}, if_lost, head=head)


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """The head of a joined cluster."""

    address: str
    is_reachable: Callable[[], bool]
    patience_s: float
    """One with storage of its own may be started again; this process gives it so much time."""


class Watch:
    """Watches Ray's own processes on a thread until `end`."""

    def __init__(
        self,
        died: Mapping[int, str],
        if_lost: Sequence[str],
        *,
        to_end: Sequence[int] = (),
        head: Head | None = None,
    ) -> None:
        """`died` says of each process, by pid, what its end means; `to_end` are killed when one ended."""
        self._if_lost = if_lost
        self._ended, self._end = os.pipe()
        self._died = {os.pidfd_open(pid): sentence for pid, sentence in died.items()}
        self._to_end = to_end
        self._head = head if if_lost else None
        self._thread = threading.Thread(target=self._watch, name="envsdk-ray-watch", daemon=True)
        self._thread.start()

    def end(self) -> None:
        """Stop watching."""
        os.write(self._end, b"x")
        self._thread.join()
        for descriptor in (self._ended, self._end, *self._died):
            os.close(descriptor)

    def _watch(self) -> None:
        reached_at = time.monotonic()
        while True:
            timeout_s = LOOK_AT_HEAD_S if self._head else None
            ready, _, _ = select.select([self._ended, *self._died], [], [], timeout_s)
            if self._ended in ready:
                return
            if ready:
                if self._if_lost:
                    self._take_over(self._died[ready[0]])
                return
            assert self._head is not None
            if self._head.is_reachable():
                reached_at = time.monotonic()
            elif (silent_s := time.monotonic() - reached_at) > self._head.patience_s:
                self._take_over(
                    f"Ray's head at {self._head.address} has been out of reach for {silent_s:.0f} s: its "
                    "machine is gone, it was ended, or the network is cut"
                )

    def _take_over(self, what_died: str) -> None:
        """Replace this process without shutting Ray down in it: its threads end with the program."""
        end_processes(self._to_end)
        if sys.stdout.isatty():
            os.write(1, b"\x1b[?25h")  # show the cursor, which a progress display hides
        sys.stdout.flush()
        os.execv(self._if_lost[0], [*self._if_lost, what_died])


def _listener(path: str) -> int | None:
    """Pid of the process that listens on a Unix socket; None where it is hidden from this one."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.connect(path)
        credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    pid: int = struct.unpack("3i", credentials)[0]
    return pid or None


def _answers(address: str) -> bool:
    try:
        _check_reachable(address, ANSWER_S)
    except OSError as error:
        return error.errno in _CANNOT_ASK
    return True


def end_processes(pids: Sequence[int]) -> None:
    """Kill these processes and their descendants."""
    for pid in pids:
        with suppress(psutil.NoSuchProcess):
            process = psutil.Process(pid)
            for each in (process, *process.children(recursive=True)):
                with suppress(psutil.NoSuchProcess):
                    each.kill()


def _stay_on_loopback() -> None:
    """Keep all processes of Ray from listening on addresses that other machines can reach.

    Where Ray could be part of a cluster, it replaces 127.0.0.1 by the machine's own address and listens on
    all addresses. The switch against this is named after the systems on which clusters are off by default.
    """
    os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"
    ray_constants.ENABLE_RAY_CLUSTER = False


def _check_reachable(address: str, timeout_s: float = CONNECT_TIMEOUT_S) -> None:
    """Fail within seconds. Ray itself would try for minutes and then end the process."""
    host, colon, port = address.rpartition(":")
    if colon and port.isdigit() and "//" not in address:
        socket.create_connection((host, int(port)), timeout=timeout_s).close()


def object_store_bytes(asked_for: int | None) -> int:
    """Size of the shared object store: the configured size if it fits, or a modest default."""
    free = min(int(psutil.virtual_memory().available), _shared_memory_free())
    if asked_for is None:
        size = min(MAX_DEFAULT_OBJECT_STORE_BYTES, free // 4)
        if size < MIN_OBJECT_STORE_BYTES:
            raise ConfigurationError(
                f"too little memory for Ray's object store: {_mb(free)} MB free, and a quarter of that is "
                f"less than the {_mb(MIN_OBJECT_STORE_BYTES)} MB it needs; free some memory, or set "
                "ray.object_store_memory"
            )
        return size
    if asked_for < MIN_OBJECT_STORE_BYTES:
        raise ConfigurationError(
            f"ray.object_store_memory is {asked_for} bytes; Ray needs at least {MIN_OBJECT_STORE_BYTES}"
        )
    if asked_for > free:
        raise ConfigurationError(
            f"ray.object_store_memory is {_mb(asked_for)} MB but only {_mb(free)} MB are free in memory and "
            f"/dev/shm; set it to at most {free}, or leave it out"
        )
    return asked_for


def _shared_memory_free() -> int:
    try:
        return int(psutil.disk_usage("/dev/shm").free)
    except OSError:
        return int(psutil.virtual_memory().available)


def _mb(num_bytes: int) -> int:
    return num_bytes // 1024**2


LOCK = "envsdk.lock"
"""In the folder of a Ray that this package started; locked while the program lives that started it."""
KEPT_FOLDERS = 3
"""How many of the folders that are left stay, the newest: their logs may still be read."""


@contextmanager
def held_session(folder: Path) -> Iterator[None]:
    """Hold Ray's folder during the block, and remove it afterwards unless the block fails.

    Also removes the older folders that failed and killed programs left.

    made by Ray -> held -> removed (the run ended well, or was interrupted)
                        -> left (the run failed, or was killed) -> swept by a later start
    """
    with locked(folder / LOCK, patience_s=0):
        sweep_sessions(folder.parent)
        try:
            yield
        except Interrupted:
            remove_session(folder)
            raise
        remove_session(folder)


def sweep_sessions(sessions: Path) -> None:
    """Remove the folders that dead programs left, except the newest."""
    left = [lock for lock in sessions.glob(f"session_*/{LOCK}") if _is_left(lock)]
    for lock in sorted(left, key=lambda lock: lock.parent.name, reverse=True)[KEPT_FOLDERS:]:
        shutil.rmtree(lock.parent, ignore_errors=True)


def _is_left(lock: Path) -> bool:
    """Whether the program is gone: by its pid, which Ray puts into the name, and by its lock.

    The lock tells of programs in containers with pids of their own; some file systems have no locks.
    """
    pid = lock.parent.name.rpartition("_")[2]
    if lock.parent.is_symlink() or (pid.isdigit() and psutil.pid_exists(int(pid))):
        return False
    with suppress(OSError), locked(lock, patience_s=0):
        return True
    return False


def remove_session(folder: Path) -> None:
    """Remove Ray's folder, and the link to the newest one if it leads there."""
    latest = folder.parent / "session_latest"
    with suppress(OSError):
        if latest.resolve() == folder.resolve():
            latest.unlink()
    shutil.rmtree(folder, ignore_errors=True)
