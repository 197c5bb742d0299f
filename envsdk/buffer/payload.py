"""Trajectories of a group as bytes: a digest, and an Arrow stream with the columns of a trajectory file."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from itertools import accumulate, pairwise

import pyarrow as pa

from envsdk.base.store.trajectories import from_record_batch, to_record_batch
from envsdk.buffer.contract import FinishedGroup
from envsdk.contracts import run_limits
from envsdk.contracts.failures import StorageError
from envsdk.contracts.trajectory import Trajectory

_DIGEST_BYTES = 16
_OPTIONS = pa.ipc.IpcWriteOptions(compression="zstd")


def pack(group_id: int, trajectories: Sequence[Trajectory]) -> FinishedGroup:
    """A complete group in the form in which the buffer holds it."""
    return pack_all([(group_id, trajectories)])[0]


def pack_all(groups: Sequence[tuple[int, Sequence[Trajectory]]]) -> list[FinishedGroup]:
    """Groups by id, as `pack`: several cost little more than one."""
    rows = to_record_batch([each for _, trajectories in groups for each in trajectories])
    found, first = [], 0
    for group_id, trajectories in groups:
        data = _to_bytes(rows.slice(first, len(trajectories)))
        found.append(_finished(group_id, trajectories, data))
        first += len(trajectories)
    return found


def from_bytes(data: bytes) -> list[Trajectory]:
    """The trajectories of one group. StorageError for bytes that are not what was written."""
    return from_all_bytes([data])[0]


def table_of(data: bytes) -> pa.Table:
    """The rows of one group, as they lie in a trajectory file. StorageError as `from_bytes`."""
    try:
        return _read(data)
    except (pa.ArrowException, OSError, ValueError) as error:
        raise StorageError(f"a group in the buffer is damaged ({type(error).__name__}: {error})") from error


def from_all_bytes(payloads: Sequence[bytes]) -> list[list[Trajectory]]:
    """The trajectories of each group, as `from_bytes`: several cost little more than one."""
    try:
        tables = [_read(data) for data in payloads]
        rows = pa.concat_tables(tables).combine_chunks()
        trajectories = [each for batch in rows.to_batches() for each in from_record_batch(batch)]
    except (pa.ArrowException, OSError, ValueError, KeyError) as error:
        raise StorageError(f"a group in the buffer is damaged ({type(error).__name__}: {error})") from error
    ends = accumulate((len(table) for table in tables), initial=0)
    return [trajectories[first:last] for first, last in pairwise(ends)]


def _finished(group_id: int, trajectories: Sequence[Trajectory], data: bytes) -> FinishedGroup:
    logs = [trajectory.tokens for trajectory in trajectories if trajectory.tokens is not None]
    valid = [trajectory.total_reward for trajectory in trajectories if trajectory.failure is None]
    return FinishedGroup(
        group_id=group_id,
        payload=data,
        num_trajectories=len(trajectories),
        num_tokens=sum(int(log.response_mask.sum()) for log in logs),
        oldest_version=run_limits.version_of_group(log.oldest_version for log in logs),
        mean_reward=sum(valid) / len(valid) if valid else 0.0,
    )


def _to_bytes(rows: pa.RecordBatch) -> bytes:
    """As an Arrow stream, behind its digest."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema, options=_OPTIONS) as writer:
        writer.write_batch(rows)
    data: bytes = sink.getvalue().to_pybytes()
    return _digest(data) + data


def _digest(data: bytes | memoryview) -> bytes:
    return hashlib.blake2b(data, digest_size=_DIGEST_BYTES).digest()


def _read(data: bytes) -> pa.Table:
    # Checked before it is read: Arrow trusts what it is given, and ends the process over a damaged offset.
    stored, stream = data[:_DIGEST_BYTES], memoryview(data)[_DIGEST_BYTES:]
    if _digest(stream) != stored:
        raise ValueError("these bytes are not those that were put")
    with pa.ipc.open_stream(pa.py_buffer(stream)) as reader:
        return reader.read_all()
