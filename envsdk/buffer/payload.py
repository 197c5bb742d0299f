"""Trajectories of a group as bytes: a digest, and an Arrow stream with the columns of a trajectory file."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import pyarrow as pa

from envsdk.buffer.contract import FinishedGroup
from envsdk.failures import StorageError
from envsdk.store.trajectories import from_record_batch, to_record_batch
from envsdk.trajectory import Trajectory

_DIGEST_BYTES = 16
_OPTIONS = pa.ipc.IpcWriteOptions(compression="zstd")


def pack(group_id: int, trajectories: Sequence[Trajectory]) -> FinishedGroup:
    """A complete group in the form in which the buffer holds it."""
    logs = [trajectory.tokens for trajectory in trajectories if trajectory.tokens is not None]
    versions = [version for log in logs if (version := log.oldest_version) is not None]
    valid = [trajectory.total_reward for trajectory in trajectories if trajectory.failure is None]
    return FinishedGroup(
        group_id=group_id,
        payload=to_bytes(trajectories),
        num_trajectories=len(trajectories),
        num_tokens=sum(int(log.response_mask.sum()) for log in logs),
        oldest_version=min(versions, default=None),
        mean_reward=sum(valid) / len(valid) if valid else 0.0,
    )


def to_bytes(trajectories: Sequence[Trajectory]) -> bytes:
    """The trajectories as an Arrow stream, behind its digest."""
    batch = to_record_batch(trajectories)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema, options=_OPTIONS) as writer:
        writer.write_batch(batch)
    data: bytes = sink.getvalue().to_pybytes()
    return _digest(data) + data


def _digest(data: bytes | memoryview) -> bytes:
    return hashlib.blake2b(data, digest_size=_DIGEST_BYTES).digest()


def from_bytes(data: bytes) -> list[Trajectory]:
    """The inverse of `to_bytes`. StorageError for bytes that are not what was written."""
    # Checked before it is read: Arrow trusts what it is given, and ends the process over a damaged offset.
    stored, stream = data[:_DIGEST_BYTES], memoryview(data)[_DIGEST_BYTES:]
    if _digest(stream) != stored:
        raise StorageError("a group in the buffer is damaged: its bytes are not those that were put")
    try:
        with pa.ipc.open_stream(pa.py_buffer(stream)) as reader:
            return [trajectory for batch in reader for trajectory in from_record_batch(batch)]
    except (pa.ArrowException, OSError, ValueError, KeyError) as error:
        raise StorageError(f"a group in the buffer is damaged ({type(error).__name__}: {error})") from error
