"""A source as one HTML file: the same pages, with a sample of its trajectories. A run's report is one."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any

from envsdk.base.display.terminal import say
from envsdk.base.store.atomic import write_atomically
from envsdk.tracking import jsonl
from envsdk.view.columns import list_columns
from envsdk.view.library import OpenSource
from envsdk.view.page import exported_page, summary
from envsdk.view.run_view import MAX_POINTS, is_of_one_engine, metrics_view, thinned
from envsdk.view.sources import Kind, run_source
from envsdk.view.trajectory_view import group_view, row_view, shortened
from envsdk.view.waiting import MAX_SPANS

FORMAT = "envsdk.view/1"
REPORT = "report.html"


@dataclass(frozen=True, slots=True, kw_only=True)
class Detail:
    """How much of a source its page holds."""

    num_trajectories: int
    max_points: int = MAX_POINTS
    """Points of one curve."""
    max_spans: int = MAX_SPANS
    """Spans of one lane of the timeline."""
    trajectory_bytes: int | None = None
    """JSON of all trajectories together, about; None for all of it."""
    with_each_engine: bool = True
    """Include the metrics of single engines."""


_REPORT_DETAIL = Detail(
    num_trajectories=60, max_points=300, max_spans=2_000, trajectory_bytes=3_000_000, with_each_engine=False
)
"""A few megabytes, however long the run was."""


def write_report(run_dir: Path) -> Path:
    """Write `run_dir/report.html` and return its path; a run that is not over gets what there is so far.

    It reads a bounded number of trajectory files and keeps no index. Raises ConfigurationError when `run_dir`
    is not a run folder, StorageError when the file cannot be written.
    """
    source = run_source(run_dir)
    with tempfile.TemporaryDirectory(prefix="envsdk-report-") as folder:
        opened = OpenSource(source, decode=None, index_folder=Path(folder))
        page = _page(opened, _REPORT_DETAIL, now=time.time())[0]
    write_atomically(run_dir / REPORT, page)
    return run_dir / REPORT


def write_report_of_job(run_dir: Path) -> Path | None:
    """The report at the end of a run; None before the first step, and when writing fails, with a warning."""
    metrics = run_dir / jsonl.FILE_NAME
    if not metrics.is_file() or not metrics.stat().st_size:
        return None
    try:
        return write_report(run_dir)
    except Exception as error:  # noqa: BLE001 - no picture of a run is worth the run
        say(f"warning: {run_dir / REPORT} was not written: {error}", err=True)
        return None


def write_export(source: OpenSource, path: Path, *, num_trajectories: int) -> int:
    """Write `path`; returns the number of trajectories in it. StorageError when it cannot be written."""
    page, number = _page(source, Detail(num_trajectories=num_trajectories), now=time.time())
    write_atomically(path, page)
    return number


def _page(source: OpenSource, detail: Detail, *, now: float) -> tuple[bytes, int]:
    data = export_data(source, detail, now=now)
    metrics = metrics_view(source.run_files()) if source.source.kind is Kind.RUN else []
    page = exported_page(
        data, name=source.source.name, summary=summary(data["source"], data["failures"], metrics)
    )
    return page.encode("utf-8", "replace"), len(data["trajectories"])


def export_data(source: OpenSource, detail: Detail, *, now: float) -> dict[str, Any]:
    """What the exported page holds: everything about the source, and a sample of its trajectories."""
    source.refresh()
    rows = source.index().sample(detail.num_trajectories)
    if detail.trajectory_bytes is None:
        views = source.views(rows)
    else:
        # File by file: long token logs would not fit into memory together.
        limit = detail.trajectory_bytes // max(1, len(rows))
        files = groupby(rows, key=itemgetter("file"))
        views = [shortened(view, limit) for _, own in files for view in source.views(list(own))]
    by_group: dict[str, list[dict[str, Any]]] = {}
    for view in views:
        by_group.setdefault(view["group"], []).append(view)
    overview, failures = source.overview(now), source.failures()
    # The page may be given away: the folder it was made in stays private.
    overview["folder"] = ""
    for holder in (overview, failures):
        if "curves" in holder:
            holder["curves"] = _curves(holder["curves"], detail)
    programs = source.programs(now)
    if programs is not None and "problem" in programs:
        programs = {"problem": "It could not be read when this page was made."}
    return {
        "format": FORMAT,
        "exported_at": now,
        "source": overview,
        "timeline": source.timeline(detail.max_spans),
        "programs": programs,
        "failures": failures,
        "columns": list_columns(),
        "rows": [row_view(row) for row in rows],
        "trajectories": {view["key"]: view for view in views},
        "groups": {group: _without_turns(group_view(own)) for group, own in by_group.items()},
    }


def _curves(curves: Mapping[str, list[list[float]]], detail: Detail) -> dict[str, list[list[float]]]:
    """Thinned, with six digits: more than a chart or its labels show."""
    return {
        name: [[step, float(f"{value:.6g}")] for step, value in thinned(points, detail.max_points)]
        for name, points in curves.items()
        if detail.with_each_engine or not is_of_one_engine(name)
    }


def _without_turns(group: dict[str, Any]) -> dict[str, Any]:
    """The page has its members' turns already."""
    members = [{"key": one["key"], "advantage": one["advantage"]} for one in group["members"]]
    return group | {"members": members, "total": len(members)}
