"""Ended sessions on disk: numbered files of trajectories in one folder.

with SessionRecorder(Path("played"), model_name="policy") as recorder:
    endpoint = Endpoint(..., on_ended=recorder.add)

part-00000.parquet  part-00001.parquet ...      read by `envsdk.base.store.trajectories.read_trajectories`
"""

from __future__ import annotations

import asyncio
from contextlib import ExitStack
from pathlib import Path
from typing import Self

from envsdk.base.store.atomic import make_folder, remove_leftovers
from envsdk.base.store.shards import MANIFEST, locked_folder
from envsdk.base.store.trajectories import read_columns, write_trajectories
from envsdk.contracts.failures import ConfigurationError
from envsdk.contracts.trajectory import Trajectory

MODEL_KEY = "envsdk.endpoint.model"
"""In the metadata of each file."""


class SessionRecorder:
    """Writes what sessions become: one file for all that ended while the file before was written."""

    def __init__(self, folder: Path, *, model_name: str) -> None:
        self._folder = folder
        self._metadata = {MODEL_KEY: model_name}
        self._waiting: list[tuple[list[Trajectory], asyncio.Future[None]]] = []
        self._writing: asyncio.Task[None] | None = None
        self._next = 0
        self._stack = ExitStack()
        self.num_trajectories = 0
        self.used: dict[str, int] = {}
        """Indices of the sessions in the folder by their ids."""

    def __enter__(self) -> Self:
        """Lock the folder and continue its numbers.

        StorageError when another process writes there, ConfigurationError when it is a collection.
        """
        make_folder(self._folder)
        if (self._folder / MANIFEST).exists():
            raise ConfigurationError(f"--out: {self._folder} holds a collection; choose another folder")
        self._stack.enter_context(locked_folder(self._folder))
        remove_leftovers(self._folder)
        shards = [path for path in self._folder.glob("part-*.parquet") if path.stem[5:].isdigit()]
        self._next = max((int(path.stem[5:]) for path in shards), default=-1) + 1
        for shard in shards:
            columns = read_columns(shard, ["trajectory_id", "index"])
            self.used.update(zip(columns["trajectory_id"], columns["index"], strict=True))
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    async def add(self, trajectories: list[Trajectory]) -> None:
        """Returns when they are on the disk; StorageError when they cannot be written."""
        if not trajectories:
            return
        written: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((trajectories, written))
        if self._writing is None:
            self._writing = asyncio.create_task(self._write())
        await written
        self.used.update((each.trajectory_id, each.task.index) for each in trajectories)

    async def _write(self) -> None:
        while self._waiting:
            batch, self._waiting = self._waiting, []
            trajectories = [trajectory for each, _ in batch for trajectory in each]
            path = self._folder / f"part-{self._next:05d}.parquet"
            error: BaseException | None = None
            try:
                await asyncio.to_thread(write_trajectories, path, trajectories, metadata=self._metadata)
                self._next += 1
                self.num_trajectories += len(trajectories)
            except Exception as raised:  # noqa: BLE001 - raised in `add`
                error = raised
            for _, written in batch:
                if not written.done():
                    written.set_result(None) if error is None else written.set_exception(error)
        self._writing = None
