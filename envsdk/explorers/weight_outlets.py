"""What the trainer's first rank does with its weights when it publishes them: write a folder, or serve them.

Outlets travel to the rank's process; `take` runs there.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from envsdk.contracts.failures import EngineError, StorageError
from envsdk.weights.folders import optional_head, write_folder
from envsdk.weights.server import WeightServer
from envsdk.weights.shapes import shapes_in
from envsdk.weights.versions import KEEP_LAST, write_version


@dataclass(frozen=True, slots=True, kw_only=True)
class FolderOutlet:
    """Writes a Hugging Face folder."""

    folder: Path
    """The folder of all versions."""
    model: Path
    """Where the trainer began: config and tokenizer come from there."""
    version: int
    step: int
    keep_last: int = KEEP_LAST

    def take(self, weights: Iterable[tuple[str, Any]]) -> dict[str, Any]:
        """Where the version is. StorageError when it cannot be written, EngineError for other weights."""
        expected = shapes_in(self.model)
        optional = optional_head(self.model, expected)

        def fill(folder: Path) -> None:
            try:
                write_folder(weights, folder, expected, optional=optional)
            except EngineError as error:
                if error.__cause__ is None:
                    raise
                raise StorageError(str(error)) from error
            _copy_the_rest(self.model, folder)

        try:
            written = write_version(self.folder, self.version, self.step, fill, keep_last=self.keep_last)
        except StorageError as error:
            if not self.folder.is_relative_to("/dev/shm"):
                raise
            free = shutil.disk_usage("/dev/shm").free / 1e6
            raise StorageError(
                f"{error} The machine's shared memory has {free:.0f} MB free: enlarge it (for a container "
                "with --shm-size), or set synchronizer.sync_method: checkpoint"
            ) from error
        return {"folder": str(written), "machine": machine_id()}


@dataclass(frozen=True, slots=True, kw_only=True)
class BroadcastOutlet:
    """Holds weights in this process and sends them to programs that ask."""

    key: str
    """Key of the job's present trainer: the rank has one server under it."""
    towards: tuple[str, int] | None
    """A host and port in the network of the explorers; None: they are on this machine or in Ray's cluster."""
    version: int
    step: int
    bucket_bytes: int
    timeout_s: float

    def take(self, weights: Iterable[tuple[str, Any]]) -> dict[str, Any]:
        """Where the server is found, and what it has to say."""
        server = _servers.get(self.key)
        if server is None:
            server = _servers[self.key] = WeightServer(self._address(), self.key, timeout_s=self.timeout_s)
        server.hold(self.version, self.step, weights, self.bucket_bytes)
        return {
            "address": server.address,
            "port": server.port,
            "key": self.key,
            "news": server.take_news(),
        }

    def _address(self) -> str:
        from envsdk.base.net.rendezvous import address_towards

        if self.towards is not None:
            return address_towards(*self.towards)
        import ray

        return str(ray.util.get_node_ip_address()) if ray.is_initialized() else "127.0.0.1"


_servers: dict[str, WeightServer] = {}
"""The servers of this process: they outlive the calls that bring the weights."""


def machine_id() -> str:
    """The same for all processes of this machine until it starts again, also in containers."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return os.uname().nodename


def _copy_the_rest(model: Path, folder: Path) -> None:
    from envsdk.trainers.pretrained_folder import TOKENIZER_FILES

    for pattern in ("config.json", "generation_config.json", *TOKENIZER_FILES):
        for file in sorted(model.glob(pattern)):
            if file.is_file():
                shutil.copyfile(file, folder / file.name)
