"""Trajectories on disk: one Parquet file, one row per trajectory, whole or not at all.

    write_trajectories(path, trajectories, metadata={"step": "7"})
    read_trajectories(path)      # the same trajectories
    read_metadata(path)          # {"step": b"7"}

Any Parquet reader (pandas, polars, DuckDB, Hugging Face datasets) opens the files. Turns are a list
of structs, and a turn's metrics a list of names and values; tokens are four parallel lists, null when
the policy has no tokens; `num_turns` and `total_reward` repeat what the turns say, so that a query need
not read them.

Text is stored as UTF-8. A lone surrogate, which UTF-8 cannot hold, is stored as U+FFFD.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import accumulate, chain
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from envsdk.failures import Boundary, Failure, StorageError, without_lone_surrogates
from envsdk.store.atomic import atomic_file, storage_error
from envsdk.trajectory import Outcome, Task, TokenArrays, Trajectory, Turn

SCHEMA_VERSION = 2
"""Raised when earlier versions of envsdk can no longer read the files. Version 1 had `metrics` as a map."""

_SCHEMA_VERSION_KEY = "envsdk.schema_version"
_NUM_TRAJECTORIES_KEY = "envsdk.num_trajectories"
_DAMAGE = (pa.ArrowException, OSError, ValueError, KeyError)
"""What a Parquet reader raises over bytes that are not what was written."""
_ROWS_PER_GROUP = 1024
"""Trajectories held as columns at once; bounds memory."""
_TEXT_PER_GROUP = 2**28
"""Characters of them; offsets of strings have 31 bits, and a character takes up to four bytes."""

_METRIC = pa.struct(
    [pa.field("name", pa.string(), nullable=False), pa.field("value", pa.float64(), nullable=False)]
)
_METRICS = pa.list_(pa.field("item", _METRIC, nullable=False))
"""Not a map, for which Hugging Face datasets has no type."""
_EARLIER_METRICS = pa.map_(pa.string(), pa.float64())


def _turn(metrics: pa.DataType) -> pa.DataType:
    return pa.struct(
        [
            pa.field("observation", pa.string(), nullable=False),
            pa.field("reply", pa.string(), nullable=False),
            pa.field("reward", pa.float64(), nullable=False),
            pa.field("response_start", pa.int32(), nullable=False),
            pa.field("response_end", pa.int32(), nullable=False),
            pa.field("finish_reason", pa.string(), nullable=False),
            pa.field("metrics", metrics, nullable=False),
        ]
    )


_TURN = _turn(_METRICS)
_TURNS = pa.list_(pa.field("item", _TURN, nullable=False))
_EARLIER_TURNS = pa.list_(pa.field("item", _turn(_EARLIER_METRICS), nullable=False))
_HASHES = pa.list_(pa.field("item", pa.string()))
_FAILURE = pa.struct(
    [
        pa.field("boundary", pa.string(), nullable=False),
        pa.field("kind", pa.string(), nullable=False),
        pa.field("message", pa.string(), nullable=False),
    ]
)


def _tokens(value_type: pa.DataType) -> pa.DataType:
    return pa.list_(pa.field("item", value_type, nullable=False))


SCHEMA = pa.schema(
    [
        pa.field("trajectory_id", pa.string(), nullable=False),
        pa.field("group_id", pa.int64(), nullable=False),
        pa.field("tag", pa.string(), nullable=False),
        pa.field("split", pa.string(), nullable=False),
        pa.field("index", pa.int64(), nullable=False),
        pa.field("seed", pa.int64(), nullable=False),
        pa.field("outcome", pa.string(), nullable=False),
        pa.field("success", pa.bool_(), nullable=False),
        pa.field("num_turns", pa.int32(), nullable=False),
        pa.field("total_reward", pa.float64(), nullable=False),
        pa.field("turns", _TURNS, nullable=False),
        pa.field("state_hashes", _HASHES),
        pa.field("final_observation", pa.string(), nullable=False),
        pa.field("failure", _FAILURE),
        pa.field("token_ids", _tokens(pa.int32())),
        pa.field("response_mask", _tokens(pa.int8())),
        pa.field("behavior_logprobs", _tokens(pa.float32())),
        pa.field("versions", _tokens(pa.int32())),
        pa.field("started_at", pa.float64(), nullable=False),
        pa.field("ended_at", pa.float64(), nullable=False),
        pa.field("generate_s", pa.float64(), nullable=False),
        pa.field("env_s", pa.float64(), nullable=False),
        pa.field("worker", pa.string(), nullable=False),
    ]
)
"""Columns of a trajectory file. Readers go by name: a column may be added without a new version."""
_LATER_COLUMNS = frozenset({"state_hashes"})
"""Columns that files of the present version may lack."""


DISCARDED_PREFIX = "discarded_"
"""Of the names of a run's files with episodes that were played and not used."""


