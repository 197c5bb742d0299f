"""Weights from the trainer to the other programs of a job.

    publisher.publish(version) -> a location, which the buffer keeps -> reader.fetch(...)

`checkpoint`: a Hugging Face folder per version, complete or absent; the newest few stay.
"""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from envsdk.buffer.contract import PublishedVersion
from envsdk.config.models import RunConfig
from envsdk.failures import EngineError
from envsdk.pipeline.trainer_group import TrainerGroup
from envsdk.store.atomic import fsync_folder, make_folder, storage_error

FOLDER = "weights"
KEEP_LAST = 3


class FolderPublisher:
    """Writes a folder for each version."""

    lasts = True

    def __init__(self, folder: Path, trainer: TrainerGroup) -> None:
        self._folder = folder
        self._trainer = trainer

    async def publish(self, version: int) -> Mapping[str, Any]:
        """Make the present weights available as `version`; returns where they are."""
        final = self._folder / f"version_{version:06d}"
        partial = final.with_name(f".{final.name}.partial")
        try:
            await asyncio.to_thread(_clear, partial)
            await self._trainer.save_pretrained(partial)
            await asyncio.to_thread(_complete, partial, final)
        except OSError as error:
            raise storage_error("publish the weights in", final, error) from error
        return {"folder": str(final)}

    async def close(self) -> None:
        """The folders stay."""


class FolderReader:
    """Finds them."""

    async def fetch(self, published: PublishedVersion) -> Path:
        """The folder. EngineError when it is gone: a newer version is there then."""
        folder = Path(published.location["folder"])
        if not await asyncio.to_thread(folder.is_dir):
            raise EngineError(f"{folder} with the weights of version {published.version} is gone")
        return folder

    async def close(self) -> None:
        """Nothing is held."""


def open_publisher(config: RunConfig, trainer: TrainerGroup) -> FolderPublisher:
    """By the `sync_method`."""
    folder = config.synchronizer.path or config.run_folder / FOLDER
    return FolderPublisher(folder.expanduser().resolve(), trainer)


def open_reader(config: RunConfig) -> FolderReader:
    """By the `sync_method`."""
    return FolderReader()


def _clear(partial: Path) -> None:
    shutil.rmtree(partial, ignore_errors=True)
    make_folder(partial)


def _complete(partial: Path, final: Path) -> None:
    for file in partial.iterdir():
        descriptor = os.open(file, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    shutil.rmtree(final, ignore_errors=True)
    partial.rename(final)
    fsync_folder(final.parent)
    for old in sorted(final.parent.glob("version_*"))[:-KEEP_LAST]:
        shutil.rmtree(old, ignore_errors=True)
