"""Whether the files of a job's folder are what its buffer and its trainer wrote.

broken = audit_folder(engine, folder)      # [] or one sentence for each file that is not
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import groupby
from operator import attrgetter
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import sqlalchemy as sa
from sqlalchemy import Engine

from envsdk.base.store.file_digests import damaged
from envsdk.buffer.payload import table_of
from envsdk.buffer.places import snapshot
from envsdk.buffer.tables import batch_groups, job, payloads
from envsdk.contracts.failures import StorageError


def audit_folder(engine: Engine, folder: Path) -> list[str]:
    """Compare batch files and checkpoints, also while the programs run."""
    return [*_batch_files(engine, folder / "trajectories"), *_checkpoints(folder / "checkpoints")]


def _batch_files(engine: Engine, folder: Path) -> Iterator[str]:
    """Batch files of steps that the trainer has left: the file of the present one may be on its way."""
    query = (
        sa.select(batch_groups.c.step, batch_groups.c.group_id, payloads.c.data)
        .outerjoin(payloads, payloads.c.group_id == batch_groups.c.group_id)
        .where(batch_groups.c.step < sa.select(job.c.step).scalar_subquery())
        .order_by(batch_groups.c.step, batch_groups.c.group_id)
    )
    with snapshot(engine) as connection:
        rows = connection.execution_options(yield_per=64).execute(query)
        for step, batch in groupby(rows, key=attrgetter("step")):
            groups = {row.group_id: row.data for row in batch}
            file = folder / f"step_{step:06d}.parquet"
            try:
                held = pq.read_table(file)
                if sorted(set(held["group_id"].to_pylist())) != list(groups):
                    yield f"{file.name} holds other groups than the batch of step {step}"
                    continue
                for group_id, data in groups.items():
                    if data is not None and (names := _differing(held, group_id, data)):
                        what = f"another {', '.join(names)} of group {group_id}"
                        yield f"{file.name} has {what} than the buffer"
            except (pa.ArrowException, OSError, KeyError) as error:
                yield f"{file.name}, of the batch of step {step}, cannot be read: {error}"


def _differing(held: pa.Table, group_id: int, data: bytes) -> list[str]:
    """Columns of the group that are not the same in the batch file; none where the buffer's are damaged."""
    try:
        original = table_of(data)
    except StorageError:
        return []
    own = held.filter(pc.equal(held["group_id"], group_id))
    if own.equals(original):
        return []
    # Numbers that are none differ from themselves.
    return [
        name
        for name in original.column_names
        if repr(own[name].to_pylist()) != repr(original[name].to_pylist())
    ]


def _checkpoints(folder: Path) -> Iterator[str]:
    for checkpoint in sorted(folder.glob("step_*")):
        try:
            files = json.loads((checkpoint / "run.json").read_text())["files"]
            problems = damaged(checkpoint, files)
        except (OSError, ValueError, LookupError, AttributeError, TypeError) as error:
            problems = [f"run.json cannot be read: {error}"]
        if checkpoint.is_dir():  # a trainer that runs removes old ones
            yield from (f"checkpoints/{checkpoint.name}: {problem}" for problem in problems)
