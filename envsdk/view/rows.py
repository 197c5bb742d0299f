"""The rows of the index, read column by column from a trajectory file."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from envsdk.store.trajectories import iter_record_batches, read_metadata
from envsdk.view.sources import FileRole
from envsdk.view.trajectory_view import finite

COLUMNS = (
    "row",
    "use",
    "step",
    "origin",
    "why",
    "trajectory_id",
    "grp",
    "tag",
    "split",
    "task",
    "outcome",
    "success",
    "turns",
    "reward",
    "boundary",
    "failure",
    "message",
    "tokens",
    "sampled",
    "oldest",
    "newest",
    "versions",
    "logprob",
    "seconds",
)
"""Of the index's table, besides the id and the file; `grp` because `group` is a word of SQL."""


@dataclass(frozen=True, slots=True)
class IndexRow:
    """One trajectory in the index."""

    values: tuple[Any, ...]
    """Parallel to `COLUMNS`."""
    text: str
    """The texts of the trajectory that a search covers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenStats:
    """Of one trajectory's token log."""

    num_tokens: int
    num_sampled: int
    versions: tuple[int, ...]
    """Versions that sampled its tokens, oldest first."""
    mean_logprob: float | None
    """Nats per sampled token; None when nothing was sampled."""


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
    """Of the arrays `[num_tokens]` of one trajectory."""
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
    def column(name: str) -> list[Any]:
        values: list[Any] = batch.column(name).to_pylist()
        return values

    stats = _stats(batch)
    texts = _turn_texts(batch)
    failures = column("failure")
    starts, ends = column("started_at"), column("ended_at")
    listed = zip(
        column("trajectory_id"),
        column("group_id"),
        column("tag"),
        column("split"),
        column("index"),
        column("outcome"),
        column("success"),
        column("num_turns"),
        column("total_reward"),
        column("final_observation"),
        strict=True,
    )
    rows = []
    for at, (trajectory_id, group, tag, split, task, outcome, success, turns, reward, final) in enumerate(
        listed
    ):
        failure = failures[at] or {"boundary": "", "kind": "", "message": ""}
        if outcome == "failed" and not failure["boundary"]:
            failure = {"boundary": "unknown", "kind": "unknown", "message": ""}
        one = stats[at]
        row = first + at
        values = (
            row,
            role.use.value,
            role.step,
            role.origin,
            reasons[row] if row < len(reasons) else "",
            trajectory_id,
            group,
            tag,
            split,
            task,
            outcome,
            int(success),
            turns,
            finite(reward),
            failure["boundary"],
            failure["kind"],
            failure["message"],
            None if one is None else one.num_tokens,
            None if one is None else one.num_sampled,
            one.versions[0] if one and one.versions else None,
            one.versions[-1] if one and one.versions else None,
            "," + "".join(f"{version}," for version in one.versions) if one else "",
            None if one is None else one.mean_logprob,
            finite(ends[at] - starts[at]),
        )
        rows.append(IndexRow(values, "\n".join((trajectory_id, failure["message"], texts[at], final))))
    return rows


def _turn_texts(batch: pa.RecordBatch) -> list[str]:
    """Observations and replies of each trajectory, in turn."""
    turns = batch.column("turns")
    fields = turns.flatten()
    observations, replies = fields.field("observation").to_pylist(), fields.field("reply").to_pylist()
    both = [f"{observation}\n{reply}" for observation, reply in zip(observations, replies, strict=True)]
    texts, start = [], 0
    for length in turns.value_lengths().to_pylist():
        texts.append("\n".join(both[start : start + length]))
        start += length
    return texts


def _stats(batch: pa.RecordBatch) -> list[TokenStats | None]:
    masks = batch.column("response_mask")
    flat_masks = masks.flatten().to_numpy()
    logprobs = batch.column("behavior_logprobs").flatten().to_numpy()
    versions = batch.column("versions").flatten().to_numpy()
    stats: list[TokenStats | None] = []
    start = 0
    for length in masks.value_lengths().to_pylist():
        if length is None:
            stats.append(None)
            continue
        at = slice(start, start + length)
        stats.append(token_stats(flat_masks[at], logprobs[at], versions[at]))
        start += length
    return stats


def _reasons(path: Path) -> list[str]:
    """Why each trajectory of a file of discarded ones was not used; nothing for other files."""
    return list(map(str, json.loads(read_metadata(path).get("ends", b"[]"))))
