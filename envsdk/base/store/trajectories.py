"""Trajectories on disk: one Parquet file, one row per trajectory, written atomically.

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

import json
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import accumulate, pairwise
from operator import attrgetter, itemgetter
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from envsdk.base.store.arrow_arrays import array_of_npy, arrays_from_column, npy_of
from envsdk.base.store.atomic import atomic_file, storage_error
from envsdk.contracts.failures import Boundary, Failure, StorageError, without_lone_surrogates
from envsdk.contracts.players import Seat
from envsdk.contracts.support import Support
from envsdk.contracts.trajectory import FinishReason, Outcome, Task, TokenArrays, Trajectory, Turn

SCHEMA_VERSION = 2
"""Raised when earlier versions of envsdk can no longer read the files."""

_SCHEMA_VERSION_KEY = "envsdk.schema_version"
_NUM_TRAJECTORIES_KEY = "envsdk.num_trajectories"
_DAMAGE = (pa.ArrowException, OSError, ValueError, KeyError)
"""What a Parquet reader raises over bytes that are not what was written."""
_ROWS_PER_GROUP = 1024
"""Trajectories held as columns at once; bounds memory."""
_TEXT_PER_GROUP = 2**28
"""Characters of them; offsets of strings have 31 bits, and a character takes up to four bytes."""

Rows = Sequence[Any]
"""Trajectories, or turns, or failures."""


class Column(NamedTuple):
    """One column of a file, or one field of a struct in it: its name, its type and its source."""

    name: str
    type: pa.DataType
    array: Callable[[Rows], pa.Array]
    """The column of some rows."""
    is_nullable: bool = False

    @property
    def field(self) -> pa.Field:
        return pa.field(self.name, self.type, nullable=self.is_nullable)


_TO_PYTHON: dict[pa.DataType, Callable[[Any], Any]] = {pa.bool_(): bool, pa.float64(): float}
"""Environments may report numbers of NumPy's types, which Arrow does not take for Python's."""


def _each(name: str, value_type: pa.DataType, get: Callable[[Any], Any] | None = None) -> Column:
    """A column with one plain value per row; without `get` it is the attribute of that name."""
    get = get or attrgetter(name)

    def array(rows: Rows) -> pa.Array:
        return _text(map(get, rows)) if value_type == pa.string() else _numbers(map(get, rows), value_type)

    return Column(name, value_type, array)


def _numbers(values: Iterable[Any], value_type: pa.DataType) -> pa.Array:
    to_python = _TO_PYTHON.get(value_type, lambda value: value)
    return pa.array([None if value is None else to_python(value) for value in values], value_type)


def _text(values: Iterable[str | None]) -> pa.Array:
    values = list(values)
    try:
        return pa.array(values, pa.string())
    except UnicodeEncodeError:
        return pa.array([value and without_lone_surrogates(value) for value in values], pa.string())


def _struct(columns: Sequence[Column]) -> pa.DataType:
    return pa.struct([column.field for column in columns])


def _struct_array(columns: Sequence[Column], rows: Rows, mask: pa.Array | None = None) -> pa.Array:
    arrays = [column.array(rows) for column in columns]
    return pa.StructArray.from_arrays(arrays, fields=[column.field for column in columns], mask=mask)


def _list(value_type: pa.DataType, *, is_nullable: bool = False) -> pa.DataType:
    return pa.list_(pa.field("item", value_type, nullable=is_nullable))


def _offsets(lengths: Iterable[int]) -> pa.Array:
    return pa.array(list(accumulate(lengths, initial=0)), pa.int32())


_METRIC = (_each("name", pa.string(), itemgetter(0)), _each("value", pa.float64(), itemgetter(1)))
_METRICS = _list(_struct(_METRIC))
"""Not a map, for which Hugging Face datasets has no type."""


def _metric_lists(turns: Rows) -> pa.Array:
    pairs = [pair for turn in turns for pair in turn.metrics.items()]
    offsets = _offsets(len(turn.metrics) for turn in turns)
    return pa.ListArray.from_arrays(offsets, _struct_array(_METRIC, pairs), type=_METRICS)


_TURN = (
    _each("observation", pa.string()),
    _each("reply", pa.string()),
    _each("reward", pa.float64()),
    _each("response_start", pa.int32()),
    _each("response_end", pa.int32()),
    _each("finish_reason", pa.string()),
    Column("metrics", _METRICS, _metric_lists),
)
_TURNS = _list(_struct(_TURN))


def _turn_lists(trajectories: Rows) -> pa.Array:
    turns = [turn for trajectory in trajectories for turn in trajectory.turns]
    offsets = _offsets(len(trajectory.turns) for trajectory in trajectories)
    return pa.ListArray.from_arrays(offsets, _struct_array(_TURN, turns), type=_TURNS)


_OF_TURNS: dict[str, tuple[str, pa.DataType, Any]] = {
    "state_hashes": ("state_hash", pa.string(), None),
    "details": ("details", pa.string(), None),
    "follows": ("follows", pa.int32(), None),
    "roles": ("role", pa.string(), ""),
}
"""Columns with a value for each turn: the attribute that each one holds, its type and its default."""
_LATER = ("follows", "roles", "seats", "experts", "support_counts", "support_ids", "task_name", "tools")
"""Columns that files of earlier versions do not have."""


def _column_of_turns(name: str) -> Column:
    """One list per trajectory, parallel to its turns; null when all of them have the attribute's default."""
    attribute, value_type, default = _OF_TURNS[name]
    list_type = _list(value_type, is_nullable=True)

    def array(trajectories: Rows) -> pa.Array:
        lists = [[getattr(turn, attribute) for turn in trajectory.turns] for trajectory in trajectories]
        is_null = [all(value == default for value in values) for values in lists]
        kept = [[] if null else values for values, null in zip(lists, is_null, strict=True)]
        values = (value for values in kept for value in values)
        flat = _text(values) if value_type == pa.string() else pa.array(list(values), value_type)
        mask = pa.array(is_null, pa.bool_())
        return pa.ListArray.from_arrays(_offsets(map(len, kept)), flat, type=list_type, mask=mask)

    return Column(name, list_type, array, is_nullable=True)


