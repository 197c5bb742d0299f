"""Weights from the trainer's program to the others of its job, as numbered versions.

    trainer:   publish -> location ==row of the buffer==> explorer: fetch -> engines

`checkpoint`: a Hugging Face folder per version that all can read. `memory`: the same in shared memory of the
machine. `nccl`: a broadcast to those that ask. A version holds all weights; an adapter is merged in.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import shutil
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from envsdk.base.store.atomic import remove_folder
from envsdk.buffer.connecting import url_of
from envsdk.buffer.contract import PublishedVersion, other_tokens
from envsdk.config.models import RunConfig
from envsdk.contracts.chat import digests
from envsdk.contracts.failures import ConfigurationError, StorageError
from envsdk.explorers.weight_outlets import BroadcastOutlet, FolderOutlet, machine_id
from envsdk.weights.server import WeightReader
from envsdk.weights.source import OutletReport, WeightOutlet, Weights
from envsdk.weights.versions import (
    KEEP_LAST,
    Manifest,
    VersionGone,
    folder_name,
    hold_version,
    read_manifest,
)

if TYPE_CHECKING:
    from torch import Tensor

Say = Callable[[str], None]

SHARED_MEMORY = Path("/dev/shm")
WEIGHTS_FOLDER = "weights"
KEEP_IN_MEMORY = 2
"""The newest version, and the one before for a program that is reading it."""
KEEP_HELD = 2
"""The version that a program's engines have, and the one that they are given."""
PAUSE_S = 0.5
LONGEST_PAUSE_S = 10.0
MIB = 1 << 20


class GivesWeights(Protocol):
    """A trainer: `TrainerGroup`."""

    async def give_weights(self, outlet: WeightOutlet) -> OutletReport: ...