def write_trajectories(
    path: Path, trajectories: Iterable[Trajectory], *, metadata: Mapping[str, bytes | str] | None = None
) -> int:
    """Write all of `trajectories` to `path` (replacing it) and return how many there were.

    When this returns the file is on the disk; when it raises, `path` is what it was before.
    Raises StorageError, naming the file, when the disk is full or the folder cannot be written.
    """
    if reserved := {_SCHEMA_VERSION_KEY, _NUM_TRAJECTORIES_KEY} & set(metadata or {}):
        raise ValueError(f"metadata key {min(reserved)!r} is the file format's own")
    num_written = 0
    with (
        atomic_file(path) as file,
        pq.ParquetWriter(file, SCHEMA, compression="zstd", write_page_checksum=True) as writer,
    ):
        for batch in _row_groups(trajectories):
            writer.write_batch(to_record_batch(batch))
            num_written += len(batch)
        own = {_SCHEMA_VERSION_KEY: str(SCHEMA_VERSION), _NUM_TRAJECTORIES_KEY: str(num_written)}
        writer.add_key_value_metadata({**own, **(metadata or {})})
    return num_written


def _row_groups(trajectories: Iterable[Trajectory]) -> Iterator[list[Trajectory]]:
    group: list[Trajectory] = []
    num_chars = 0
    for trajectory in trajectories:
        length = sum(len(turn.observation) + len(turn.reply) for turn in trajectory.turns)
        length += len(trajectory.final_observation)
        if group and (len(group) == _ROWS_PER_GROUP or num_chars + length > _TEXT_PER_GROUP):
            yield group
            group, num_chars = [], 0
        group.append(trajectory)
        num_chars += length
    if group:
        yield group


def read_trajectories(path: Path) -> list[Trajectory]:
    """Everything `write_trajectories` put into `path`, in order.

    Raises StorageError, naming the file, when it is missing, damaged, or not a trajectory file.
    """
    return list(iter_trajectories(path))


def iter_trajectories(path: Path) -> Iterator[Trajectory]:
    """Like `read_trajectories`, holding one row group at a time."""
    for batch in iter_record_batches(path):
        yield from from_record_batch(batch)


def iter_record_batches(path: Path) -> Iterator[pa.RecordBatch]:
    """Like `iter_trajectories`, as columns; each batch is a row group of at most 1024 trajectories."""
    with _open(path) as file:
        for group in range(file.num_row_groups):
            yield from _read_group(file, group, path).to_batches()


def read_rows(path: Path, rows: Sequence[int]) -> list[Trajectory]:
    """The trajectories at `rows`, counted from 0, in the order asked for; reads only their row groups.

    Raises IndexError for a row that is not there; other errors as in `read_trajectories`.
    """
    with _open(path) as file:
        starts = list(
            accumulate((file.metadata.row_group(n).num_rows for n in range(file.num_row_groups)), initial=0)
        )
        if any(not 0 <= row < starts[-1] for row in rows):
            raise IndexError(f"{path} has {starts[-1]} trajectories, no number {max(rows)}")
        found: dict[int, Trajectory] = {}
        for group in sorted({bisect_right(starts, row) - 1 for row in rows}):
            wanted = sorted({row for row in rows if starts[group] <= row < starts[group + 1]})
            table = _read_group(file, group, path).take([row - starts[group] for row in wanted])
            (batch,) = table.combine_chunks().to_batches()
            found.update(zip(wanted, from_record_batch(batch), strict=True))
        return [found[row] for row in rows]


