"""The rows of the index, read column by column from a trajectory file."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from envsdk.base.store.trajectories import iter_record_batches, read_metadata
from envsdk.view.columns import COLUMNS, Stored, TokenStats
from envsdk.view.sources import FileRole

IndexRow = tuple[tuple[Any, ...], str]
"""One trajectory in the index: values parallel to `COLUMNS`, and the texts that a search covers."""


def rows_of_file(path: Path, role: FileRole) -> Iterator[list[IndexRow]]:
    """The rows of one trajectory file, a few at a time. StorageError when it cannot be read."""
    reasons = _reasons(path)
    first = 0
    for batch in iter_record_batches(path):
        rows = _rows_of_batch(batch, first, role, reasons)
        yield rows
        first += len(rows)


def token_stats(
    mask: NDArray[np.int8], logprobs: NDArray[np.float32], versions: NDArray[np.int32]
) -> TokenStats:
    """Statistics of the arrays `[num_tokens]` of one trajectory."""
    sampled = mask == 1
    num_sampled = int(sampled.sum())
    if num_sampled == 0:
        return TokenStats(num_tokens=len(mask), num_sampled=0, versions=(), mean_logprob=None)
    mean = float(logprobs[sampled].mean(dtype=np.float64))
    return TokenStats(
        num_tokens=len(mask),
        num_sampled=num_sampled,
        versions=tuple(int(version) for version in np.unique(versions[sampled])),
        mean_logprob=mean if np.isfinite(mean) else None,
    )


def _rows_of_batch(batch: pa.RecordBatch, first: int, role: FileRole, reasons: list[str]) -> list[IndexRow]:
    plain = batch.select([each.name for each in batch.schema if not pa.types.is_list(each.type)]).to_pylist()
    rows = []
    for row, (values, stats, text) in enumerate(
        zip(plain, _stats(batch), _turn_texts(batch), strict=True), start=first
    ):
        why = reasons[row] if row < len(reasons) else ""
        stored = Stored(row, role, why, values, stats)
        texts = (values["trajectory_id"], stored.failure["message"], text, values["final_observation"])
        rows.append((tuple(column.get(stored) for column in COLUMNS), "\n".join(texts)))
    return rows


def _turn_texts(batch: pa.RecordBatch) -> Iterator[str]:
    """Observations and replies of each trajectory, in turn."""
    for turns in batch.column("turns"):
        said = (turns.values.field(name).to_pylist() for name in ("observation", "reply"))
        yield "\n".join(f"{observation}\n{reply}" for observation, reply in zip(*said, strict=True))


def _stats(batch: pa.RecordBatch) -> Iterator[TokenStats | None]:
    columns = (batch.column(name) for name in ("response_mask", "behavior_logprobs", "versions"))
    for mask, logprobs, versions in zip(*columns, strict=True):
        arrays = (each.values.to_numpy() for each in (mask, logprobs, versions))
        yield token_stats(*arrays) if mask.is_valid else None


def _reasons(path: Path) -> list[str]:
    """Why each trajectory of a file of discarded ones was not used; nothing for other files."""
    return list(map(str, json.loads(read_metadata(path).get("ends", b"[]"))))