_FAILURE = (
    _each("boundary", pa.string(), attrgetter("boundary.value")),
    _each("kind", pa.string()),
    _each("message", pa.string()),
)


def _failures(trajectories: Rows) -> pa.Array:
    failures = [trajectory.failure for trajectory in trajectories]
    none = Failure(boundary=Boundary.SCHEDULER, kind="", message="")
    mask = pa.array([failure is None for failure in failures], pa.bool_())
    return _struct_array(_FAILURE, [failure or none for failure in failures], mask)


_SEAT = (
    _each("role", pa.string(), itemgetter(0)),
    _each("player", pa.string(), lambda pair: pair[1].player),
    _each("score", pa.float64(), lambda pair: pair[1].score),
)
_SEATS = _list(_struct(_SEAT))


def _seat_lists(trajectories: Rows) -> pa.Array:
    pairs = [pair for trajectory in trajectories for pair in trajectory.seats.items()]
    offsets = _offsets(len(trajectory.seats) for trajectory in trajectories)
    mask = pa.array([not trajectory.seats for trajectory in trajectories], pa.bool_())
    return pa.ListArray.from_arrays(offsets, _struct_array(_SEAT, pairs), type=_SEATS, mask=mask)


def _seats_from_batch(batch: pa.RecordBatch) -> list[dict[str, Seat]]:
    return [
        {each["role"]: Seat(player=each["player"], score=each["score"]) for each in row or ()}
        for row in _values(batch, "seats")
    ]


def _values(batch: pa.RecordBatch, name: str) -> list[Any]:
    """A column of `_LATER` as Python values; None where the file does not have it."""
    return batch.column(name).to_pylist() if name in batch.schema.names else [None] * batch.num_rows


_TOKENS = {
    "token_ids": ("ids", np.int32),
    "response_mask": ("response_mask", np.int8),
    "behavior_logprobs": ("behavior_logprobs", np.float32),
    "versions": ("versions", np.int32),
}
"""Columns of the token log: the field of TokenArrays and its type. All are null without a log."""
_SUPPORT = {"support_counts": "counts", "support_ids": "ids"}
"""Columns of its `Support`: null where it has none."""


def _token_column(name: str) -> Column:
    attribute, dtype = _TOKENS[name]
    return _array_column(name, dtype, lambda log: getattr(log, attribute))


def _support_column(name: str) -> Column:
    attribute = _SUPPORT[name]
    return _array_column(
        name, np.int32, lambda log: None if log.support is None else getattr(log.support, attribute)
    )


def _array_column(name: str, dtype: Any, of: Callable[[TokenArrays], Any | None]) -> Column:
    """One array per trajectory, null without a log or where `of` gives none."""
    list_type = _list(pa.from_numpy_dtype(dtype))

    def array(trajectories: Rows) -> pa.Array:
        arrays = [None if (log := trajectory.tokens) is None else of(log) for trajectory in trajectories]
        values = [np.asarray(values, dtype) for values in arrays if values is not None]
        flat = pa.array(np.concatenate(values) if values else np.empty(0, dtype))
        offsets = _offsets(0 if values is None else len(values) for values in arrays)
        mask = pa.array([values is None for values in arrays], pa.bool_())
        return pa.ListArray.from_arrays(offsets, flat, type=list_type, mask=mask)

    return Column(name, list_type, array, is_nullable=True)


def _experts(trajectories: Rows) -> pa.Array:
    logs = (trajectory.tokens for trajectory in trajectories)
    return pa.array([None if log is None else npy_of(log.experts) for log in logs], pa.binary())


_PLAIN = (
    *("trajectory_id", "group_id", "seed", "success", "final_observation"),
    *("started_at", "ended_at", "generate_s", "env_s", "worker"),
)
"""Columns that are read into the attribute of the same name."""