def _read_group(file: pq.ParquetFile, group: int, path: Path) -> pa.Table:
    try:
        return file.read_row_group(group).combine_chunks()
    except _DAMAGE as error:
        raise _damaged(path, error) from error


def read_columns(path: Path, names: Sequence[str]) -> dict[str, list[Any]]:
    """Some columns as Python values, without reading the others; errors as in `read_trajectories`."""
    with _open(path) as file:
        try:
            table = file.read(columns=list(names))
        except _DAMAGE as error:
            raise _damaged(path, error) from error
        return {name: table.column(name).to_pylist() for name in names}


def read_metadata(path: Path) -> dict[str, bytes]:
    """The `metadata` given to `write_trajectories`; errors as in `read_trajectories`."""
    with _open(path) as file:
        pairs: dict[bytes, bytes] = file.metadata.metadata or {}
    own = (_SCHEMA_VERSION_KEY, _NUM_TRAJECTORIES_KEY, "ARROW:schema")
    return {name: value for key, value in pairs.items() if (name := key.decode()) not in own}


def _open(path: Path) -> pq.ParquetFile:
    try:
        file = pq.ParquetFile(path, page_checksum_verification=True)
        own = file.metadata.metadata or {}
        version, num_rows = own.get(_SCHEMA_VERSION_KEY.encode()), own.get(_NUM_TRAJECTORIES_KEY.encode())
        if version is None:
            raise StorageError(f"{path} is a Parquet file, but not one that envsdk wrote trajectories to.")
        if int(version) > SCHEMA_VERSION:
            raise StorageError(
                f"{path} has trajectory schema {int(version)}; this envsdk reads up to {SCHEMA_VERSION}. "
                "Upgrade envsdk to read it."
            )
        # Pages carry checksums, the footer does not: a damaged one shows in names, types and counts.
        if num_rows != str(file.metadata.num_rows).encode():
            raise ValueError("its footer does not know how many trajectories it holds")
        schema = file.schema_arrow
        for field in SCHEMA:
            if field.name in _LATER_COLUMNS and field.name not in schema.names:
                continue
            earlier = _EARLIER_TURNS if field.name == "turns" and int(version) == 1 else field.type
            if schema.field(field.name).type not in (field.type, earlier):
                raise ValueError(f"column {field.name!r} has another type")
    except FileNotFoundError:
        raise StorageError(f"There is no trajectory file {path}.") from None
    except _DAMAGE as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise storage_error("read", path, error) from error
        raise _damaged(path, error) from error
    return file


def _damaged(path: Path, error: Exception) -> StorageError:
    reason = " ".join(str(error).split())[:200]
    return StorageError(
        f"{path} is damaged or not a Parquet file ({reason}). Delete it, and run what wrote it again."
    )


def to_record_batch(trajectories: Sequence[Trajectory]) -> pa.RecordBatch:
    """The rows of `SCHEMA`, built column by column."""
    turns = [turn for trajectory in trajectories for turn in trajectory.turns]
    logs = [trajectory.tokens for trajectory in trajectories]
    columns = [
        _text([t.trajectory_id for t in trajectories]),
        pa.array([t.group_id for t in trajectories], pa.int64()),
        _text([t.task.tag for t in trajectories]),
        _text([t.task.split for t in trajectories]),
        pa.array([t.task.index for t in trajectories], pa.int64()),
        pa.array([t.seed for t in trajectories], pa.int64()),
        _text([t.outcome.value for t in trajectories]),
        pa.array([bool(t.success) for t in trajectories], pa.bool_()),
        pa.array([len(t.turns) for t in trajectories], pa.int32()),
        pa.array([t.total_reward for t in trajectories], pa.float64()),
        pa.ListArray.from_arrays(
            _offsets(len(t.turns) for t in trajectories), _turn_column(turns), type=_TURNS
        ),
        _hash_column([t.turns for t in trajectories]),
        _text([t.final_observation for t in trajectories]),
        _failure_column([t.failure for t in trajectories]),
        _token_column([None if log is None else log.ids for log in logs], np.int32),
        _token_column([None if log is None else log.response_mask for log in logs], np.int8),
        _token_column([None if log is None else log.behavior_logprobs for log in logs], np.float32),
        _token_column([None if log is None else log.versions for log in logs], np.int32),
        pa.array([t.started_at for t in trajectories], pa.float64()),
        pa.array([t.ended_at for t in trajectories], pa.float64()),
        pa.array([t.generate_s for t in trajectories], pa.float64()),
        pa.array([t.env_s for t in trajectories], pa.float64()),
        _text([t.worker for t in trajectories]),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=SCHEMA)


