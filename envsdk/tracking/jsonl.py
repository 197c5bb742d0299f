"""`metrics.jsonl`: one JSON object per step, the run's own record of its metrics.

{"step": 3, "time_unix_s": 1767225600.5, "reward/mean": 0.41, ...}
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Self

from envsdk.base.store.appendfile import AppendFile
from envsdk.base.store.atomic import write_atomically
from envsdk.contracts.failures import ConfigurationError
from envsdk.tracking.tracker import Tracker

FILE_NAME = "metrics.jsonl"
BENCH = "bench"
"""Folder in a run's with the metrics of evaluations that another program made (`mode: bench`)."""


class JsonlTracker(Tracker):
    """Appends one durable line per `log`.

    A process that dies while writing leaves a torn last line: readers skip it, and the next run
    that opens the file cuts it off.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = AppendFile(path, durable=True)
        content = self._file.read()
        self._file.truncate(content.rfind(b"\n") + 1)

    @classmethod
    def create(cls, run_dir: Path, config: Mapping[str, Any]) -> Self:
        if config:
            raise ConfigurationError(f"tracker 'jsonl' takes no settings, but was given {', '.join(config)}")
        return cls(run_dir / FILE_NAME)

    def log(self, step: int, metrics: Mapping[str, float], *, time_unix_s: float) -> None:
        row: dict[str, float | None] = {"step": step, "time_unix_s": time_unix_s}
        row |= {name: _finite_or_none(value) for name, value in metrics.items()}
        self._file.append(json.dumps(row, allow_nan=False).encode() + b"\n")

    def rewind(self, step: int) -> None:
        kept = [line for line, row in _rows(self._file.read()) if row["step"] <= step]
        write_atomically(self._path, b"".join(kept))
        self._file.close()
        self._file = AppendFile(self._path, durable=True)

    def close(self) -> None:
        self._file.close()


def read_metrics(path: Path) -> list[dict[str, float]]:
    """The rows of a `metrics.jsonl`, one per step in order; several lines of one step are merged.

    A value that was not finite reads as NaN. A torn or damaged line is skipped.
    """
    steps: dict[int, dict[str, float]] = {}
    for _, row in _rows(path.read_bytes()):
        values = {name: math.nan if value is None else value for name, value in row.items()}
        steps.setdefault(row["step"], {}).update(values)
    return [steps[step] for step in sorted(steps)]


def read_run_metrics(run_dir: Path) -> list[dict[str, float]]:
    """The rows of a run, one per step in order: its own, with the evaluations of other programs."""
    own, bench = (read_metrics(path) if path.is_file() else [] for path in metric_files(run_dir))
    steps: dict[float, dict[str, float]] = {}
    for row in bench:
        # It has its own clock: the run's own rows say what the run took.
        steps[row["step"]] = {name: value for name, value in row.items() if name != "time_unix_s"}
    for row in own:
        steps.setdefault(row["step"], {}).update(row)
    return [steps[step] for step in sorted(steps)]


def metric_files(run_dir: Path) -> tuple[Path, Path]:
    """The run's own, and that of evaluations by another program; either may be missing."""
    return run_dir / FILE_NAME, run_dir / BENCH / FILE_NAME


def _rows(content: bytes) -> Iterator[tuple[bytes, dict[str, Any]]]:
    for line in content.splitlines(keepends=True):
        try:
            row = json.loads(line)
        except ValueError:
            continue
        if line.endswith(b"\n") and isinstance(row, dict) and isinstance(row.get("step"), int):
            yield line, row


def _finite_or_none(value: float) -> float | None:
    # NaN and infinity are not JSON; other readers (jq, pandas, JavaScript) stop at them.
    number = float(value)
    return number if math.isfinite(number) else None
