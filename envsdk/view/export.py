"""A source as one HTML file: the same pages, with a sample of its trajectories."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from envsdk.store.atomic import write_atomically
from envsdk.view.library import OpenSource
from envsdk.view.page import exported_page
from envsdk.view.trajectory_view import group_view, row_view

FORMAT = "envsdk.view/1"


def write_export(source: OpenSource, path: Path, *, num_trajectories: int) -> int:
    """Write `path`; returns the number of trajectories in it. StorageError when it cannot be written."""
    data = export_data(source, num_trajectories=num_trajectories, now=time.time())
    write_atomically(path, exported_page(data).encode("utf-8"))
    return len(data["trajectories"])


def export_data(source: OpenSource, *, num_trajectories: int, now: float) -> dict[str, Any]:
    """What the exported page holds: everything about the whole, and a sample of its trajectories."""
    source.refresh()
    rows = source.index().sample(num_trajectories)
    views = source.views(rows)
    by_group: dict[str, list[dict[str, Any]]] = {}
    for view in views:
        by_group.setdefault(view["group"], []).append(view)
    overview = source.overview(now)
    # The page may be given away: where it was made is nobody's business.
    overview["folder"] = ""
    return {
        "format": FORMAT,
        "exported_at": now,
        "source": overview,
        "timeline": source.timeline(),
        "failures": source.failures(),
        "rows": [row_view(row) for row in rows],
        "trajectories": {view["key"]: view for view in views},
        "groups": {group: _without_turns(group_view(own)) for group, own in by_group.items()},
    }


def _without_turns(group: dict[str, Any]) -> dict[str, Any]:
    """The page has its members' turns already."""
    members = [{"key": one["key"], "advantage": one["advantage"]} for one in group["members"]]
    return group | {"members": members, "total": len(members)}