def from_record_batch(batch: pa.RecordBatch) -> list[Trajectory]:
    """The inverse of `to_record_batch`; columns are found by name."""

    def column(name: str) -> list[Any]:
        values: list[Any] = batch.column(name).to_pylist()
        return values

    all_turns = _turns_from_batch(batch)
    turn_ends = list(accumulate(batch.column("turns").value_lengths().to_pylist()))
    tasks = map(_make_task, column("tag"), column("split"), column("index"))
    tokens = _tokens_from_batch(batch)
    rows = zip(
        column("trajectory_id"),
        column("group_id"),
        tasks,
        column("seed"),
        column("outcome"),
        column("success"),
        chain((0,), turn_ends),
        turn_ends,
        tokens,
        column("failure"),
        column("final_observation"),
        column("started_at"),
        column("ended_at"),
        column("generate_s"),
        column("env_s"),
        column("worker"),
        strict=False,
    )
    return [
        Trajectory(
            trajectory_id=trajectory_id,
            group_id=group_id,
            task=task,
            seed=seed,
            outcome=Outcome(outcome),
            success=success,
            turns=tuple(all_turns[first:last]),
            tokens=log,
            failure=None if failure is None else _failure_from_row(failure),
            final_observation=final_observation,
            started_at=started_at,
            ended_at=ended_at,
            generate_s=generate_s,
            env_s=env_s,
            worker=worker,
        )
        for (
            trajectory_id,
            group_id,
            task,
            seed,
            outcome,
            success,
            first,
            last,
            log,
            failure,
            final_observation,
            started_at,
            ended_at,
            generate_s,
            env_s,
            worker,
        ) in rows
    ]


def _text(values: Sequence[str | None]) -> pa.Array:
    try:
        return pa.array(values, pa.string())
    except UnicodeEncodeError:
        return pa.array([value and without_lone_surrogates(value) for value in values], pa.string())


def _offsets(lengths: Iterable[int]) -> pa.Array:
    return pa.array(list(accumulate(lengths, initial=0)), pa.int32())


def _turn_column(turns: list[Turn]) -> pa.Array:
    metrics = pa.ListArray.from_arrays(
        _offsets(len(turn.metrics) for turn in turns),
        pa.StructArray.from_arrays(
            [
                _text([name for turn in turns for name in turn.metrics]),
                pa.array([float(value) for turn in turns for value in turn.metrics.values()], pa.float64()),
            ],
            fields=list(_METRIC),
        ),
        type=_METRICS,
    )
    return pa.StructArray.from_arrays(
        [
            _text([turn.observation for turn in turns]),
            _text([turn.reply for turn in turns]),
            pa.array([float(turn.reward) for turn in turns], pa.float64()),
            pa.array([turn.response_start for turn in turns], pa.int32()),
            pa.array([turn.response_end for turn in turns], pa.int32()),
            _text([turn.finish_reason for turn in turns]),
            metrics,
        ],
        fields=list(_TURN),
    )


def _hash_column(turns: Sequence[Sequence[Turn]]) -> pa.Array:
    """One list per trajectory, parallel to its turns; null when none of them has a hash."""
    has_hashes = [any(turn.state_hash is not None for turn in each) for each in turns]
    kept = [each if found else () for each, found in zip(turns, has_hashes, strict=True)]
    return pa.ListArray.from_arrays(
        _offsets(map(len, kept)),
        _text([turn.state_hash for each in kept for turn in each]),
        type=_HASHES,
        mask=pa.array([not found for found in has_hashes], pa.bool_()),
    )