class VersionPublisher:
    """The trainer's side: publish* -> close. Owner: the trainer's program; called from one event loop."""

    def __init__(self, config: RunConfig, trainer: GivesWeights, *, model: Path, say: Say) -> None:
        """
        Args:
            config: Of the run.
            trainer: Whose weights are published.
            model: Its Hugging Face folder; config and tokenizer come from there.
            say: Shows the user a line.

        Raises:
            ConfigurationError: This machine has no shared memory, or another user's folder is in its place.
        """
        self._config = config
        self._args = config.synchronizer
        self._trainer = trainer
        self._model = model
        self._say = say
        self._key = uuid.uuid4().hex
        if self._args.sync_method == "memory":
            self._folder = _shared_folder(config.run_folder)
        else:
            self._folder = published_folder(config)

    @property
    def lasts(self) -> bool:
        """Whether what it published is there when its process is gone."""
        return self._args.sync_method == "checkpoint"

    def still_has(self, version: int) -> bool:
        """Whether an earlier process published this version where others still find it."""
        if not self.lasts:
            return False
        try:
            return read_manifest(self._folder / folder_name(version)).version == version
        except VersionGone:
            return False

    async def publish(self, version: int) -> Mapping[str, Any]:
        """Make the trainer's present weights available as `version`; returns where, as plain JSON.

        StorageError when there is no room for them for `buffer.retry_s`.
        """
        outlet, retry_s = self._outlet(version), self._config.buffer.retry_s
        failing_since, pause = None, PAUSE_S
        while (report := await self._trainer.give_weights(outlet)).location is None:
            now = time.monotonic()
            if failing_since is None:
                failing_since = now
                self._say(f"{report.problem} Trying for {retry_s:g} s more (buffer.retry_s)")
            elif now - failing_since > retry_s:
                raise StorageError(f"version {version} of the weights is not published: {report.problem}")
            await asyncio.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE_S)
        location = {"method": self._args.sync_method, **report.location}
        for line in location.pop("news", ()):
            self._say(line)
        if self._args.sync_method == "memory" and location["machine"] != machine_id():
            raise ConfigurationError(
                "synchronizer.sync_method: memory, but the trainer's first rank is on another machine than "
                "this program; use checkpoint or nccl"
            )
        return location

    async def close(self) -> None:
        """Versions in shared memory end here, those in a folder stay. Idempotent."""
        if self._args.sync_method == "memory":
            await asyncio.to_thread(shutil.rmtree, self._folder, ignore_errors=True)

    def _outlet(self, version: int) -> WeightOutlet:
        # The last version of a run may come early.
        step = min(version * self._args.sync_interval, self._config.max_steps)
        if self._args.sync_method == "nccl":
            return BroadcastOutlet(
                key=self._key,
                towards=_database_host(self._config),
                version=version,
                step=step,
                bucket_bytes=self._config.model_update_buffer_size_mb * MIB,
                timeout_s=self._args.sync_timeout,
            )
        return FolderOutlet(
            folder=self._folder,
            model=self._model,
            version=version,
            step=step,
            keep_last=KEEP_LAST if self.lasts else KEEP_IN_MEMORY,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchedVersion:
    """Weights that are this program's own now."""

    version: int
    """The one that came: of a broadcast, perhaps a newer one than was asked for."""
    step: int
    """Batches that it was trained on."""
    weights: Weights
    """For `GivenWeights.hold`."""
    seconds: float
    """How long it took."""


class VersionReader:
    """The other programs' side: fetch* -> close. Owner: the program; called from one event loop.

    fetched = await reader.fetch(published)
    source.hold(fetched.weights)
    """

    def __init__(self, config: RunConfig, folder: Path, model: Path, *, say: Say) -> None:
        """
        Args:
            config: Of the run, as this program has it.
            folder: This program's own, in the run's folder: no other reader has the same.
            model: Where this program's tokenizer is.
            say: Shows the user a line.
        """
        self._model = model
        self._tokens: Mapping[str, str] = {}
        """Digests of the files beside the weights, as they were when the tokenizer was compared."""
        self._config = config
        self._args = config.synchronizer
        self._keep = folder.expanduser().resolve() / WEIGHTS_FOLDER
        self._name = "/".join(folder.parts[-2:])
        self._say = say
        self._broadcast = WeightReader(self._name)

    async def fetch(self, published: PublishedVersion) -> FetchedVersion:
        """A version's weights, checked. A broadcast gives the newest version, whatever is asked for.

        Raises:
            VersionGone: They are no longer there, damaged, or the trainer does not answer.
            ConfigurationError: They cannot be reached from this machine.
            StorageError: They cannot be kept.
        """
        began = time.monotonic()
        version, step, weights = await asyncio.to_thread(self._fetch, published)
        seconds = time.monotonic() - began
        if seconds > self._args.sync_timeout:
            self._say(
                f"{self._name} took {seconds:.0f} s to get version {version} of the weights "
                f"(synchronizer.sync_timeout is {self._args.sync_timeout:g} s): the trainer did not wait"
            )
        return FetchedVersion(version=version, step=step, weights=weights, seconds=seconds)

    async def close(self) -> None:
        """End what is under way, and let go of the versions that are held. Idempotent."""
        self._broadcast.close()
        await asyncio.to_thread(shutil.rmtree, self._keep, ignore_errors=True)

    def _fetch(self, published: PublishedVersion) -> tuple[int, int, Weights]:
        location = published.location
        match location["method"]:
            case "checkpoint":
                return self._from_folder(self._source(Path(location["folder"])))
            case "memory":
                if location["machine"] != machine_id():
                    raise ConfigurationError(
                        "the trainer publishes its weights in shared memory of its own machine (synchronizer."
                        "sync_method: memory), and this program is on another one: use checkpoint or nccl"
                    )
                return self._from_memory(Path(location["folder"]))
            case "nccl":
                return self._broadcast.read(
                    location["address"],
                    location["port"],
                    location["key"],
                    patience_s=self._args.sync_timeout,
                )
            case other:
                raise StorageError(f"the trainer publishes weights by {other!r}: upgrade envsdk here")

    def _source(self, folder: Path) -> Path:
        """The version's folder, which may have another path here."""
        if self._args.path is not None:
            here = published_folder(self._config)
            if not here.is_dir():
                raise VersionGone(f"there is no folder {here} on this machine (synchronizer.path)")
            return here / folder.name
        own = self._config.run_folder / WEIGHTS_FOLDER / folder.name
        return own if own.exists() else folder

    def _check_tokens(self, manifest: Manifest, held: Path) -> None:
        """ConfigurationError when the trainer's token ids mean something else than this program's."""
        files = {n: file.sha256 for n, file in manifest.files.items() if not n.endswith(".safetensors")}
        if "tokenizer.json" in files and files != self._tokens:
            own, published = digests(self._model), digests(held)
            if different := [part for part in own if own[part] != published[part]]:
                raise ConfigurationError(f"{other_tokens(str(self._model), different)} ({held.name})")
            self._tokens = files

    def _from_folder(self, folder: Path) -> tuple[int, int, Path]:
        manifest, held = hold_version(folder, self._keep)
        self._check_tokens(manifest, held)
        earlier = [each for each in self._keep.glob("version_*") if each != held]
        for old in sorted(earlier, key=lambda each: each.stat().st_mtime)[: 1 - KEEP_HELD]:
            remove_folder(old)
        return manifest.version, manifest.step, held

    def _from_memory(self, folder: Path) -> tuple[int, int, dict[str, Tensor]]:
        """Tensors that lie in the version's memory, which stays when its files are removed."""
        from safetensors.torch import load_file

        if not folder.parent.is_dir():
            raise VersionGone(
                f"there is no {folder.parent} here: the trainer ended, or this container has shared memory "
                "of its own (then start both with --ipc=host, or use synchronizer.sync_method: checkpoint)"
            )
        reading = folder.parent / f".reading_{self._name.replace('/', '_')}"
        try:
            manifest, held = hold_version(folder, reading)
            self._check_tokens(manifest, held)
            tensors: dict[str, Tensor] = {}
            for file in sorted(held.glob("*.safetensors")):
                tensors |= load_file(file)
        finally:
            shutil.rmtree(reading, ignore_errors=True)
        return manifest.version, manifest.step, tensors


def published_folder(config: RunConfig) -> Path:
    """Where `sync_method: checkpoint` has its versions on this machine."""
    return (config.synchronizer.path or config.run_folder / WEIGHTS_FOLDER).expanduser().resolve()


def _shared_folder(run_folder: Path) -> Path:
    """Folder of a job, in the machine's shared memory: for this user alone."""
    if not SHARED_MEMORY.is_dir():
        raise ConfigurationError(
            f"synchronizer.sync_method: memory needs {SHARED_MEMORY}, which this machine does not have; use "
            "checkpoint"
        )
    job = hashlib.sha256(os.fsencode(run_folder.expanduser().resolve())).hexdigest()[:16]
    folder = SHARED_MEMORY / f"envsdk-{os.getuid()}-{job}"
    folder.mkdir(mode=0o700, exist_ok=True)
    if folder.is_symlink() or folder.stat().st_uid != os.getuid():
        raise ConfigurationError(f"{folder} belongs to another user: have it removed")
    return folder


def _database_host(config: RunConfig) -> tuple[str, int] | None:
    """Explorers reach this program by the network on which both reach the database."""
    path = config.buffer.trainer_input.experience_buffer.path
    url = None if path is None else url_of(path)
    return (url.host, url.port or 1) if url is not None and url.host else None
