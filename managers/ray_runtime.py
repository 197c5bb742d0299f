"""Starts Ray on this machine only, or joins a cluster."""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager

import psutil
import ray
from ray._private import ray_constants

from envsdk.config.models import RayArgs
from envsdk.failures import ConfigurationError, EngineError

CONNECT_TIMEOUT_S = 10.0
MIN_OBJECT_STORE_BYTES = 80 * 1024**2
"""Ray refuses less."""
MAX_DEFAULT_OBJECT_STORE_BYTES = 512 * 1024**2
"""Weights and batches of the embedded default need a few MB; more is taken only when asked for."""


@contextmanager
def ray_runtime(args: RayArgs) -> Iterator[None]:
    """Ray while the block runs. What this starts, it ends; a cluster that was joined goes on.

    Raises ConfigurationError for a store that does not fit into memory and EngineError when Ray
    cannot be started or reached.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    try:
        if args.address is not None:
            _check_reachable(args.address)
            ray.init(address=args.address, log_to_driver=False, logging_level=logging.ERROR)
        else:
            _stay_on_loopback()
            ray.init(
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
    try:
        yield
    finally:
        ray.shutdown()


def _stay_on_loopback() -> None:
    """Let nothing that is started listen on an address that other machines can reach.

    Ray replaces 127.0.0.1 by the machine's own address wherever it could be part of a cluster, and then
    listens on all of them. The switch that says it cannot is named after the systems it is off on.
    """
    os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"
    ray_constants.ENABLE_RAY_CLUSTER = False


def _check_reachable(address: str) -> None:
    """Fail within seconds where Ray would try for minutes and then end the process."""
    host, colon, port = address.rpartition(":")
    if colon and port.isdigit() and "//" not in address:
        socket.create_connection((host, int(port)), timeout=CONNECT_TIMEOUT_S).close()


def object_store_bytes(asked_for: int | None) -> int:
    """Size of the shared object store: what was asked for if it fits, or a modest default."""
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
