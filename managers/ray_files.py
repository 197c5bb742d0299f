"""Shell: files of the driver's machine, read by processes on other nodes through Ray's object store.

driver_files = find_driver_files(config, [model])   # an actor beside the driver serves them
WorkerSetup(..., driver_files=driver_files)         # a process on a node that lacks them fetches them
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ray

from envsdk.base.processes.actor_death import ACTOR_DIED, reason_of_death
from envsdk.base.store.travel import DriverFiles, FileServer, paths_in
from envsdk.config.models import RunConfig
from envsdk.contracts.failures import StorageError
from envsdk.managers.ray_nodes import on_this_node


@dataclass(frozen=True, slots=True)
class RayReader:
    """A `Reader` by calls to an actor that has a method `read`."""

    actor: Any

    def read(self, path: Path, offset: int, size: int) -> bytes:
        """At most `size` bytes from `offset` on."""
        try:
            data: bytes = ray.get(self.actor.read.remote(path, offset, size))
        except ray.exceptions.RayTaskError as error:
            if isinstance(error.cause, OSError):
                raise error.cause from error
            raise
        except ACTOR_DIED as error:
            raise StorageError(
                f"{path} cannot be read from its machine any more: {reason_of_death(error)}"
            ) from error
        return data


def find_driver_files(config: RunConfig, paths: Iterable[Path]) -> DriverFiles:
    """These paths and those that environments are given, where processes of the run may be on other nodes."""
    if config.ray.address is None:
        return DriverFiles()
    named = [path for env in config.custom_envs.values() for path in paths_in(env.env_config)]
    server: Any = ray.remote(**on_this_node())(FileServer)
    return DriverFiles.of([*paths, *named], RayReader(server.remote()))