COLUMNS = (
    _each("trajectory_id", pa.string()),
    _each("group_id", pa.int64()),
    _each("tag", pa.string(), attrgetter("task.tag")),
    _each("split", pa.string(), attrgetter("task.split")),
    _each("index", pa.int64(), attrgetter("task.index")),
    _each("seed", pa.int64()),
    _each("outcome", pa.string(), attrgetter("outcome.value")),
    _each("success", pa.bool_(), lambda trajectory: trajectory.score[0])._replace(is_nullable=True),
    _each("num_turns", pa.int32(), lambda trajectory: len(trajectory.turns)),
    _each("total_reward", pa.float64(), lambda trajectory: trajectory.score[1])._replace(is_nullable=True),
    Column("turns", _TURNS, _turn_lists),
    *map(_column_of_turns, ("state_hashes", "details")),
    _each("final_observation", pa.string()),
    Column("failure", _struct(_FAILURE), _failures, is_nullable=True),
    *map(_token_column, _TOKENS),
    _each("started_at", pa.float64()),
    _each("ended_at", pa.float64()),
    _each("generate_s", pa.float64()),
    _each("env_s", pa.float64()),
    _each("worker", pa.string()),
    *map(_column_of_turns, ("follows", "roles")),
    Column("seats", _SEATS, _seat_lists, is_nullable=True),
    Column("experts", pa.binary(), _experts, is_nullable=True),
    *map(_support_column, _SUPPORT),
    _each("task_name", pa.string()),
    _each("tools", pa.string(), lambda each: json.dumps(each.tools) if each.tools else ""),
)
"""Columns of a trajectory file. Readers go by name: a column may be added without a new version."""
SCHEMA = pa.schema([column.field for column in COLUMNS])

DISCARDED_PREFIX = "discarded_"
"""Prefix of the names of a run's files with episodes that were played and not used."""


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
            if field.name in _LATER and field.name not in schema.names:
                continue
            if schema.field(field.name).type != field.type:
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
    """The trajectories as columns."""
    return pa.RecordBatch.from_arrays([column.array(trajectories) for column in COLUMNS], schema=SCHEMA)


def from_record_batch(batch: pa.RecordBatch) -> list[Trajectory]:
    """The inverse of `to_record_batch`; columns are found by name."""
    columns = {name: batch.column(name).to_pylist() for name in (*_PLAIN, "tag", "split", "index", "outcome")}
    columns["success"] = list(map(bool, columns["success"]))
    names, tools = _values(batch, "task_name"), _values(batch, "tools")
    failures = batch.column("failure").to_pylist()
    turns, tokens, seats = _turns_from_batch(batch), _tokens_from_batch(batch), _seats_from_batch(batch)
    ends = accumulate(batch.column("turns").value_lengths().to_pylist(), initial=0)
    return [
        Trajectory(
            **{name: columns[name][row] for name in _PLAIN},
            task=Task(tag=columns["tag"][row], split=columns["split"][row], index=columns["index"][row]),
            outcome=Outcome(columns["outcome"][row]),
            turns=tuple(turns[first:last]),
            tokens=tokens[row],
            seats=seats[row],
            task_name=names[row] or "",
            tools=json.loads(tools[row] or "[]"),
            failure=None
            if failure is None
            else Failure(**failure | {"boundary": Boundary(failure["boundary"])}),
        )
        for row, ((first, last), failure) in enumerate(zip(pairwise(ends), failures, strict=True))
    ]


def _turns_from_batch(batch: pa.RecordBatch) -> list[Turn]:
    """The turns of all trajectories of the batch, in their order."""
    turns = batch.column("turns")
    lengths, flat = turns.value_lengths().to_pylist(), turns.flatten()
    fields = {field.name: column for field, column in zip(flat.type, flat.flatten(), strict=True)}
    metrics = fields.pop("metrics")
    pairs = list(zip(*(part.to_pylist() for part in metrics.values.flatten()), strict=True))
    columns = {name: column.to_pylist() for name, column in fields.items()}
    for name, (attribute, _, default) in _OF_TURNS.items():
        if name in batch.schema.names:
            lists = zip(batch.column(name).to_pylist(), lengths, strict=True)
            columns[attribute] = [value for found, length in lists for value in found or [default] * length]
    columns["finish_reason"] = [FinishReason(reason) for reason in columns["finish_reason"]]
    rows = zip(zip(*columns.values(), strict=True), pairwise(metrics.offsets.to_pylist()), strict=True)
    return [
        Turn(**dict(zip(columns, values, strict=True)), metrics=dict(pairs[first:last]))
        for values, (first, last) in rows
    ]


def _tokens_from_batch(batch: pa.RecordBatch) -> list[TokenArrays | None]:
    columns = {attribute: arrays_from_column(batch.column(name)) for name, (attribute, _) in _TOKENS.items()}
    columns["experts"] = [array_of_npy(npy) for npy in _values(batch, "experts")]
    columns["support"] = [None] * batch.num_rows
    if "support_ids" in batch.schema.names:
        pairs = zip(*(arrays_from_column(batch.column(name)) for name in _SUPPORT), strict=True)
        columns["support"] = [
            None if ids is None else Support(counts=counts, ids=ids) for counts, ids in pairs
        ]
    return [
        None if arrays[0] is None else TokenArrays(**dict(zip(columns, arrays, strict=True)))
        for arrays in zip(*columns.values(), strict=True)
    ]