def _failure_column(failures: list[Failure | None]) -> pa.Array:
    rows = [failure or Failure(boundary=Boundary.SCHEDULER, kind="", message="") for failure in failures]
    return pa.StructArray.from_arrays(
        [
            _text([row.boundary.value for row in rows]),
            _text([row.kind for row in rows]),
            _text([row.message for row in rows]),
        ],
        fields=list(_FAILURE),
        mask=pa.array([failure is None for failure in failures], pa.bool_()),
    )


def _token_column(logs: Sequence[NDArray[Any] | None], dtype: type[np.generic]) -> pa.Array:
    values = [np.asarray(log, dtype) for log in logs if log is not None]
    flat = pa.array(np.concatenate(values) if values else np.empty(0, dtype))
    return pa.ListArray.from_arrays(
        _offsets(0 if log is None else len(log) for log in logs),
        flat,
        type=_tokens(flat.type),
        mask=pa.array([log is None for log in logs], pa.bool_()),
    )


def _make_task(tag: str, split: str, index: int) -> Task:
    return Task(tag=tag, split=split, index=index)


def _failure_from_row(row: dict[str, str]) -> Failure:
    return Failure(boundary=Boundary(row["boundary"]), kind=row["kind"], message=row["message"])


def _turns_from_batch(batch: pa.RecordBatch) -> list[Turn]:
    turns = _turns_from_column(batch.column("turns").flatten())
    if "state_hashes" not in batch.schema.names:
        return turns
    lengths = batch.column("turns").value_lengths().to_pylist()
    recorded = zip(batch.column("state_hashes").to_pylist(), lengths, strict=True)
    hashes = [each for found, length in recorded for each in found or [None] * length]
    if not any(each is not None for each in hashes):
        return turns
    return [replace(turn, state_hash=each) for turn, each in zip(turns, hashes, strict=True)]


def _turns_from_column(column: pa.StructArray) -> list[Turn]:
    fields = dict(zip((field.name for field in column.type), column.flatten(), strict=True))
    metrics = fields["metrics"]
    if isinstance(metrics, pa.MapArray):
        names, numbers = metrics.keys.to_pylist(), metrics.items.to_pylist()
    else:
        names, numbers = (part.to_pylist() for part in metrics.values.flatten())
    ends = metrics.offsets.to_pylist()
    return [
        Turn(
            observation=observation,
            reply=reply,
            reward=reward,
            response_start=response_start,
            response_end=response_end,
            finish_reason=finish_reason,
            metrics=dict(zip(names[first:last], numbers[first:last], strict=True)),
        )
        for observation, reply, reward, response_start, response_end, finish_reason, first, last in zip(
            fields["observation"].to_pylist(),
            fields["reply"].to_pylist(),
            fields["reward"].to_pylist(),
            fields["response_start"].to_pylist(),
            fields["response_end"].to_pylist(),
            fields["finish_reason"].to_pylist(),
            ends[:-1],
            ends[1:],
            strict=True,
        )
    ]


def _tokens_from_batch(batch: pa.RecordBatch) -> list[TokenArrays | None]:
    columns = [
        _arrays_from_column(batch.column(name))
        for name in ("token_ids", "response_mask", "behavior_logprobs", "versions")
    ]
    return [
        None
        if ids is None
        else TokenArrays(ids=ids, response_mask=mask, behavior_logprobs=logprobs, versions=versions)
        for ids, mask, logprobs, versions in zip(*columns, strict=True)
    ]


def _arrays_from_column(column: pa.ListArray) -> list[Any]:
    flat = column.flatten().to_numpy()
    arrays: list[NDArray[Any] | None] = []
    start = 0
    for length in column.value_lengths().to_pylist():
        if length is None:
            arrays.append(None)
            continue
        # Arrow's memory is read-only, and torch warns about arrays that are.
        arrays.append(flat[start : start + length].copy())
        start += length
    return arrays
