"""Other formats of a data set, each in a folder of its name.

    shards complete -> written into .NAME.partial/ -> renamed to NAME/ -> noted in the manifest

A format is a subclass of `ExportFormat`, or of `RowFormat` when it is rows made from one episode each, found
by its name under the entry-point group `envsdk.export_formats`, or as `package.module:Class`:

    class Predictions(RowFormat):
        name = "predictions"
        file_name = "predictions.jsonl"

        def rows(self, trajectory, tag, dataset):
            yield {"instance_id": ..., "model_patch": ...}

After a kill a format is complete or absent; the same command writes it again.
"""

from __future__ import annotations

import hashlib
import json
import os
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa
import pyarrow.parquet as pq

from envsdk.base.plugins import load_plugin
from envsdk.base.store.atomic import replaced_folder
from envsdk.base.store.shards import Manifest
from envsdk.base.store.trajectories import iter_trajectories
from envsdk.contracts.failures import ConfigurationError, StorageError
from envsdk.contracts.segments import given_and_masked_replies
from envsdk.contracts.trajectory import Outcome, Trajectory
from envsdk.rollouts.datasets.reading import DataSet, TagRecord

ENTRY_POINT_GROUP = "envsdk.export_formats"
_ROWS_PER_GROUP = 1024
MESSAGES = pa.list_(pa.struct([("role", pa.string()), ("content", pa.string())]))
EPISODE_COLUMNS = (
    *((name, pa.string()) for name in ("tools", "tag", "split")),
    *(("index", pa.int64()), ("seed", pa.int64()), ("success", pa.bool_()), ("reward", pa.float64())),
)


class ExportFormat(ABC):
    """A format of a data set. Built without arguments; keeps no state between exports."""

    name: ClassVar[str]
    """Name of the format, and of its folder."""

    def check(self, tags: Mapping[str, TagRecord]) -> None:  # noqa: B027 - optional
        """Called before anything is played. ConfigurationError says why these tags have no such format."""

    @abstractmethod
    def export(self, dataset: DataSet, folder: Path) -> int:
        """Write into the empty `folder`; returns how many episodes are in it. May raise OSError."""

    def data_files(self) -> str | None:
        """A pattern below the folder for Hugging Face datasets; None when it cannot read the format."""
        return None


class RowFormat(ExportFormat):
    """Rows, each made from one episode; one file per trajectory file, or one in all."""

    file_name: ClassVar[str | None] = None
    """Name of the only file; None writes `part-00000.jsonl`, `part-00001.jsonl` ...."""
    schema: ClassVar[pa.Schema | None] = None
    """Writes Parquet with these columns; None writes JSON lines."""

    @abstractmethod
    def rows(self, trajectory: Trajectory, tag: TagRecord, dataset: DataSet) -> Iterable[Mapping[str, Any]]:
        """The rows of one episode, usually one or none. JSON-like values."""

    def export(self, dataset: DataSet, folder: Path) -> int:
        num_episodes = 0

        def rows_of(shards: Sequence[Path]) -> Iterator[Mapping[str, Any]]:
            nonlocal num_episodes
            for shard in shards:
                for trajectory in iter_trajectories(shard):
                    rows = list(self.rows(trajectory, dataset.tags[trajectory.task.tag], dataset))
                    num_episodes += bool(rows)
                    yield from rows

        if self.file_name is not None:
            self._write(folder / self.file_name, rows_of(dataset.shards))
            return num_episodes
        for shard in dataset.shards:
            self._write(folder / f"{shard.stem}.{self._suffix}", rows_of([shard]))
        return num_episodes

    def data_files(self) -> str | None:
        return self.file_name or f"*.{self._suffix}"

    @property
    def _suffix(self) -> str:
        return "jsonl" if self.schema is None else "parquet"

    def _write(self, path: Path, rows: Iterator[Mapping[str, Any]]) -> None:
        """A file without rows is not written: readers guess columns from the rows."""
        first = next(rows, None)
        if first is None:
            return
        with path.open("wb") as file:
            if self.schema is None:
                file.write(_json_line(first))
                file.writelines(map(_json_line, rows))
            else:
                _write_parquet(file, self.schema, first, rows)
            file.flush()
            os.fsync(file.fileno())


def _json_line(row: Mapping[str, Any]) -> bytes:
    return (json.dumps(row, ensure_ascii=False) + "\n").encode("utf-8", "replace")


