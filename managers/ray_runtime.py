"""Starts Ray on this machine only, or joins a cluster."""

from __future__ import annotations

import functools
import logging
import os
import select
import shutil
import socket
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
import ray
from ray._private import ray_constants

from envsdk.config.models import RayArgs
from envsdk.failures import ConfigurationError, EngineError, Interrupted

CONNECT_TIMEOUT_S = 10.0
MIN_OBJECT_STORE_BYTES = 80 * 1024**2
"""Ray refuses a smaller store."""
MAX_DEFAULT_OBJECT_STORE_BYTES = 512 * 1024**2
"""Weights and batches of the embedded engine need a few MB; a larger store must be configured."""

_LOG_BYTES, _LOG_BACKUPS = 16 * 1024**2, 1
"""For the log of each of Ray's processes; with Ray's defaults one may grow to gigabytes."""
_REPORTED_BY_US = ("Raylet is terminated", "A worker died or was killed")
_WATCHED = {"raylet": "Ray's node manager (raylet)", "gcs_server": "Ray's control process (gcs_server)"}
"""Processes of Ray whose end also ends the run."""


@contextmanager
def ray_runtime(args: RayArgs, *, if_lost: Sequence[str] = ()) -> Iterator[None]:
    """Run Ray during the block. A Ray started here is ended with it; a joined cluster keeps running.

    When a Ray started here dies, it would end this process without a message, or block it for a minute. If
    `if_lost` names a program, that program replaces this process instead. Its last argument says which
    process died and where Ray's logs are.

    Ray's folder of logs and sockets is removed afterwards, unless the block fails.

    Raises ConfigurationError for an object store that does not fit into memory, and EngineError when Ray
    cannot be started or reached.
    """
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
            ray.init(
                address="local",  # else a cluster that somebody runs on this machine would be joined
                num_cpus=args.num_cpus,
                object_store_memory=object_store_bytes(args.object_store_memory),
                include_dashboard=args.include_dashboard,
                _node_ip_address="127.0.0.1",
                log_to_driver=False,
                logging_level=logging.ERROR,
            )
    except (RuntimeError, ConnectionError, ValueError, OSError) as error:
        where = f"at ray.address={args.address}" if args.address else "on this machine"
        raise EngineError(
            f"Ray cannot be {'reached' if args.address else 'started'} {where}: {error}"
        ) from error
    if args.address is not None:
        try:
            yield
        finally:
            ray.shutdown()
        return
    worker: Any = ray._private.worker
    worker.print_to_stdstream = _without_last_words(worker.print_to_stdstream)
    node = worker._global_node
    session = Path(node.get_session_dir_path())
    has_failed = True
    watch = _Watch(session, node.all_processes, if_lost)
    try:
        yield
        has_failed = False
    except Interrupted:
        has_failed = False
        raise
    finally:
        watch.end()
        ray.shutdown()
        if not has_failed:
            remove_session(session)


def _without_last_words(show: Callable[..., None]) -> Callable[..., None]:
    """Shows Ray's messages to the driver, except those about events that the run itself reports."""

    @functools.wraps(show)
    def shown(data: Mapping[str, Any], **options: Any) -> None:
        if not any(line.startswith(_REPORTED_BY_US) for line in data["lines"]):
            show(data, **options)

    return shown


class _Watch:
    """Watches Ray's own processes on a thread until `end`."""

    def __init__(self, session: Path, running: Mapping[str, Any], if_lost: Sequence[str]) -> None:
        self._session = session
        self._if_lost = if_lost
        self._ended, self._end = os.pipe()
        watched = {running[part][0].process.pid: name for part, name in _WATCHED.items()}
        self._names = {os.pidfd_open(pid): name for pid, name in watched.items()}
        self._all = [each.process.pid for processes in running.values() for each in processes]
        self._thread = threading.Thread(target=self._watch, name="envsdk-ray-watch", daemon=True)
        self._thread.start()

    def end(self) -> None:
        """Stop watching."""
        os.write(self._end, b"x")
        self._thread.join()
        for descriptor in (self._ended, self._end, *self._names):
            os.close(descriptor)

    def _watch(self) -> None:
        ready, _, _ = select.select([self._ended, *self._names], [], [])
        if self._if_lost and self._ended not in ready:
            self._take_over(self._names[ready[0]])

    def _take_over(self, who: str) -> None:
        """Replace this process without shutting Ray down in it: its threads end with the program."""
        end_processes(self._all)
        why = "it was killed, or the machine ran out of memory"
        if sys.stdout.isatty():
            os.write(1, b"\x1b[?25h")  # show the cursor, which a progress display hides
        sys.stdout.flush()
        logs = self._session / "logs"
        os.execv(self._if_lost[0], [*self._if_lost, f"{who} died: {why}. Its logs are in {logs}"])


def end_processes(pids: Sequence[int]) -> None:
    """Kill these processes and their descendants."""
    for pid in pids:
        with suppress(psutil.NoSuchProcess):
            process = psutil.Process(pid)
            for each in (process, *process.children(recursive=True)):
                with suppress(psutil.NoSuchProcess):
                    each.kill()


def remove_session(session: Path) -> None:
    """Remove Ray's folder of logs and sockets."""
    latest = session.parent / "session_latest"
    with suppress(OSError):
        if latest.resolve() == session.resolve():
            latest.unlink()
    shutil.rmtree(session, ignore_errors=True)


def _stay_on_loopback() -> None:
    """Keep all processes of Ray from listening on addresses that other machines can reach.

    Where Ray could be part of a cluster, it replaces 127.0.0.1 by the machine's own address and listens on
    all addresses. The switch against this is named after the systems on which clusters are off by default.
    """
    os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"
    ray_constants.ENABLE_RAY_CLUSTER = False


def _check_reachable(address: str) -> None:
    """Fail within seconds. Ray itself would try for minutes and then end the process."""
    host, colon, port = address.rpartition(":")
    if colon and port.isdigit() and "//" not in address:
        socket.create_connection((host, int(port)), timeout=CONNECT_TIMEOUT_S).close()


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
