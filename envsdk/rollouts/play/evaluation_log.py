"""The log of an evaluation: a data set that is written while it is played. No episode that ended is lost.

    DIR/manifest.json  part-00000.parquet ...  README.md   as of `envsdk collect`: `envsdk.base.store.shards`
        .episodes                                          until all shards are there

    with log_in(folder, config, plans, versions=..., command=...) as log:
        log.played                    # what earlier processes played, by position
        log.add(position, trajectory)

A shard holds many episodes. Each is therefore also appended to `.episodes` as soon as it ends, in Arrow's
streaming format: the schema, then one record batch per episode. A failed episode has no outcome: the next
process plays it again, and writes its shard anew.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa

from envsdk.base.store.appendfile import AppendFile
from envsdk.base.store.shard_plan import ShardPlan
from envsdk.base.store.shards import Manifest
from envsdk.base.store.trajectories import SCHEMA, from_record_batch, iter_trajectories, to_record_batch
from envsdk.contracts.trajectory import Trajectory
from envsdk.rollouts.datasets.finishing import collection_in
from envsdk.rollouts.datasets.reading import tag_records
from envsdk.rollouts.play.open_shards import OpenShards

EPISODES = ".episodes"


class EvaluationLog:
    """Writes the shards of one evaluation.

    log_in -> add* -> complete
    """

    def __init__(self, folder: Path, manifest: Manifest, plans: Sequence[ShardPlan]) -> None:
        self.manifest = manifest
        self.played: dict[int, Trajectory] = {}
        """What earlier processes played, by position, without tokens: nobody reads those of an evaluation."""
        self._folder = folder
        self._open = OpenShards(plans)
        self._shown = {tag: record.shown for tag, record in tag_records(manifest.config).items()}
        self._episodes = AppendFile(folder / EPISODES)
        there = [plan for plan in plans if plan.number in manifest.shards]
        for plan in there:
            if manifest.shards[plan.number].tally.num_failed:
                del manifest.shards[plan.number]
        manifest.save(folder)
        for plan in there:
            for position, trajectory in enumerate(iter_trajectories(folder / plan.file_name)):
                self._read(plan.first_position + position, trajectory)
        stamp = SCHEMA.with_metadata({"envsdk.collection": manifest.fingerprint})
        appended, end = appended_episodes(self._episodes.read(), stamp)
        self._episodes.truncate(end)
        if not end:
            self._episodes.append(stamp.serialize().to_pybytes())
        for trajectory in appended:
            # Ids are made of positions.
            self._read(int(trajectory.trajectory_id.rpartition("-")[2]), trajectory)

    def add(self, position: int, trajectory: Trajectory) -> None:
        """Write an episode that ended. Raises StorageError."""
        if trajectory.failure is None:
            self._episodes.append(to_record_batch([trajectory]).serialize().to_pybytes())
        self._put(position, trajectory)

    def close(self) -> None:
        """Remove `.episodes` where all shards are there."""
        self._episodes.close()
        if self.manifest.is_complete:
            (self._folder / EPISODES).unlink(missing_ok=True)

    def _read(self, position: int, trajectory: Trajectory) -> None:
        if trajectory.failure is None and position not in self.played:
            shown = self._shown[trajectory.task.tag]
            self.played[position] = replace(trajectory, tokens=None, shown=shown)
            self._put(position, trajectory)

    def _put(self, position: int, trajectory: Trajectory) -> None:
        plan = self._open.plan_of(position)
        if plan.number not in self.manifest.shards and (played := self._open.add(position, trajectory)):
            self.manifest.add_shard(self._folder, plan, played, None)


def appended_episodes(content: bytes, stamp: pa.Schema) -> tuple[list[Trajectory], int]:
    """The episodes in `content` and the end of the last one; 0 where it does not begin with the stamp.

    What follows the last complete episode, such as one that a killed process was writing, is left out.
    """
    reader, episodes, end = pa.BufferReader(content), list[Trajectory](), 0
    try:
        if content and pa.ipc.read_schema(reader).equals(stamp, check_metadata=True):
            end = reader.tell()
            while end < len(content):
                batch = pa.ipc.read_record_batch(pa.ipc.read_message(reader), SCHEMA)
                episodes += from_record_batch(batch)
                end = reader.tell()
    except (pa.ArrowException, EOFError, OSError):
        pass
    return episodes, end


@contextmanager
def log_in(
    folder: Path,
    config: Mapping[str, Any],
    plans: Sequence[ShardPlan],
    *,
    versions: Mapping[str, str],
    command: Sequence[str],
) -> Iterator[EvaluationLog]:
    """The log in `folder`, begun where there is none; nobody else writes it within the block.

    Raises ConfigurationError where the folder holds something else, StorageError where it cannot be written.
    """
    with collection_in(folder, config, plans, (), versions=versions, command=command, license=None) as (
        manifest,
        _,
    ):
        log = EvaluationLog(folder, manifest, plans)
        try:
            yield log
        finally:
            log.close()