def _write_parquet(
    file: Any, schema: pa.Schema, first: Mapping[str, Any], rows: Iterator[Mapping[str, Any]]
) -> None:
    with pq.ParquetWriter(file, schema, compression="zstd") as writer:
        batch = [dict(first)]
        for row in rows:
            if len(batch) == _ROWS_PER_GROUP:
                writer.write_batch(pa.RecordBatch.from_pylist(batch, schema=schema))
                batch = []
            batch.append(dict(row))
        writer.write_batch(pa.RecordBatch.from_pylist(batch, schema=schema))


def episode_columns(trajectory: Trajectory) -> dict[str, Any]:
    """`EPISODE_COLUMNS`, which each of an episode's conversations repeats; `tools` is JSON text."""
    task = trajectory.task
    return {
        "tools": json.dumps(list(trajectory.tools), ensure_ascii=False) if trajectory.tools else None,
        **{"tag": task.tag, "split": task.split, "index": task.index, "seed": trajectory.seed},
        **{"success": trajectory.success, "reward": trajectory.total_reward},
    }


class Messages(RowFormat):
    """`{"messages": [...]}` in JSON lines, as TRL's trainers and chat templates read it.

    A row is a segment of an episode. Beside the messages: its `tools` as JSON text, tag, split, index, seed,
    success and reward of the episode, how many of the first replies are not learned in this row, and which of
    the others are not either (random moves). Episodes that failed or have no turn are left out.
    """

    name = "messages"

    def rows(self, trajectory: Trajectory, tag: TagRecord, dataset: DataSet) -> Iterable[Mapping[str, Any]]:
        if trajectory.outcome is Outcome.FAILED or not trajectory.turns:
            return
        for segment in trajectory.segments():
            messages = tag.line(trajectory.turns, segment.numbers).messages
            num_given, masked = given_and_masked_replies(messages, segment)
            own = {"num_given_replies": num_given, "masked_replies": masked}
            yield {"messages": messages, **episode_columns(trajectory), **own}


class MessagesParquet(Messages):
    """The rows of `messages` as Parquet."""

    name = "messages-parquet"
    schema = pa.schema(
        [
            ("messages", MESSAGES),
            *EPISODE_COLUMNS,
            ("num_given_replies", pa.int64()),
            ("masked_replies", pa.list_(pa.int64())),
        ]
    )


def make_formats(names: Iterable[str]) -> list[ExportFormat]:
    """Formats by name; ConfigurationError names the nearest known one."""
    formats: list[ExportFormat] = []
    for name in dict.fromkeys(names):
        format_class = load_plugin(ENTRY_POINT_GROUP, name)
        if not (isinstance(format_class, type) and issubclass(format_class, ExportFormat)):
            raise ConfigurationError(
                f"--format {name}: {format_class!r} is no subclass of {__name__}.ExportFormat"
            )
        formats.append(format_class())
    return formats


def export(dataset: DataSet, wanted: ExportFormat, manifest: Manifest) -> None:
    """Write one format into the folder of the trajectory files unless it is there, and note it in `manifest`.

    Raises StorageError, and ConfigurationError when no episode can be written in this format.
    """
    folder = dataset.folder / wanted.name
    content = _content_of(manifest)
    noted = manifest.exports.get(wanted.name)
    if noted is not None and noted["of"] == content and folder.is_dir():
        return
    if folder.exists() and noted is None:
        raise StorageError(f"{folder} is there, and no export of this data set: move it away")
    with replaced_folder(folder) as partial:
        num_episodes = wanted.export(dataset, partial)
        if num_episodes == 0:
            raise ConfigurationError(
                f"--format {wanted.name}: none of the {manifest.tally.num_episodes} episodes in "
                f"{dataset.folder} can be written in this format"
            )
        # Noted first: a folder that nobody knows of would be taken for the user's own.
        manifest.exports[wanted.name] = {
            "of": content,
            "episodes": num_episodes,
            "files": wanted.data_files(),
        }
        manifest.save(dataset.folder)


def _content_of(manifest: Manifest) -> str:
    """Changes when the trajectory files do."""
    digest = hashlib.sha256()
    for number in sorted(manifest.shards):
        digest.update(manifest.shards[number].sha256.encode())
    return digest.hexdigest()[:32]
