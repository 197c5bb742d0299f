"""PublishedVersions: the weights that a job's trainer publishes, for programs that take no part in the job.

opened -> (look -> fetch? -> changed)* -> close
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from pathlib import Path

from envsdk.buffer.client import BufferClient
from envsdk.buffer.contract import JobStatus, PublishedVersion, Signal
from envsdk.config.models import RunConfig
from envsdk.explorers.membership import meaning_of, open_buffer, terms_of
from envsdk.explorers.weights import FetchedVersion, VersionReader
from envsdk.runs.checkpoints import FOLDER as CHECKPOINTS
from envsdk.weights.versions import VersionGone

LOOK_AGAIN_S = 5.0
"""How long a signal is waited for before the buffer is asked without one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """How a job stands."""

    newest: PublishedVersion | None
    is_finished: bool
    """Whether the trainer has all its steps: `newest` is the last version then."""
    has_trainer: bool
    """Whether one lives."""


class PublishedVersions:
    """Owner: the program; called from one event loop."""

    def __init__(
        self,
        config: RunConfig,
        reader: VersionReader,
        *,
        say: Callable[[str], None],
        model: Path | None = None,
    ) -> None:
        """`model`: whose token ids this program reads."""
        self._config = config
        self._model = model
        self._reader = reader
        self._buffer = open_buffer(config)
        self._client = BufferClient(self._buffer, retry_s=config.buffer.retry_s, say=say)
        self._say = say
        self._seen = 0
        self._said_gone = -1

    async def open(self) -> None:
        """Find the job, which may begin later. ConfigurationError when this program does not fit it."""
        config = self._config
        meaning = await asyncio.to_thread(meaning_of, config, self._model)
        await self._client.call(lambda: self._buffer.create(config.exp_name, terms_of(config), meaning))

    async def look(self) -> Standing:
        """How the job stands now."""
        # In this order: a change in between wakes `changed`, and a finished job has no newer version.
        self._seen = await self._client.call(lambda: self._buffer.signal_number(Signal.VERSION))
        view = await self._client.call(self._buffer.view)
        newest = await self._client.call(self._buffer.newest_version)
        return Standing(
            newest=newest,
            is_finished=view.status is JobStatus.FINISHED,
            has_trainer=view.trainer_silent_s is None,
        )

    async def changed(self) -> None:
        """Wait until a version is published or the job ends, or for a few seconds."""
        await self._client.changed(Signal.VERSION, self._seen, timeout_s=LOOK_AGAIN_S)

    async def fetch(self, published: PublishedVersion) -> FetchedVersion | None:
        """The weights of this version, or of a newer one; None when they are gone: look again then.

        VersionGone when they were the last ones.
        """
        try:
            found = await self._reader.fetch(published)
        except VersionGone as gone:
            standing = await self.look()
            if standing.newest is not None and standing.newest.version > published.version:
                return None
            if standing.is_finished:
                return self._from_checkpoint(published, gone)
            if self._said_gone != published.version:
                self._said_gone = published.version
                self._say(f"{gone}; waiting for a newer version")
            await self.changed()
            return None
        return replace(found, step=published.step) if found.version == published.version else found

    def _from_checkpoint(self, published: PublishedVersion, gone: VersionGone) -> FetchedVersion:
        """A trainer that has ended no longer gives its weights; its last checkpoint has them."""
        folder = self._config.run_folder / CHECKPOINTS / f"step_{published.step:06d}" / "model"
        if not folder.is_dir():
            raise gone
        return FetchedVersion(
            version=published.version, step=published.step, weights=folder.resolve(), seconds=0.0
        )

    async def close(self) -> None:
        """Free what is held."""
        await self._reader.close()
        await asyncio.to_thread(self._buffer.engine.dispose)


async def done_before(stop: asyncio.Event, work: Awaitable[object]) -> bool:
    """Do the work, until `stop` is set: False then."""
    doing, stopped = asyncio.ensure_future(work), asyncio.ensure_future(stop.wait())
    try:
        await asyncio.wait({doing, stopped}, return_when=asyncio.FIRST_COMPLETED)
        if doing.done():
            doing.result()
            return True
        return False
    finally:
        for task in (doing, stopped):
            task.cancel()
        await asyncio.wait({doing, stopped})
