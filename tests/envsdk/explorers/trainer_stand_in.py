"""What other programs see of a trainer: the versions that it publishes."""

from __future__ import annotations

import asyncio
from pathlib import Path

from envsdk.buffer.contract import PublishedVersion, Role
from envsdk.config.models import RunConfig
from envsdk.explorers.membership import open_buffer, terms_of
from envsdk.explorers.weights import FetchedVersion, VersionReader
from envsdk.weights.versions import VersionGone


class TrainerStandIn:
    """Takes no batches."""

    def __init__(self, config: RunConfig) -> None:
        self.buffer = open_buffer(config)
        self.buffer.create(config.exp_name, terms_of(config))
        self.me = self.buffer.join(Role.TRAINER, "trainer")
        self.buffer.trainer.begin(self.me, 0)

    def publish(self, version: int, folder: Path) -> None:
        """These weights, at the step of the same number."""
        self.buffer.trainer.publish(
            self.me, version, version, {"method": "checkpoint", "folder": str(folder)}
        )

    def finish(self) -> None:
        self.buffer.trainer.finish(self.me)
        self.leave()

    def leave(self) -> None:
        self.buffer.leave(self.me)
        self.buffer.engine.dispose()


class FolderReader(VersionReader):
    """Gives the folders themselves."""

    def __init__(self) -> None: ...

    async def fetch(self, published: PublishedVersion) -> FetchedVersion:
        folder = Path(published.location["folder"])
        if not await asyncio.to_thread(folder.is_dir):
            raise VersionGone(f"{folder} is gone")
        return FetchedVersion(version=published.version, step=published.step, weights=folder, seconds=0.0)

    async def close(self) -> None:
        return
